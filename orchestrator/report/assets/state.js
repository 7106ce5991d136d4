// The reader's choices, and the groups of trials that follow from them.
const PALETTE = 8,
  MAX_PINS = 3;
const SHAPES = ["circle", "square", "diamond", "up", "down", "hexagon", "bar", "cross"];
const VANILLA = DATA.vanilla;
const state = {
  x: DATA.axes.x,
  y: DATA.axes.y,
  colour: several ? "sweep" : "acceptance",
  hidden: new Set(),
  near: false,
  bars: true,
  hovered: null,
  touch: false, // the last pointer on the chart was a finger
  pins: [],
  bar: DATA.answer.bar?.start,
  query: "",
  frontOnly: false,
  sort: { key: "number", descending: false },
};
const trialOf = new Map(DATA.trials.map((trial) => [trial.id, trial]));
const vanillaOf = (trial) => trialOf.get(DATA.sweeps[trial.sweep].vanilla);

// The groups of a colour choice: vanilla first, the others by name as in front.png, so each keeps its place and look.
function kinds(colouring = state.colour) {
  const names = [...new Set(DATA.trials.map((trial) => trial.groups[colouring]))];
  return names.filter((name) => name === VANILLA).concat(names.filter((name) => name !== VANILLA).sort());
}
function look(name) {
  if (name === VANILLA) return { colour: "ink", shape: "star" };
  const place = kinds()
    .filter((kind) => kind !== VANILLA)
    .indexOf(name);
  return { colour: `c${place % PALETTE}`, shape: SHAPES[place % SHAPES.length] };
}
const kindOf = (trial) => trial.groups[state.colour];
const visible = () =>
  DATA.trials.filter((trial) => plotted(trial, state.x, state.y) && !state.hidden.has(kindOf(trial)));

const MARKS = {
  circle: (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  square: (r) => polygon(4, r * 1.2, 45),
  diamond: (r) => polygon(4, r * 1.3, 0),
  up: (r) => polygon(3, r * 1.35, -90),
  down: (r) => polygon(3, r * 1.35, 90),
  hexagon: (r) => polygon(6, r * 1.15, 0),
  bar: (r) => `M${-0.6 * r} ${-1.2 * r}h${1.2 * r}v${2.4 * r}h${-1.2 * r}z`,
  cross: (r) => {
    const a = r * 0.45,
      b = r * 1.2;
    return `M${-a} ${-b}H${a}V${-a}H${b}V${a}H${a}V${b}H${-a}V${a}H${-b}V${-a}H${-a}z`;
  },
  star: (r) => polygon(5, r * 1.55, -90, 0.5),
};
// Corners on a circle of radius r, starting at `start` degrees; `inner` adds corners between them at that share of r.
function polygon(corners, r, start, inner = 0) {
  const count = inner ? 2 * corners : corners;
  const points = Array.from({ length: count }, (_, i) => {
    const angle = ((start + (360 * i) / count) * Math.PI) / 180,
      radius = inner && i % 2 ? r * inner : r;
    return `${(radius * Math.cos(angle)).toFixed(2)} ${(radius * Math.sin(angle)).toFixed(2)}`;
  });
  return `M${points.join("L")}z`;
}
const mark = (name, r) => svg("path", { class: `mark ${look(name).colour}`, d: MARKS[look(name).shape](r) });
const icon = (trial) =>
  svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(kindOf(trial), 5));
