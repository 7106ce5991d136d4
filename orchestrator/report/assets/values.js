// Values with errors, and errors of differences, as in orchestrator/front/joint.py: what two trials share cancels.
import { DATA } from "./data.js";
import { el } from "./dom.js";
import { parts } from "./format.js";

export function withError(trial, metric) {
  const [value, error] = parts(trial.metrics[metric]);
  return [value, error && el("span.pm", ` ± ${error}`)];
}
// The difference a - b in a metric, its standard error (null: unknown), and whether it is significant (95 %).
export function difference(a, b, metric) {
  const [first, second] = [a, b].map((trial) => measurement(trial, metric)),
    value = first.value - second.value;
  if (a === b) return { value, error: 0, significant: false };
  if (first.error === null || second.error === null) return { value, error: null, significant: false };
  const [p, q] = [first.blocks, second.blocks],
    isPaired = DATA.sweeps[a.sweep].captions === DATA.sweeps[b.sweep].captions;
  const blocks = isPaired
    ? Array.from({ length: Math.max(p.length, q.length) }, (_, i) => (p[i] ?? 0) - (q[i] ?? 0))
    : [...p, ...q];
  const counts = [p.length, q.length].filter((count) => count),
    isTimedTogether = a.shape && a.shape === b.shape && a.sweep === b.sweep;
  const noises = isTimedTogether
    ? [[first.noise - second.noise, first.noiseDof]]
    : [first, second].map(({ noise, noiseDof }) => [noise, noiseDof]);
  const errors = [
    [Math.hypot(...blocks), counts.length ? Math.min(...counts) - 1 : 0],
    ...noises,
    ...[first, second].map(({ own, ownDof }) => [own, ownDof]),
  ];
  const error = Math.hypot(...errors.map(([size]) => size)),
    dof = Math.floor(error ** 4 / errors.reduce((sum, [size, n]) => sum + (n ? size ** 4 / n : 0), 0)); // Welch
  return { value, error, significant: Math.abs(value) > (DATA.critical[dof] ?? DATA.critical[0]) * error };
}
function measurement(trial, metric) {
  const [value, error, blocks, noise, own, noiseDof, ownDof] = trial.metrics[metric];
  return { value, error, blocks, noise, own, noiseDof, ownDof };
}
// Neighbours on the front, with those of the metrics in which they do not differ significantly. The answer of the whole
// front knows more of what their errors share than the page does.
export function indistinguishable(front, metrics) {
  const isOwn = metrics.every((metric) => [DATA.axes.x, DATA.axes.y].includes(metric));
  const differ = (a, b, metric) => {
    const marked = isOwn && [a, b].find((trial) => trial.next_on_front === (trial === a ? b : a).id);
    return marked ? marked.distinct_from_next.includes(metric) : difference(a, b, metric).significant;
  };
  return front
    .slice(1)
    .map((b, i) => ({ a: front[i], b, metrics: metrics.filter((metric) => !differ(front[i], b, metric)) }))
    .filter((pair) => pair.metrics.length);
}
// A change from a base value in per cent with its error, signed: `+12 % ± 3`.
export function formatChange({ value, error }, base) {
  const share = [value, error].map((size) => size && (100 * size) / Math.abs(base)),
    [text, more] = parts(share);
  return [`${value >= 0 ? "+" : ""}${text}`, more && el("span.pm", ` ± ${more}`), " %"];
}
