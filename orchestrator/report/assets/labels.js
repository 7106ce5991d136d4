// Names next to points: each where it covers least; one that would cover another is omitted. Frames and steps are boxes
// { left, right, top, bottom } in pixels, dots are [x, y, half the width].
import { svg } from "./dom.js";

const SIDES = [
  [1, 0],
  [0, -1],
  [1, -1],
  [1, 1],
  [0, 1],
  [-1, -1],
  [-1, 0],
  [-1, 1],
];
const DISTANCES = [9, 20, 34, 50, 70]; // from the point
const COSTS = { outside: 200, name: 100, dot: 12, near: 1, step: 3, leader: 10, ring: 2.5, turn: 0.1 };
const HEIGHT = 16,
  PADDING = 6,
  NEAR = 7; // so close to another point, a name may be mistaken for that point's
const context = document.createElement("canvas").getContext("2d");

function textWidth(text) {
  context.font = "600 12px system-ui, sans-serif";
  return context.measureText(text).width;
}
// A group of names. named: { text, at: [x, y], start: the least distance, most: the highest cost, style }, the most
// important first. around: { box, dots, steps, taken }.
export function placeNames(named, around) {
  const group = svg("g.labels", { "aria-hidden": "true" }),
    taken = [...around.taken];
  for (const { text, at, start, most, style } of named) {
    const best = bestPlace(at, textWidth(text) + PADDING, start, { ...around, taken });
    if (best.cost > most) continue;
    taken.push(best.frame);
    if (best.ring) group.append(svg("line.leader", leader(at, best.frame)));
    const x = (best.frame.left + best.frame.right) / 2;
    group.append(svg(`text.${style}`, { x, y: best.frame.top + 12, "text-anchor": "middle" }, text));
  }
  return group;
}
function bestPlace(at, width, start, around) {
  let best = null;
  for (const [ring, away] of [start, ...DISTANCES.slice(1)].entries()) {
    for (const [turn, side] of SIDES.entries()) {
      const frame = frameBeside(at, side, away, width);
      let cost = crowding(frame, around) + ring * COSTS.ring + turn * COSTS.turn;
      if (ring && (!best || cost < best.cost)) cost += crossing(leader(at, frame), at, around);
      if (!best || cost < best.cost) best = { frame, cost, ring };
    }
  }
  return best;
}
// Where the name of a band across the chart covers the fewest points: above or below it, at its right or left end.
export function placeBandName(text, { start, end }, box, points) {
  const width = textWidth(text),
    dots = points.map(([x, y]) => [x, y, 10]),
    around = { box: { ...box, right: box.right + 1 }, dots, steps: [], taken: [] };
  const corners = [start - 18, end].flatMap((y) => [box.right - width, box.left].map((x) => [x, y])),
    frames = corners.map(([x, y]) => ({ left: x, right: x + width, top: y, bottom: y + 18 })),
    costs = frames.map((frame) => crowding(frame, around));
  return frames[costs.indexOf(Math.min(...costs))];
}
function frameBeside([px, py], [dx, dy], distance, width) {
  const away = dx && dy ? distance * 0.75 : distance,
    left = px + dx * away - (dx > 0 ? 0 : dx < 0 ? width : width / 2),
    top = py + dy * away - (dy > 0 ? 0 : dy < 0 ? HEIGHT : HEIGHT / 2);
  return { left, top, right: left + width, bottom: top + HEIGHT };
}
function leader([px, py], frame) {
  const x2 = Math.min(Math.max(px, frame.left + 3), frame.right - 3),
    y2 = Math.min(Math.max(py, frame.top + 2), frame.bottom - 2),
    length = Math.hypot(x2 - px, y2 - py) || 1;
  return { x1: px + ((x2 - px) * 8) / length, y1: py + ((y2 - py) * 8) / length, x2, y2 };
}
const meets = (a, b, room = 0) =>
  a.left < b.right + room && a.right > b.left - room && a.top < b.bottom + room && a.bottom > b.top - room;
function crowding(frame, { box, dots, taken, steps }) {
  const { left, right, top, bottom } = frame,
    isOutside = left < box.left || right > box.right || top < box.top || bottom > box.bottom;
  let cost = isOutside ? COSTS.outside : 0;
  for (const other of taken) if (meets(frame, other, 1)) cost += COSTS.name;
  for (const [x, y, r] of dots) {
    const dot = { left: x - r, right: x + r, top: y - r, bottom: y + r };
    if (meets(frame, dot)) cost += COSTS.dot;
    else if (meets(frame, dot, NEAR)) cost += COSTS.near;
  }
  for (const step of steps) if (meets(frame, step)) cost += COSTS.step;
  return cost;
}
// The cost of a leader line that runs over other points or names than its own.
function crossing({ x1, y1, x2, y2 }, [px, py], { dots, taken }) {
  const along = Array.from({ length: 9 }, (_, i) => [x1 + ((x2 - x1) * i) / 8, y1 + ((y2 - y1) * i) / 8]),
    passes = (test) => along.some(([x, y]) => test(x, y));
  const crossed = [
    ...dots.filter(([cx, cy, r]) => (cx !== px || cy !== py) && passes((x, y) => Math.hypot(x - cx, y - cy) < r + 2)),
    ...taken.filter((at) => passes((x, y) => x > at.left && x < at.right && y > at.top && y < at.bottom)),
  ];
  return COSTS.leader * crossed.length;
}
// The segments of stairs through points, from the first to the last.
export const stairs = (points) =>
  points.slice(1).flatMap(([x, y], i) => {
    const [u, v] = points[i],
      [left, right] = [Math.min(u, x), Math.max(u, x)],
      [top, bottom] = [Math.min(v, y), Math.max(v, y)];
    return [
      { left: u - 1, right: u + 1, top, bottom },
      { left, right, top: y - 1, bottom: y + 1 },
    ];
  });
