// The scatter plot: axes, front line, error bars, points and their labels.
const MARGIN = { left: 56, right: 22, top: 34, bottom: 52 };
let scene = null; // the current layout: { trials, front, place(trial), width, height }

function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count), power = 10 ** Math.floor(Math.log10(raw));
  const step = power * [1, 2, 2.5, 5, 10].find((factor) => factor * power >= raw * 0.999);
  const first = Math.ceil(low / step - 1e-9), last = Math.floor(high / step + 1e-9);
  const places = Math.min(8, [0, 1, 2, 3, 4, 5, 6, 7, 8].find((p) => Math.abs(step * 10 ** p - Math.round(step * 10 ** p)) < 1e-6) ?? 8);
  return Array.from({ length: Math.max(0, last - first + 1) }, (_, i) => ({ at: (first + i) * step, name: formatNumber((first + i) * step, places) }));
}
// The range of a metric over the trials and their errors with a margin; with `near`, over the front and labelled trials.
function span(metric, trials, front) {
  const close = state.near ? trials.filter((trial) => front.includes(trial) || trial.label) : trials;
  const ends = (close.length ? close : trials).flatMap((trial) => {
    const [value, error] = trial.metrics[metric], reach = state.bars ? error ?? 0 : 0;
    return [value - reach, value + reach];
  });
  const low = Math.min(...ends), high = Math.max(...ends), room = (high - low || Math.abs(high) || 1) * 0.07;
  return [low - room, high + room];
}

function drawChart() {
  const trials = visible(), front = frontOf(trials, state.x, state.y);
  const width = Math.max(280, byId("chart").clientWidth), height = narrow() ? Math.min(420, width * 1.05) : Math.min(580, width * 0.56);
  if (!trials.length) {
    scene = { trials, front, place: () => [0, 0], width, height };
    show("chart", el("p", { class: "empty" }, `No visible trial has both ${metricTitle(state.x)} and ${metricTitle(state.y)}.`));
    return scene;
  }
  const [x0, x1] = span(state.x, trials, front), [y0, y1] = span(state.y, trials, front);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const sx = (value) => box.left + ((value - x0) / (x1 - x0)) * (box.right - box.left);
  const sy = (value) => box.bottom - ((value - y0) / (y1 - y0)) * (box.bottom - box.top);
  const place = (trial) => [sx(trial.metrics[state.x][0]), sy(trial.metrics[state.y][0])];
  const reach = (trial) => {
    const [[x, ex], [y, ey]] = [trial.metrics[state.x], trial.metrics[state.y]], [px, py] = place(trial);
    return [{ left: sx(x - ex), right: sx(x + ex), top: py - 1, bottom: py + 1 }, { left: px - 1, right: px + 1, top: sy(y + ey), bottom: sy(y - ey) }];
  };
  const inside = ([px, py]) => px >= box.left - 1 && px <= box.right + 1 && py >= box.top - 1 && py <= box.bottom + 1;
  scene = { trials: trials.filter((trial) => inside(place(trial))), front, place, width, height, box, reach };
  const on = new Set(front);
  const ordered = [...scene.trials].sort((a, b) => on.has(a) - on.has(b) || b.number - a.number);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
    "aria-label": `${metricTitle(state.y)} against ${metricTitle(state.x)} of ${plural(trials.length, "trial")}, ${front.length} of them on the front` },
    svg("defs", {}, svg("clipPath", { id: "inside" },
      svg("rect", { x: box.left, y: box.top, width: box.right - box.left, height: box.bottom - box.top }))),
    axes(box, sx, sy, [x0, x1], [y0, y1]),
    svg("g", { "clip-path": "url(#inside)" }, line(front, box), state.bars ? ordered.map((trial) => bars(trial, sx, sy, on.has(trial))) : []),
    labels(scene, on),
    svg("g", { class: "points" }, ordered.map((trial) => point(trial, place(trial), on.has(trial)))));
  show("chart", picture);
  return scene;
}

function axes(box, sx, sy, xs, ys) {
  const wide = box.right - box.left, high = box.bottom - box.top, group = svg("g", { class: "axes", "aria-hidden": "true" });
  for (const { at, name } of ticks(...ys, high / 62)) {
    group.append(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: sy(at), y2: sy(at) }),
      svg("text", { x: box.left - 9, y: sy(at) + 4, "text-anchor": "end" }, name));
  }
  for (const { at, name } of ticks(...xs, wide / 84)) {
    group.append(svg("line", { class: "grid faint", x1: sx(at), x2: sx(at), y1: box.top, y2: box.bottom }),
      svg("text", { x: sx(at), y: box.bottom + 19, "text-anchor": "middle" }, name));
  }
  group.append(svg("line", { class: "base", x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom }),
    svg("text", { class: "name", x: 4, y: 15 }, axisName(state.y, "↑", "↓")),
    svg("text", { class: "name", x: box.right, y: box.bottom + 42, "text-anchor": "end" }, axisName(state.x, "→", "←")));
  return group;
}
function axisName(metric, more, less) {
  const unit = unitOf(metric), { direction } = DATA.metrics[metric];
  const better = direction === "maximize" ? `${more} higher is better` : `${less} lower is better`;
  return [svg("tspan", { class: "strong" }, metricTitle(metric)), svg("tspan", {}, `${unit ? ` (${unit})` : ""}  ${better}`)];
}

// The best y that is to be had at each x: a staircase through the front, and the region behind it.
function line(front, box) {
  if (!front.length) return null;
  const points = front.map(scene.place), worst = sign(state.y) > 0 ? box.bottom : box.top, start = sign(state.x) > 0 ? box.left : box.right;
  let path = `M${start} ${points[0][1]}H${points[0][0]}`;
  for (const [px, py] of points.slice(1)) path += `V${py}H${px}`;
  path += `V${worst}`;
  return [svg("path", { class: "behind", d: `${path}H${start}z` }), svg("path", { class: "line", d: path })];
}

function bars(trial, sx, sy, onFront) {
  const [[x, ex], [y, ey]] = [trial.metrics[state.x], trial.metrics[state.y]];
  const lines = [ex ? `M${sx(x - ex)} ${sy(y)}H${sx(x + ex)}` : "", ey ? `M${sx(x)} ${sy(y - ey)}V${sy(y + ey)}` : ""].join("");
  return lines && svg("path", { class: `error ${look(kindOf(trial)).colour}${onFront ? "" : " dim"}`, d: lines });
}

function point(trial, [px, py], onFront) {
  const classes = ["point", onFront ? "front" : trial.label ? "named" : "dim", trial.feasible ? "" : "hollow"].filter(Boolean).join(" ");
  const name = `${title(trial)}: ${[state.x, state.y].map((m) => `${metricTitle(m)} ${formatMeasured(trial.metrics[m])}`).join(", ")}` +
    (onFront ? ", on the front" : trial.feasible ? "" : ", breaks a constraint");
  return svg("g", { class: classes, transform: `translate(${px} ${py})`, tabindex: onFront || trial.label ? 0 : -1, role: "button",
    "aria-label": name, "data-trial": trial.number, focus: () => hover(trial), blur: () => hover(null), keydown: (event) => onKey(event, trial) },
    svg("circle", { class: "halo", r: 12 }), mark(kindOf(trial), onFront ? 6 : trial.label ? 5.2 : 4.6));
}

function onKey(event, trial) {
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" || event.key === " ") pin(state.pinned === trial ? null : trial);
  else if (step) {
    const ordered = [...scene.trials].sort((a, b) => scene.place(a)[0] - scene.place(b)[0]);
    const next = ordered[(ordered.indexOf(trial) + step + ordered.length) % ordered.length];
    byId("chart").querySelector(`[data-trial="${next.number}"]`).focus();
  } else return;
  event.preventDefault();
}

// The shown trial nearest to the pointer, if it is near at all.
function nearest(event) {
  const frame = byId("chart").getBoundingClientRect();
  let best = null, least = event.pointerType === "touch" ? 34 : 24;
  for (const trial of scene?.trials ?? []) {
    const [px, py] = scene.place(trial), away = Math.hypot(px - (event.clientX - frame.left), py - (event.clientY - frame.top));
    if (away < least) [best, least] = [trial, away];
  }
  return best;
}
