// What the search found: parallel coordinates, slices per parameter, importances and the hypervolume.
import { keepOne } from "../assets/address.js";
import { clearRanges, hasRanges, isSelected, rangeOf, setRange } from "../assets/brush.js";
import { redraw } from "../assets/controls.js";
import { DATA, frontOf, isPlotted, metricChoices, metricTitle, several } from "../assets/data.js";
import { button, choice, el, show, svg } from "../assets/dom.js";
import { formatMeasured, formatTick, plural, shortened } from "../assets/format.js";
import { picture } from "../assets/plot.js";
import { follow } from "../assets/state.js";

const MAX_KEYS = 10,
  MAX_TEXT = 40, // letters of a choice
  LETTER = 6.5, // pixels across a letter of a tick
  MAX_LINES = 4, // of names below a slice
  RANGE = 18, // pixels across a marked range
  NO_VALUE = -0.14; // the height of a trial without a value on a parallel coordinate
const IMPORTANCES =
  "How much each searched parameter matters for being among the best quarter of the trials (Optuna's PED-ANOVA), of " +
  "those that were measured on all images.";
const VOLUMES =
  "Trials in the order in which they finished; the reference point is a tenth of the range beyond the worst trials.";
const HOW_TO_SELECT =
  "One line per trial; bold: on the front. Drag along an axis to select the trials in a range, which the plot above " +
  "and the table then show; click the axis to release it. The table's filter does the same from the keyboard.";
const endOf = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);
const widthOf = (element) => Math.max(280, element.clientWidth);
const ends = (values) => [Math.min(...values), Math.max(...values)];
const isBent = ([low, high]) => low > 0 && high / low > 100; // by logarithm
const isText = (values) => values.some((value) => typeof value !== "number");

export function draw(host, { importances, hypervolumes }) {
  const trials = DATA.trials.filter((trial) => isPlotted(trial, DATA.axes.x, DATA.axes.y)),
    varied = variedKeys(trials),
    front = new Set(frontOf(trials, DATA.axes.x, DATA.axes.y)),
    isEnough = trials.length > 2 && varied.length > 0,
    region = { id: "parallel", tabindex: 0, role: "region", "aria-label": "Parallel coordinates" },
    [parallel, slices] = [el("div.scroll", region), el("div", { id: "slices" })],
    [shares, volumes] = ["importances", "volumes"].map((id) => el("div", { id }));
  const panel = (name, about, body) => el("div.panel.plotted", el("h3", name), about && el("p.quiet", about), body);
  const slice = { metric: DATA.axes.y };
  keepOne("metric", slice, DATA.axes.names);
  const drawOwnSlices = () => drawSlices(slices, slice.metric, trials, varied, front),
    metrics = choice("metric", metricChoices, slice.metric, (metric) => {
      slice.metric = metric;
      drawOwnSlices();
    }),
    selection = el("div.controls", { id: "selection" }),
    sliceBar = el("div.bar", el("h3", "Slices per parameter"), el("div.controls", { id: "slice-controls" }, metrics));
  show(
    host,
    panel("Parallel coordinates", HOW_TO_SELECT, [selection, parallel]),
    isEnough && el("div.panel.plotted", sliceBar, slices),
    el(
      "div.pair",
      !several && panel("Importances", IMPORTANCES, shares),
      panel("Hypervolume over images spent", VOLUMES, volumes),
    ),
  );
  const none = "Not enough trials: fewer than three complete ones differ in a parameter.";
  const drawParallel = () => {
    const unselect = () => {
      clearRanges();
      redraw();
    };
    show(parallel, coordinates(widthOf(parallel), trials, varied, front));
    const words = `${trials.filter(isSelected).length} of ${plural(trials.length, "trial")} selected`;
    show(selection, hasRanges() && [el("span", words), button(".link", "show all", unselect)]);
  };
  if (isEnough) {
    drawParallel();
    follow("axes", drawParallel);
    drawOwnSlices();
  } else show(parallel, el("p.empty", none));
  if (!several) drawImportances(shares, importances);
  drawHypervolumes(volumes, hypervolumes);
}
// The keys in which trials differ: those of most trials first.
function variedKeys(trials) {
  const isShort = (value) => value !== null && (typeof value !== "string" || value.length < MAX_TEXT);
  return DATA.keys
    .map((key, i) => ({ key, i, values: trials.map((trial) => trial.flat[i]).filter(isShort) }))
    .filter(({ values }) => new Set(values).size > 1 && values.length > 2)
    .sort((a, b) => b.values.length - a.values.length)
    .slice(0, MAX_KEYS);
}
// A scale to 0..1 of numbers, by logarithm if they span two orders of magnitude, or of choices in alphabetical order.
function unitScale(values, direction = "maximize") {
  if (isText(values)) {
    const choices = [...new Set(values.map(String))].sort(),
      at = (value) => (choices.indexOf(String(value)) + 0.5) / choices.length;
    return { at, marks: choices.map((name) => [at(name), name]) };
  }
  const [low, high] = ends(values),
    bend = isBent([low, high]) ? Math.log : (value) => value,
    share = (value) => (bend(value) - bend(low)) / (bend(high) - bend(low) || 1),
    at = direction === "maximize" ? share : (value) => 1 - share(value);
  return { at, marks: [low, high].map((value) => [at(value), formatTick(value)]) };
}
function coordinates(frameWidth, trials, varied, front) {
  const { x, y } = DATA.axes;
  const parameters = varied.map(({ key, i, values }) => ({
    key,
    name: key.replace(".", ".\n"),
    scale: unitScale(values),
    of: (trial) => trial.flat[i],
  }));
  const objectives = [x, y].map((metric) => {
    const of = (trial) => trial.metrics[metric][0],
      name = `${metricTitle(metric)}\n(best on top)`;
    return { key: metric, name, scale: unitScale(trials.map(of), DATA.metrics[metric].direction), of };
  });
  const dimensions = [...parameters, ...objectives];
  const height = (trial, { of, scale }) => (of(trial) === null ? NO_VALUE : scale.at(of(trial))),
    course = (trial) => dimensions.map((dimension, place) => ({ trial, place, at: height(trial, dimension) }));
  const styleOf = (trial) => (!isSelected(trial) ? " faded" : front.has(trial) ? " member" : "");
  const lines = (style) =>
    Plot.line(trials.filter((trial) => styleOf(trial) === style).flatMap(course), {
      x: "place",
      y: "at",
      z: ({ trial }) => trial.id,
      curve: "monotone-x",
      className: `course${style}`,
      title: ({ trial }) => trial.title,
    });
  const marks = dimensions.flatMap(({ scale }, place) =>
    scale.marks.map(([at, name]) => ({ place, at, name: shortened(name, 14) })),
  );
  const text = `Parallel coordinates of ${plural(trials.length, "trial")}: `,
    place = (_, i) => i,
    style = "pole-mark";
  const plotted = picture(text + [...varied.map(({ key }) => key), x, y].join(", "), {
    width: Math.max(frameWidth, dimensions.length * 96),
    height: 340,
    margins: [42, 70, 22, 70],
    x: { domain: [0, dimensions.length - 1], axis: null },
    y: { domain: [-0.18, 1.04], axis: null },
    marks: [
      Plot.ruleX(dimensions, { x: place, className: "pole" }),
      ...[" faded", "", " member"].map(lines),
      Plot.text(dimensions, { x: place, y: 1.04, dy: -16, text: "name", className: "pole-name" }),
      Plot.text(marks, { x: "place", y: "at", dx: 6, text: "name", textAnchor: "start", className: style }),
      Plot.text(["no value"], { x: 0, y: NO_VALUE, dx: -8, text: String, textAnchor: "end", className: style }),
    ],
  });
  plotted.append(svg("g.ranges", dimensions.map((dimension, i) => rangeMark(plotted, dimension, i, trials))));
  return plotted;
}
// Where the pointer marks a range of a parallel coordinate, and the range that it has.
function rangeMark(plotted, { key, of, scale }, i, trials) {
  const [across, up] = ["x", "y"].map((axis) => plotted.scale(axis)),
    x = across.apply(i) - RANGE / 2,
    heightOf = (value) => up.apply(scale.at(value));
  const bar = svg("rect.range", { x, width: RANGE }),
    [top, bottom] = [up.apply(1) - RANGE / 2, up.apply(0) + RANGE / 2],
    area = svg("rect.range-area", { x, width: RANGE, y: top, height: bottom - top, "data-key": key });
  const mark = (from, to) => {
    bar.setAttribute("y", Math.min(from, to) - RANGE / 4);
    bar.setAttribute("height", Math.abs(from - to) + RANGE / 2);
  };
  const at = (event) => event.clientY - plotted.getBoundingClientRect().top;
  let start = null;
  area.addEventListener("pointerdown", (event) => {
    area.setPointerCapture(event.pointerId);
    start = at(event);
  });
  area.addEventListener("pointermove", (event) => start !== null && mark(start, at(event)));
  area.addEventListener("pointerup", (event) => {
    const ends = [start, at(event)].sort((a, b) => a - b),
      isInside = (value) => value !== null && heightOf(value) >= ends[0] && heightOf(value) <= ends[1];
    setRange(key, ends[1] - ends[0] < 3 ? [] : trials.map(of).filter(isInside));
    redraw();
  });
  if (rangeOf(key)) mark(...rangeOf(key).map(heightOf));
  return [bar, area];
}
function drawSlices(host, metric, trials, varied, front) {
  const columns = Math.max(1, Math.floor(widthOf(host) / 300)),
    width = Math.floor((widthOf(host) - 14 * (columns - 1)) / columns),
    measured = trials.filter((trial) => trial.metrics[metric]);
  const slice = ({ key, i, values }) => {
    const text = isText(values),
      own = measured.filter((trial) => trial.flat[i] !== null);
    const dots = (member) =>
      Plot.dot(
        own.filter((trial) => front.has(trial) === member),
        {
          x: (trial) => (text ? String(trial.flat[i]) : trial.flat[i]),
          y: (trial) => trial.metrics[metric][0],
          r: member ? 4.5 : 3,
          className: member ? "dot member" : "dot",
          title: (trial) => `${trial.title}: ${formatMeasured(trial.metrics[metric])}`,
        },
      );
    const room = (width - 68) / LETTER / new Set(values).size, // letters of a name that has a line of its own
      longest = Math.max(...values.map((value) => String(value ?? "").length)),
      lines = text ? Math.min(MAX_LINES, Math.ceil(longest / room)) : 1,
      letters = Math.max(11, Math.floor(room * lines)),
      tickFormat = (name, place) => "\n".repeat(place % lines) + endOf(name, letters),
      choices = { type: "point", tickFormat },
      scale = text ? choices : { type: isBent(ends(values)) ? "log" : "linear" };
    const shown = picture(`${metricTitle(metric)} against ${key}`, {
      width,
      height: 190 + 12 * (lines - 1),
      margins: [12, 20, 32 + 12 * (lines - 1), 48],
      x: { label: null, ticks: 4, ...scale },
      y: { label: null, ticks: 5 },
      marks: [Plot.gridY({ ticks: 5, className: "grid" }), dots(false), dots(true)],
    });
    return el("figure", shown, el("figcaption", `${metricTitle(metric)} against `, el("code", key)));
  };
  host.style.setProperty("--columns", columns);
  show(host, varied.map(slice));
}
function drawImportances(host, { trials, needed, metrics }) {
  const rows = Object.entries(metrics).flatMap(([metric, shares]) =>
    Object.entries(shares).map(([key, share]) => ({ metric: metricTitle(metric), key, share })),
  );
  const few = `the search has ${plural(trials, "measured trial")} with parameters, importances need ${needed}.`;
  if (!rows.length) return show(host, el("p.quiet", `Not enough trials: ${few}`));
  const sentence = ({ metric, key, share }) => `${key} ${Math.round(100 * share)} % for ${metric}`;
  const plotted = picture(`Importance of the searched parameters: ${rows.map(sentence).join(", ")}`, {
    width: widthOf(host),
    height: 76 + 26 * new Set(rows.map(({ key }) => key)).size,
    margins: [30, 20, 44, 200],
    x: { domain: [0, 1], label: "share of the importance", labelOffset: 38, ticks: 4 },
    y: { label: null, tickFormat: (key) => endOf(key, 34) },
    fx: { label: null },
    marks: [
      Plot.barX(rows, { x: "share", y: "key", fx: "metric", className: "importance", sort: { y: "-x" } }),
      Plot.ruleX([0]),
    ],
  });
  return show(host, plotted);
}
function drawHypervolumes(host, curves) {
  const rows = curves.map(({ name, images, volume }) => images.map((at, i) => ({ name, at, volume: volume[i] })));
  const ends = rows.map((own) => own.at(-1));
  if (rows.flat().length < 2) return show(host, el("p.quiet", "Not enough trials."));
  const sentence = ({ name, images, volume }) =>
    `${name} reaches ${formatTick(volume.at(-1))} after ${plural(images.at(-1), "image")}`;
  const line = (own, i) => Plot.line(own, { x: "at", y: "volume", curve: "step-after", className: `volume c${i % 8}` }),
    name = { x: "at", y: "volume", text: "name", textAnchor: "start", dx: 6, className: "pole-mark" };
  const plotted = picture(`Hypervolume over images spent: ${curves.map(sentence).join("; ")}`, {
    width: widthOf(host),
    height: 268,
    margins: [26, several ? 110 : 20, 44, 62],
    x: { label: "images spent", labelOffset: 38, ticks: widthOf(host) / 90 },
    y: { label: "hypervolume", zero: true, ticks: 5 },
    marks: [
      Plot.gridY({ ticks: 5, className: "grid" }),
      ...rows.map(line),
      ...(several ? [Plot.text(ends, name)] : []),
    ],
  });
  return show(host, plotted);
}
