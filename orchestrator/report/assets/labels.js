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

function labels({ trials, front, place, box, reach, level }, on) {
  measure.font = "600 12px system-ui, sans-serif";
  const ringed = [recommended(), kneeTrial(), losslessTrial()],
    barred = state.bars ? trials.filter((trial) => on.has(trial) || trials.length <= MAX_DIM_BARS) : [],
    bar = barLine(),
    dots = trials.map((trial) => [...place(trial), ringed.includes(trial) ? 15 : on.has(trial) ? 8 : 5]),
    steps = [...stairs(front.map(place)), ...barred.flatMap(reach), ...(bar ? [bar.line] : [])],
    taken = [bar?.name, level?.name].filter(Boolean),
    group = svg("g", { class: "labels", "aria-hidden": "true" });
  const named = trials.filter((trial) => trial.label || on.has(trial));
  for (const trial of named.sort((a, b) => on.has(b) - on.has(a) || a.number - b.number)) {
    const text = trial.label ? shortened(trial.label, 26) : `trial ${trial.number}`,
      [px, py] = place(trial);
    const size = { width: measure.measureText(text).width + 6, height: 16 };
    let best = null;
    const start = ringed.includes(trial) ? 17 : 9; // beyond the ring of a choice
    for (const [ring, away] of [start, 20, 34, 50, 70].entries()) {
      for (const [turn, [dx, dy]] of SIDES.entries()) {
        const at = frame(px, py, dx, dy, dx && dy ? away * 0.75 : away, size);
        let cost = crowding(at, box, dots, taken, steps) + ring * 2.5 + turn * 0.1;
        if (ring && (!best || cost < best.cost)) cost += crossing(leader(px, py, at), [px, py], dots, taken);
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
// Where the name of a band across the chart covers the fewest points: above or below it, at its right or left end.
function corner(text, { left, right, top, bottom, start, end }, points) {
  measure.font = "600 12px system-ui, sans-serif";
  const width = measure.measureText(text).width,
    frames = [start - 18, end].flatMap((y) => [right - width, left].map((x) => [x, y])),
    dots = points.map(([x, y]) => [x, y, 10]);
  const places = frames.map(([x, y]) => ({ left: x, right: x + width, top: y, bottom: y + 18 })),
    costs = places.map((at) => crowding(at, { left, right: right + 1, top, bottom }, dots, [], []));
  return places[costs.indexOf(Math.min(...costs))];
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
  for (const [x, y, r] of dots) {
    if (meets({ left: x - r, right: x + r, top: y - r, bottom: y + r })) cost += 12;
    // close enough to another point to be mistaken for its label
    else if (meets({ left: x - r, right: x + r, top: y - r, bottom: y + r }, 7)) cost += 1;
  }
  for (const step of steps) if (meets(step)) cost += 3;
  return cost;
}
// The cost of a leader line that runs over other points or labels than its own.
function crossing({ x1, y1, x2, y2 }, [px, py], dots, taken) {
  const along = Array.from({ length: 9 }, (_, i) => [x1 + ((x2 - x1) * i) / 8, y1 + ((y2 - y1) * i) / 8]);
  const meets = (test) => along.some(([x, y]) => test(x, y));
  let cost = 0;
  for (const [cx, cy, r] of dots)
    if ((cx !== px || cy !== py) && meets((x, y) => Math.hypot(x - cx, y - cy) < r + 2)) cost += 10;
  for (const at of taken)
    if (meets((x, y) => x > at.left && x < at.right && y > at.top && y < at.bottom)) cost += 10;
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
