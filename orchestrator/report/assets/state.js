// The reader's choices, and the groups of trials that follow from them.
const PALETTE = 8;
const SHAPES = ["circle", "square", "diamond", "up", "down", "hexagon", "bar", "cross"];
const VANILLA = DATA.vanilla;
const state = {
  x: DATA.axes.x, y: DATA.axes.y, colour: "acceptance", hidden: new Set(), near: false, bars: true,
  hovered: null, pinned: null, query: "", frontOnly: false, sort: { key: "number", descending: false },
};
const byNumber = new Map(DATA.trials.map((trial) => [trial.number, trial]));

// The groups of a colour choice: vanilla first, the others by name as in front.png, so each keeps its place and look.
function kinds(colouring = state.colour) {
  const names = [...new Set(DATA.trials.map((trial) => trial.groups[colouring]))];
  return names.filter((name) => name === VANILLA).concat(names.filter((name) => name !== VANILLA).sort());
}
function look(name) {
  if (name === VANILLA) return { colour: "ink", shape: "star" };
  const place = kinds().filter((kind) => kind !== VANILLA).indexOf(name);
  return { colour: `c${place % PALETTE}`, shape: SHAPES[place % SHAPES.length] };
}
const kindOf = (trial) => trial.groups[state.colour];
const visible = () => DATA.trials.filter((trial) => plotted(trial, state.x, state.y) && !state.hidden.has(kindOf(trial)));

const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (r) => polygon(4, r * 1.2, 45),
  diamond: (r) => polygon(4, r * 1.3, 0),
  up: (r) => polygon(3, r * 1.35, -90),
  down: (r) => polygon(3, r * 1.35, 90),
  hexagon: (r) => polygon(6, r * 1.15, 0),
  bar: (r) => `M${-0.6 * r} ${-1.2 * r}h${1.2 * r}v${2.4 * r}h${-1.2 * r}z`,
  cross: (r) => { const a = r * 0.45, b = r * 1.2; return `M${-a} ${-b}H${a}V${-a}H${b}V${a}H${a}V${b}H${-a}V${a}H${-b}V${-a}H${-a}z`; },
  star: (r) => polygon(5, r * 1.55, -90, 0.5),
};
// Corners on a circle of radius r, starting at `start` degrees; `inner` adds corners between them at that share of r.
function polygon(corners, r, start, inner = 0) {
  const count = inner ? 2 * corners : corners;
  const points = Array.from({ length: count }, (_, i) => {
    const angle = ((start + (360 * i) / count) * Math.PI) / 180, radius = inner && i % 2 ? r * inner : r;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}z`;
}
const mark = (name, r) => svg("path", { class: `mark ${look(name).colour}`, d: MARKS[look(name).shape](r) });

// Whether two trials differ significantly in a metric: the difference is beyond its critical value times its standard
// error, from which what the trials share has cancelled (orchestrator/results/joint.py). False for an unknown error.
function apart(a, b, metric) {
  const [u, e, p, r, x, h, i] = a.metrics[metric], [v, f, q, s, y, k, j] = b.metrics[metric];
  if (e === null || f === null) return false;
  const blocks = Array.from({ length: Math.max(p.length, q.length) }, (_, g) => (p[g] ?? 0) - (q[g] ?? 0));
  const noise = a.shape && a.shape === b.shape ? [[r - s, h]] : [[r, h], [s, k]];
  const counts = [p.length, q.length].filter((count) => count);
  const parts = [[Math.hypot(...blocks), counts.length ? Math.min(...counts) - 1 : 0], ...noise, [x, i], [y, j]];
  const error = Math.hypot(...parts.map(([part]) => part));
  const dof = Math.floor(error ** 4 / parts.reduce((sum, [part, n]) => sum + (n ? part ** 4 / n : 0), 0));  // Welch
  return Math.abs(u - v) > (DATA.critical[dof] ?? DATA.critical[0]) * error;
}
// Neighbours on the front, with the metrics in which they do not differ significantly.
function indistinguishable(front) {
  return front.slice(1)
    .map((b, i) => ({ a: front[i], b, metrics: [state.x, state.y].filter((m) => !apart(front[i], b, m)) }))
    .filter(({ metrics }) => metrics.length);
}
