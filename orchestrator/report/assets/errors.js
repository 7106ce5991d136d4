// Errors of differences, as in orchestrator/results/joint.py: what two trials share cancels.

// The difference a - b in a metric, its standard error (null: unknown), and whether it is significant (95 %).
function difference(a, b, metric) {
  const [u, e, p, r, x, h, i] = a.metrics[metric],
    [v, f, q, s, y, k, j] = b.metrics[metric],
    value = u - v;
  if (a === b) return { value, error: 0, significant: false };
  if (e === null || f === null) return { value, error: null, significant: false };
  const paired = DATA.sweeps[a.sweep].captions === DATA.sweeps[b.sweep].captions;
  const blocks = paired
    ? Array.from({ length: Math.max(p.length, q.length) }, (_, g) => (p[g] ?? 0) - (q[g] ?? 0))
    : [...p, ...q];
  const timed = a.shape && a.shape === b.shape && a.sweep === b.sweep;
  const counts = [p.length, q.length].filter((count) => count);
  const parts = [
    [Math.hypot(...blocks), counts.length ? Math.min(...counts) - 1 : 0],
    ...(timed
      ? [[r - s, h]]
      : [
          [r, h],
          [s, k],
        ]),
    [x, i],
    [y, j],
  ];
  const error = Math.hypot(...parts.map(([part]) => part));
  const dof = Math.floor(error ** 4 / parts.reduce((sum, [part, n]) => sum + (n ? part ** 4 / n : 0), 0)); // Welch
  return { value, error, significant: Math.abs(value) > (DATA.critical[dof] ?? DATA.critical[0]) * error };
}
// Neighbours on the front, with the metrics in which they do not differ significantly.
function indistinguishable(front) {
  return front
    .slice(1)
    .map((b, i) => ({
      a: front[i],
      b,
      metrics: [state.x, state.y].filter((m) => !difference(front[i], b, m).significant),
    }))
    .filter(({ metrics }) => metrics.length);
}
// A change from a base value in per cent with its error, signed: `+12 % ± 3`.
function formatChange({ value, error }, base) {
  const share = [(100 * value) / Math.abs(base), error && (100 * error) / Math.abs(base)],
    [text, more] = parts(share);
  return [`${value >= 0 ? "+" : ""}${text} %`, more && el("span", { class: "pm" }, ` ± ${more}`)];
}
