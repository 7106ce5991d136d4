// The scatter plot. Observable Plot draws axes, error bars and the front's line; the points on top can be focused.
const MAX_DIM_BARS = 100; // trials; with more, only the front has error bars
const MARGIN = { left: 56, right: 20, top: 30, bottom: 46 };
let scene = null; // the current layout: { trials, front, place(trial), scaleY(value), width, height, box, nodes }

// The range of a metric over the trials and their errors with a margin; with `near`, over those on the front.
function span(metric, trials, front) {
  const ends = (state.near && front.length ? front : trials).flatMap((trial) => {
    const [value, error] = trial.metrics[metric],
      reach = state.bars ? (error ?? 0) : 0;
    return [value - reach, value + reach];
  });
  const low = ends.reduce((a, b) => Math.min(a, b)),
    high = ends.reduce((a, b) => Math.max(a, b));
  const room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}
// The chart, its controls and its legend fit the first screen.
function chartHeight(width) {
  if (narrow()) return Math.min(360, width * 0.92);
  const above = byId("chart").getBoundingClientRect().top + window.scrollY,
    below = byId("legend").offsetHeight + 30;
  return Math.max(320, Math.min(760, window.innerHeight - above - below));
}
// Vanilla's own value of a metric that compares images with vanilla's says nothing. The least that a setting can be
// expected to reach is what lossless trials have: the lowest and highest value; null for other metrics.
function losslessLevel(metric) {
  const values = DATA.trials
    .filter((trial) => trial.lossless && trial !== vanillaOf(trial) && plotted(trial, state.x, state.y))
    .map((trial) => trial.metrics[metric][0])
    .sort((a, b) => a - b);
  if (!values.length || !DATA.metrics[metric].of_vanilla) return null;
  const [low, high] = [values[0], values.at(-1)],
    ends = [...new Set([low, high].map((value) => formatNumber(value, decimals(Math.abs(high), 2))))];
  return { low, high, text: `lossless trials: ${ends.join(" to ")}` };
}
function levelNote(metric) {
  const level = losslessLevel(metric),
    vanilla = trialOf.get(DATA.sweeps[0].vanilla)?.metrics[metric];
  if (!level || !vanilla) return null;
  const own = `${metricTitle(metric)} compares with vanilla's own images, so vanilla's is ${formatMeasured(vanilla)}`;
  return el("p", { class: "quiet level-note" }, `${own}; ${level.text}, what other random numbers alone give.`);
}
// The level as a band across the chart with its name, and where that name is; null where it is not in the range.
function levelBand(sy, box, points) {
  const level = losslessLevel(state.y);
  if (!level) return null;
  const [top, bottom] = [sy(level.low), sy(level.high)].sort((a, b) => a - b);
  if (top > box.bottom || bottom < box.top) return null;
  const [start, end] = [Math.max(top - 1, box.top), Math.min(bottom + 1, box.bottom)],
    size = { x: box.left, width: box.right - box.left, y: start, height: end - start };
  const text = narrow() ? "lossless trials" : level.text,
    name = corner(text, { ...box, start, end }, points);
  return {
    name,
    marks: [
      svg("rect", { class: "level", ...size }),
      svg("text", { class: "level-name", x: name.left + 3, y: name.bottom - 5 }, text),
    ],
  };
}
const frontStairs = (front, x0, y0) => {
  const corners = front.flatMap((trial, i) => {
    const [x] = trial.metrics[state.x],
      [y] = trial.metrics[state.y];
    return [
      [i ? front[i - 1].metrics[state.x][0] : x0, y],
      [x, y],
    ];
  });
  return front.length ? [...corners, [front[front.length - 1].metrics[state.x][0], y0]] : [];
};

function drawChart() {
  const trials = visible(),
    front = frontOf(trials, state.x, state.y);
  const width = Math.max(280, byId("chart").clientWidth),
    height = chartHeight(width);
  if (!trials.length) {
    scene = { trials, front, place: () => [0, 0], scaleY: () => 0, width, height, nodes: new Map() };
    show(
      "chart",
      el("p", { class: "empty" }, `No visible trial has both ${metricTitle(state.x)} and ${metricTitle(state.y)}.`),
    );
    return scene;
  }
  const xs = span(state.x, trials, front),
    ys = span(state.y, trials, front),
    on = new Set(front);
  const box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const picture = plotFront({ trials, front, on, xs, ys, width, height });
  const [sx, sy] = [picture.scale("x"), picture.scale("y")].map((scale) => scale.apply);
  const place = (trial) => [sx(trial.metrics[state.x][0]), sy(trial.metrics[state.y][0])];
  const reach = (trial) => {
    const [[x, ex], [y, ey]] = [trial.metrics[state.x], trial.metrics[state.y]],
      [px, py] = place(trial);
    return [
      { left: sx(x - ex), right: sx(x + ex), top: py - 1, bottom: py + 1 },
      { left: px - 1, right: px + 1, top: sy(y + ey), bottom: sy(y - ey) },
    ];
  };
  const inside = ([px, py]) => px >= box.left - 1 && px <= box.right + 1 && py >= box.top - 1 && py <= box.bottom + 1;
  scene = {
    trials: trials.filter((trial) => inside(place(trial))),
    front,
    place,
    scaleY: sy,
    width,
    height,
    box,
    reach,
    level: levelBand(sy, box, trials.map(place)),
  };
  const ordered = [...scene.trials].sort((a, b) => on.has(a) - on.has(b));
  scene.nodes = new Map(ordered.map((trial) => [trial, point(trial, place(trial), on.has(trial))]));
  picture.setAttribute("role", "group");
  picture.setAttribute(
    "aria-label",
    `${metricTitle(state.y)} against ${metricTitle(state.x)} of ${plural(trials.length, "trial")}, ` +
      `${front.length} of them on the front`,
  );
  picture.append(
    svg("g", { "aria-hidden": "true" }, scene.level?.marks ?? []),
    labels(scene, on),
    svg("g", { class: "choices", "aria-hidden": "true" }),
    svg("g", { class: "points" }, [...scene.nodes.values()]),
  );
  show("chart", picture);
  return scene;
}
function plotFront({ trials, front, on, xs, ys, width, height }) {
  const worst = sign(state.y) > 0 ? ys[0] : ys[1],
    start = sign(state.x) > 0 ? xs[0] : xs[1],
    line = frontStairs(front, start, worst);
  const own =
    state.colour !== "sweep"
      ? []
      : DATA.sweeps.map(({ name }) =>
          Plot.line(
            frontStairs(
              frontOf(
                trials.filter((trial) => kindOf(trial) === name),
                state.x,
                state.y,
              ),
              start,
              worst,
            ),
            { x: "0", y: "1", className: `sweep-line ${look(name).colour}`, clip: true },
          ),
        );
  const bars = (member) =>
    (state.bars && (member || trials.length <= MAX_DIM_BARS)
      ? trials.filter((trial) => on.has(trial) === member)
      : []
    ).flatMap((trial) => {
      const [[x, ex], [y, ey]] = [trial.metrics[state.x], trial.metrics[state.y]];
      return [ex && [x - ex, y, x + ex, y], ey && [x, y - ey, x, y + ey]]
        .filter(Boolean)
        .map((ends) => ({ ends, kind: look(kindOf(trial)).colour }));
    });
  const error = (member) =>
    Object.entries(Object.groupBy(bars(member), ({ kind }) => kind)).map(([kind, group]) =>
      Plot.link(group, {
        x1: ({ ends }) => ends[0],
        y1: ({ ends }) => ends[1],
        x2: ({ ends }) => ends[2],
        y2: ({ ends }) => ends[3],
        className: `error ${kind}${member ? "" : " dim"}`,
        clip: true,
      }),
    );
  return draw({
    width,
    height,
    marginLeft: MARGIN.left,
    marginRight: MARGIN.right,
    marginTop: MARGIN.top,
    marginBottom: MARGIN.bottom,
    x: {
      domain: xs,
      label: axisName(state.x, "→", "←"),
      labelAnchor: "right",
      labelArrow: "none",
      ticks: width / 90,
      labelOffset: 40,
    },
    y: {
      domain: ys,
      label: axisName(state.y, "↑", "↓"),
      labelAnchor: "top",
      labelArrow: "none",
      ticks: height / 62,
    },
    marks: [
      Plot.gridX({ ticks: width / 90, className: "grid" }),
      Plot.gridY({ ticks: height / 62, className: "grid" }),
      Plot.areaY(line, { x: "0", y1: worst, y2: "1", className: "behind", clip: true }),
      Plot.line(line, { x: "0", y: "1", className: "front-line", clip: true }),
      ...own,
      ...error(false),
      ...error(true),
    ],
  });
}
// A plot without the style element that Observable Plot adds, which the page's policy forbids; style.css has its rules.
function draw(options) {
  const picture = Plot.plot({ className: "plot", ...options });
  for (const style of picture.querySelectorAll("style")) style.remove();
  return picture;
}
function axisName(metric, more, less) {
  const unit = unitOf(metric),
    arrow = DATA.metrics[metric].direction === "maximize" ? more : less;
  const better = DATA.metrics[metric].direction === "maximize" ? "higher" : "lower";
  return `${metricTitle(metric)}${unit ? ` (${unit})` : ""}, ${arrow} ${better} is better`;
}

const spoken = (trial, metric) => `${metricTitle(metric)} ${formatMeasured(trial.metrics[metric])}`;
function point(trial, [px, py], onFront) {
  const classes = ["point", onFront ? "front" : "dim", trial.feasible ? "" : "hollow"].filter(Boolean).join(" ");
  const name =
    `${title(trial)}: ${[state.x, state.y].map((metric) => spoken(trial, metric)).join(", ")}` +
    (onFront ? ", on the front" : trial.feasible ? "" : ", violates a constraint");
  return svg(
    "g",
    {
      class: classes,
      transform: `translate(${px} ${py})`,
      tabindex: onFront || trial.label ? 0 : -1,
      role: "button",
      "aria-pressed": state.pins.includes(trial),
      "aria-label": name,
      "data-trial": trial.id,
      focus: (event) => {
        if (!event.target.matches(":focus-visible")) return; // a pointer set it
        hover(trial);
        if (narrow()) keepInSight();
      },
      blur: () => state.touch || hover(null),
      keydown: (event) => onKey(event, trial),
    },
    svg("circle", { class: "halo", r: 12 }),
    mark(kindOf(trial), onFront ? 6.5 : 4.2),
  );
}

function onKey(event, trial) {
  state.touch = false;
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" || event.key === " ") pin(trial);
  else if (step) {
    const ordered = [...scene.trials].sort((a, b) => scene.place(a)[0] - scene.place(b)[0]);
    scene.nodes.get(ordered[(ordered.indexOf(trial) + step + ordered.length) % ordered.length]).focus();
  } else return;
  event.preventDefault();
}

// The shown trial nearest to the pointer, if it is near at all.
function nearest(event) {
  const frame = byId("chart").getBoundingClientRect();
  let best = null,
    least = event.pointerType === "touch" ? 34 : 24;
  for (const trial of scene?.trials ?? []) {
    const [px, py] = scene.place(trial),
      away = Math.hypot(px - (event.clientX - frame.left), py - (event.clientY - frame.top));
    if (away < least) [best, least] = [trial, away];
  }
  return best;
}
