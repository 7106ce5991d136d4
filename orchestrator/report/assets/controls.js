// What the chart shows: its axes and colours, and its legend, which hides kinds of trials.
import { asSvg, downloadButton } from "./downloads.js";
import { ANSWER, BAR } from "./choices.js";
import { drawChart, levelNote } from "./chart.js";
import { DATA, isPlotted, metricChoices, metricTitle, thirdOf } from "./data.js";
import { button, byId, choice, el, iconOf, show, svg, toggle } from "./dom.js";
import { kinds, mark } from "./marks.js";
import { kindOf, state } from "./state.js";

// Draws legend and chart again.
export function redraw() {
  drawLegend();
  drawChart();
}
export function drawControls() {
  const set = (key) => (value) => {
    state[key] = value;
    if (key === "colour") state.hidden.clear();
    redraw();
  };
  const zoom = toggle("zoom to front", state.near, set("near"));
  zoom.title = "Axes that span only the trials on the front; others may lie outside";
  show(
    "controls",
    choice("x", metricChoices, state.x, set("x")),
    choice("y", metricChoices, state.y, set("y")),
    choice(
      "colour",
      Object.keys(DATA.looks).map((name) => [name, name]),
      state.colour,
      set("colour"),
    ),
    toggle("error bars", state.bars, set("bars")),
    zoom,
  );
}
function drawLegend() {
  const shown = new Set(DATA.trials.filter((trial) => isPlotted(trial, state.x, state.y)).map(kindOf)),
    ring = (kind, text) => el("span", iconOf(svg(`circle.ring.${kind}`, { r: 6 })), text),
    third = thirdOf(state.x, state.y),
    hasHollow = DATA.trials.some((trial) => trial.state === "complete" && !trial.feasible);
  show(
    "legend",
    kinds()
      .filter((kind) => shown.has(kind))
      .map(kindButton),
    el(
      "span.quiet",
      BAR && ring("fast", "recommended"),
      ring("knee", "knee"),
      ANSWER.lossless && ring("lossless", ANSWER.best_lossless),
      hasHollow && "hollow: violates a constraint",
      third && `filled: on the front of all three; size: ${metricTitle(third)}, larger is better`,
      !hasHollow && !third && "large: on the front",
    ),
    downloadButton(".link.quiet", "SVG", "front.svg", "image/svg+xml", () => asSvg(byId("chart").firstChild), {
      title: "Download the chart",
    }),
    levelNote(state.x),
    levelNote(state.y),
  );
}
function kindButton(kind) {
  const flip = () => {
    if (!state.hidden.delete(kind)) state.hidden.add(kind);
    redraw();
    byId("legend")
      .querySelector(`[data-kind="${CSS.escape(kind)}"]`)
      ?.focus();
  };
  const { about } = DATA.looks[state.colour][kind],
    attributes = { "data-kind": kind, "aria-pressed": !state.hidden.has(kind), title: about };
  return button(".kind", [iconOf(mark(kind, 5)), kind], flip, attributes);
}
