// The marks of trials: colour and shape are those of front.png (orchestrator/shown/plots.py).
import { DATA } from "./data.js";
import { iconOf, svg } from "./dom.js";
import { kindOf, state } from "./state.js";

const SHAPES = [
  (r) => `M${-r} 0a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`,
  (r) => polygon(4, r * 1.2, 45),
  (r) => polygon(4, r * 1.3, 0),
  (r) => polygon(3, r * 1.35, -90),
  (r) => polygon(3, r * 1.35, 90),
  (r) => plus(r, Math.SQRT1_2),
  (r) => `M${-0.6 * r} ${-1.2 * r}h${1.2 * r}v${2.4 * r}h${-1.2 * r}z`,
  (r) => plus(r, 0),
  (r) => polygon(5, r * 1.55, -90, 0.5),
];
// A plus sign, turned by an angle of this sine.
function plus(r, sine) {
  const [a, b, cosine] = [r * 0.45, r * 1.2, Math.sqrt(1 - sine * sine)];
  const arm = [[-a, -b], [a, -b], [a, -a]];
  const edge = [0, 1, 2, 3].flatMap((quarter) => arm.map(([x, y]) => [[x, y], [-y, x], [-x, -y], [y, -x]][quarter]));
  const corners = edge.map(([x, y]) => `${(x * cosine - y * sine).toFixed(2)} ${(x * sine + y * cosine).toFixed(2)}`);
  return `M${corners.join("L")}z`;
}
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
export const kinds = () => Object.keys(DATA.looks[state.colour]);
export const colourOf = (kind) => DATA.looks[state.colour][kind].colour;
export const mark = (kind, r) =>
  svg(`path.mark.${colourOf(kind)}`, { d: SHAPES[DATA.looks[state.colour][kind].shape](r) });
export const icon = (trial) => iconOf(mark(kindOf(trial), 5));
