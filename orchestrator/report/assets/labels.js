// Labels next to points: each where it covers least; a label that would cover another one is omitted.
const measure = document.createElement("canvas").getContext("2d");
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

function labels({ trials, front, place, box, reach }, on) {
  measure.font = "600 12px system-ui, sans-serif";
  const dots = trials.map(place),
    steps = [...stairs(front.map(place)), ...(state.bars ? trials.flatMap(reach) : [])],
    taken = [],
    group = svg("g", { class: "labels", "aria-hidden": "true" });
  const named = trials.filter((trial) => trial.label || on.has(trial));
  for (const trial of named.sort((a, b) => on.has(b) - on.has(a) || a.number - b.number)) {
    const text = trial.label ? shortened(trial.label, 26) : `trial ${trial.number}`,
      [px, py] = place(trial);
    const size = { width: measure.measureText(text).width + 6, height: 16 };
    let best = null;
    const start = trial.id in (ANSWER.gains ?? {}) ? 17 : 9; // beyond the ring of a choice
    for (const [ring, away] of [start, 20, 34, 50].entries()) {
      for (const [turn, [dx, dy]] of SIDES.entries()) {
        const at = frame(px, py, dx, dy, dx && dy ? away * 0.75 : away, size);
        const cost = crowding(at, box, dots, taken, steps) + ring * 2.5 + turn * 0.1;
        if (!best || cost < best.cost) best = { at, cost, ring, dx, dy };
      }
    }
    if (best.cost > (on.has(trial) ? 60 : 24)) continue;
    taken.push(best.at);
    if (best.ring) group.append(svg("line", { class: "leader", ...leader(px, py, best.at) }));
    const anchor = { x: (best.at.left + best.at.right) / 2, y: best.at.top + 12, "text-anchor": "middle" };
    group.append(svg("text", { class: on.has(trial) ? "member-name" : "other-name", ...anchor }, text));
  }
  return group;
}
function frame(px, py, dx, dy, away, { width, height }) {
  const left = px + dx * away - (dx > 0 ? 0 : dx < 0 ? width : width / 2),
    top = py + dy * away - (dy > 0 ? 0 : dy < 0 ? height : height / 2);
  return { left, top, right: left + width, bottom: top + height };
}
function leader(px, py, at) {
  const x2 = Math.min(Math.max(px, at.left + 3), at.right - 3),
    y2 = Math.min(Math.max(py, at.top + 2), at.bottom - 2);
  const length = Math.hypot(x2 - px, y2 - py) || 1;
  return { x1: px + ((x2 - px) * 8) / length, y1: py + ((y2 - py) * 8) / length, x2, y2 };
}
function crowding(at, box, dots, taken, steps) {
  const meets = (other, room = 0) =>
    at.left < other.right + room &&
    at.right > other.left - room &&
    at.top < other.bottom + room &&
    at.bottom > other.top - room;
  let cost = at.left < box.left || at.right > box.right || at.top < box.top || at.bottom > box.bottom ? 200 : 0;
  for (const other of taken) if (meets(other, 1)) cost += 100;
  for (const [x, y] of dots) {
    if (meets({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 })) cost += 12;
    // close enough to another point to be mistaken for its label
    else if (meets({ left: x - 5, right: x + 5, top: y - 5, bottom: y + 5 }, 7)) cost += 1;
  }
  for (const step of steps) if (meets(step)) cost += 3;
  return cost;
}
// The segments of the front line as thin boxes, like those of `reach` for error bars.
function stairs(points) {
  return points.slice(1).flatMap(([x, y], i) => {
    const [u, v] = points[i],
      [left, right] = [Math.min(u, x), Math.max(u, x)],
      [top, bottom] = [Math.min(v, y), Math.max(v, y)];
    return [
      { left: u - 1, right: u + 1, top, bottom },
      { left, right, top: y - 1, bottom: y + 1 },
    ];
  });
}
