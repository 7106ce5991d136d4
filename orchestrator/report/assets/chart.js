// The scatter plot. Observable Plot makes axes, error bars and the front's line; the points on top can be focused.
import { hasRanges, isSelected } from "./brush.js";
import { ANSWER, barValue, kneeTrial, losslessTrial, recommended } from "./choices.js";
import { DATA, frontOf, isMaximized, isPlotted, metricTitle, rankOf, thirdOf, trialOf, vanillaOf } from "./data.js";
import { announce, byId, el, narrow, show, svg } from "./dom.js";
import { decimals, formatMeasured, formatNumber, plural } from "./format.js";
import { writeNames } from "./labels.js";
import { colourOf, mark } from "./marks.js";
import { plot } from "./plot.js";
import { hover, pin } from "./selection.js";
import { change, follow, kindOf, state } from "./state.js";

const MAX_DIM_BARS = 100; // trials; with more, only the front has error bars
const MAX_NAMES = 12; // with more trials, only labelled ones and those on the front have names
const MARGIN = { left: 56, top: 30, right: 18, bottom: 46 };

// The range of a metric over the trials and their errors with a margin; with `near`, over those on the front.
function span(metric, trials, front) {
  const ends = (state.near && front.length ? front : trials).flatMap((trial) => {
    const [value, error] = trial.metrics[metric],
      reach = state.bars ? (error ?? 0) : 0;
    return [value - reach, value + reach];
  });
  const [low, high] = [Math.min, Math.max].map((better) => ends.reduce((a, b) => better(a, b))),
    room = (high - low || Math.abs(high) || 1) * 0.06;
  return [low - room, high + room];
}
// The chart, its controls and its legend fit the first screen.
function chartHeight(width) {
  if (narrow()) return Math.min(360, width * 0.92);
  const above = byId("chart").getBoundingClientRect().top + window.scrollY,
    below = byId("legend").offsetHeight + 30;
  return Math.max(320, Math.min(760, window.innerHeight - above - below));
}
const visible = () =>
  DATA.trials.filter(
    (trial) => isPlotted(trial, state.x, state.y) && !state.hidden.has(kindOf(trial)) && isSelected(trial),
  );

export function drawChart() {
  const trials = visible(),
    front = frontOf(trials, state.x, state.y),
    width = Math.max(280, byId("chart").clientWidth),
    height = chartHeight(width);
  state.scene = { trials, front, place: () => [0, 0], nodes: new Map(), box: null };
  if (trials.length) show("chart", drawScene(trials, front, width, height));
  else {
    const kind = hasRanges() ? "selected" : "visible",
      text = `No ${kind} trial has both ${metricTitle(state.x)} and ${metricTitle(state.y)}.`;
    show("chart", el("p.empty", text));
  }
  state.pins = state.pins.filter((trial) => state.scene.trials.includes(trial));
  state.hovered = null;
  markChoices();
  change("axes");
}
// Lays out the scene, and returns its picture.
function drawScene(trials, front, width, height) {
  const on = new Set(front),
    picture = plotFront(trials, front, width, height),
    [sx, sy] = ["x", "y"].map((axis) => picture.scale(axis).apply),
    place = (trial) => [sx(trial.metrics[state.x][0]), sy(trial.metrics[state.y][0])],
    box = { left: MARGIN.left, right: width - MARGIN.right, top: MARGIN.top, bottom: height - MARGIN.bottom };
  const isInside = ([x, y]) => x >= box.left - 1 && x <= box.right + 1 && y >= box.top - 1 && y <= box.bottom + 1;
  const shown = trials.filter((trial) => isInside(place(trial))),
    ordered = [...shown].sort((a, b) => on.has(a) - on.has(b)),
    size = sizeOf(trials),
    nodes = new Map(ordered.map((trial) => [trial, point(trial, place(trial), on.has(trial), size(trial))]));
  state.scene = { trials: shown, front, place, scaleY: sy, nodes, box };
  picture.setAttribute("role", "group");
  picture.setAttribute(
    "aria-label",
    `${metricTitle(state.y)} against ${metricTitle(state.x)} of ${plural(trials.length, "trial")}, ` +
      `${front.length} of them on the front`,
  );
  picture.append(
    svg("g", { "aria-hidden": "true" }, levelBand(sy, box)),
    names(on),
    svg("g.choices", { "aria-hidden": "true" }),
    svg("g.points", [...nodes.values()]),
  );
  return picture;
}
const hasBars = (trial, on, trials) => state.bars && (on.has(trial) || trials.length <= MAX_DIM_BARS);
// The names of the choices, of other trials on the front, and of others, in this order.
function names(on) {
  const { trials, place, box } = state.scene,
    choices = [recommended(), kneeTrial(), losslessTrial()],
    rank = (trial) => (choices.includes(trial) ? 0 : on.has(trial) ? 1 : 2);
  const named = trials
    .filter((trial) => trial.label || on.has(trial) || trials.length <= MAX_NAMES)
    .sort((a, b) => rank(a) - rank(b) || a.number - b.number)
    .slice(0, MAX_NAMES)
    .map((trial) => ({
      text: trial.label || `trial ${trial.number}`,
      short: String(trial.number),
      at: place(trial),
      gap: choices.includes(trial) ? 17 : 10,
      style: on.has(trial) ? "member-name" : "other-name",
    }));
  return writeNames(named, trials.map(place), box);
}

// Vanilla's own value of a metric that compares images with vanilla's says nothing. The least that a setting can be
// expected to reach is what lossless trials have: the lowest and highest value; null for other metrics.
function losslessLevel(metric) {
  const values = DATA.trials
    .filter((trial) => trial.lossless && trial !== vanillaOf(trial) && isPlotted(trial, state.x, state.y))
    .map((trial) => trial.metrics[metric][0])
    .sort((a, b) => a - b);
  if (!values.length || !DATA.metrics[metric].of_vanilla) return null;
  const [low, high] = [values[0], values.at(-1)],
    ends = [...new Set([low, high].map((value) => formatNumber(value, decimals(Math.abs(high), 2))))];
  return { low, high, text: `lossless trials: ${ends.join(" to ")}` };
}
export function levelNote(metric) {
  const level = losslessLevel(metric),
    vanilla = trialOf(DATA.sweeps[0].vanilla)?.metrics[metric];
  if (!level || !vanilla) return null;
  const own = `${metricTitle(metric)} compares with vanilla's own images, so vanilla's is ${formatMeasured(vanilla)}`;
  return el("p.quiet.level-note", `${own}; ${level.text}, what other random numbers alone give.`);
}
// The level as a band across the chart with its name; null where it is not in the range.
function levelBand(sy, box) {
  const level = losslessLevel(state.y);
  if (!level) return null;
  const [top, bottom] = [sy(level.low), sy(level.high)].sort((a, b) => a - b);
  if (top > box.bottom || bottom < box.top) return null;
  const [start, end] = [Math.max(top - 1, box.top), Math.min(bottom + 1, box.bottom)],
    text = narrow() ? "lossless trials" : level.text,
    isHigh = start < box.top + 18; // its name is below it
  return [
    svg("rect.level", { x: box.left, width: box.right - box.left, y: start, height: end - start }),
    svg("text.level-name", { x: box.right - 3, y: isHigh ? end + 13 : start - 5 }, text),
  ];
}

function plotFront(trials, front, width, height) {
  const on = new Set(front),
    [xs, ys] = [state.x, state.y].map((metric) => span(metric, trials, front)),
    start = xs[isMaximized(state.x) ? 0 : 1],
    worst = ys[isMaximized(state.y) ? 0 : 1],
    isFlat = thirdOf(state.x, state.y) === null, // a front of three objectives is no line in two
    line = isFlat ? frontStairs(front, start, worst) : [],
    ticks = { x: width / 90, y: height / 62 };
  const sweepLine = (kind) => {
    const own = frontOf(
      trials.filter((trial) => kindOf(trial) === kind),
      state.x,
      state.y,
    );
    const style = `sweep-line ${colourOf(kind)}`;
    return Plot.line(frontStairs(own, start, worst), { x: "0", y: "1", className: style, clip: true });
  };
  return plot({
    width,
    height,
    margins: [MARGIN.top, MARGIN.right, MARGIN.bottom, MARGIN.left],
    x: {
      domain: xs,
      label: DATA.metrics[state.x].across,
      labelAnchor: "right",
      labelArrow: "none",
      ticks: ticks.x,
      labelOffset: 40,
    },
    y: { domain: ys, label: DATA.metrics[state.y].up, labelAnchor: "top", labelArrow: "none", ticks: ticks.y },
    marks: [
      Plot.gridX({ ticks: ticks.x, className: "grid" }),
      Plot.gridY({ ticks: ticks.y, className: "grid" }),
      Plot.areaY(line, { x: "0", y1: worst, y2: "1", className: "behind", clip: true }),
      Plot.line(line, { x: "0", y: "1", className: "front-line", clip: true }),
      ...(state.colour === "sweep" && isFlat ? DATA.sweeps.map(({ name }) => sweepLine(name)) : []),
      ...errorBars(
        trials.filter((trial) => !on.has(trial) && hasBars(trial, on, trials)),
        " dim",
      ),
      ...errorBars(
        trials.filter((trial) => on.has(trial) && hasBars(trial, on, trials)),
        "",
      ),
    ],
  });
}
const frontStairs = (front, x0, y0) => {
  const points = front.map((trial) => [trial.metrics[state.x][0], trial.metrics[state.y][0]]),
    corners = points.flatMap(([x, y], i) => [
      [i ? points[i - 1][0] : x0, y],
      [x, y],
    ]);
  return points.length ? [...corners, [points.at(-1)[0], y0]] : [];
};
// One mark for the bars of each colour.
function errorBars(trials, style) {
  const bars = trials.flatMap((trial) => {
    const [[x, ex], [y, ey]] = [trial.metrics[state.x], trial.metrics[state.y]],
      ends = [ex && [x - ex, y, x + ex, y], ey && [x, y - ey, x, y + ey]].filter(Boolean);
    return ends.map(([x1, y1, x2, y2]) => ({ x1, y1, x2, y2, colour: colourOf(kindOf(trial)) }));
  });
  return Object.entries(Object.groupBy(bars, ({ colour }) => colour)).map(([colour, group]) =>
    Plot.link(group, { x1: "x1", y1: "y1", x2: "x2", y2: "y2", className: `error ${colour}${style}`, clip: true }),
  );
}

// How many times as large as usual a point is: the better in the third objective, the larger.
function sizeOf(trials) {
  const third = thirdOf(state.x, state.y),
    measured = third ? trials.filter((trial) => trial.metrics[third]) : [],
    rank = measured.length > 1 ? rankOf(measured, third) : () => 0.5;
  return (trial) => (third ? 0.65 + 0.7 * (trial.metrics[third] ? rank(trial) : 0) : 1);
}
const spoken = (trial) =>
  [state.x, state.y, thirdOf(state.x, state.y)]
    .filter((metric) => metric && trial.metrics[metric])
    .map((metric) => `${metricTitle(metric)} ${formatMeasured(trial.metrics[metric])}`)
    .join(", ");
function point(trial, [px, py], onFront, size) {
  const status = onFront ? ", on the front" : trial.feasible ? "" : ", violates a constraint";
  const attributes = {
    class: trial.feasible ? null : "hollow",
    transform: `translate(${px} ${py})`,
    tabindex: onFront || trial.label ? 0 : -1,
    role: "button",
    "aria-pressed": state.pins.includes(trial),
    "aria-label": `${trial.title}: ${spoken(trial)}${status}`,
    "data-trial": trial.id,
    // not if a pointer set it
    focus: (event) => event.target.matches(":focus-visible") && hover(trial, narrow()),
    blur: () => state.touch || hover(null),
    keydown: (event) => onKey(event, trial),
  };
  const halo = svg("circle.halo", { r: 12 });
  const radius = size * (onFront ? 6.5 : 4.2);
  return svg(`g.point.${onFront ? "front" : "dim"}`, attributes, halo, mark(kindOf(trial), radius));
}
function onKey(event, trial) {
  state.touch = false;
  const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key],
    { trials, place, nodes } = state.scene;
  if (event.key === "Enter" || event.key === " ") pin(trial);
  else if (step) {
    const ordered = [...trials].sort((a, b) => place(a)[0] - place(b)[0]);
    nodes.get(ordered[(ordered.indexOf(trial) + step + ordered.length) % ordered.length]).focus();
  } else return;
  event.preventDefault();
}
// The shown trial nearest to the pointer, if it is near at all.
function nearest(event) {
  const frame = byId("chart").getBoundingClientRect();
  let best = null,
    least = event.pointerType === "touch" ? 34 : 24;
  for (const trial of state.scene.trials) {
    const [px, py] = state.scene.place(trial),
      away = Math.hypot(px - (event.clientX - frame.left), py - (event.clientY - frame.top));
    if (away < least) [best, least] = [trial, away];
  }
  return best;
}
export function followPointer() {
  const chart = byId("chart"),
    on = (name, action) => chart.addEventListener(name, action);
  on("pointerdown", (event) => {
    state.touch = event.pointerType === "touch";
  });
  on("pointermove", (event) => event.pointerType !== "touch" && hover(nearest(event)));
  on("pointerleave", (event) => event.pointerType !== "touch" && hover(null));
  // A finger cannot hover: its first tap on a point shows it, the second one pins it, one beside all points closes it.
  on("click", (event) => {
    const trial = nearest(event);
    if (!state.touch || (trial && trial === state.hovered)) return trial && pin(trial);
    hover(trial, true);
    return trial && announce(`${trial.title}: ${spoken(trial)}`);
  });
}

// The line of the bar and its name; null where it is not on these axes.
function barLine() {
  const value = state.y === ANSWER.metric ? barValue() : null,
    { scaleY, box } = state.scene;
  if (value === null || !box) return null;
  const at = scaleY(value),
    { left, right, top, bottom } = box;
  if (at < top || at > bottom) return null;
  return [
    svg("line.bar-line", { x1: left, x2: right, y1: at, y2: at }),
    svg("text.bar-name", { x: left + 4, y: at - 5 }, "quality bar"),
  ];
}
// Rings in the chart around the recommended setting, the knee and the lossless one, and the line of the bar.
function markChoices() {
  const layer = byId("chart").querySelector(".choices"),
    { trials, place } = state.scene;
  if (!layer) return;
  const ring = (trial, kind, r) =>
    trials.includes(trial) && svg(`circle.ring.${kind}`, { r, transform: `translate(${place(trial).join(" ")})` });
  show(
    layer,
    barLine(),
    ring(losslessTrial(), "lossless", 9.5),
    ring(kneeTrial(), "knee", 11.5),
    ring(recommended(), "fast", 15),
  );
}
follow("bar", markChoices);
