// The details beside the chart: of the trial under the pointer, of a pinned one, of several side by side, or of the
// recommended one.
import { hasRanges, isSelected } from "./brush.js";
import { BAR, kneeTrial, recommended } from "./choices.js";
import { DATA, isPlotted, metricNote, metricTitle, sheetOf, thirdOf } from "./data.js";
import { button, byId, closeButton, copyButton, el, narrow, scrolling, show, terms } from "./dom.js";
import { duration, percent, plural, shortened } from "./format.js";
import { icon } from "./marks.js";
import { FULL, isFull, pin, unpin } from "./selection.js";
import { change, follow, kindOf, state } from "./state.js";
import { difference, withError } from "./values.js";

function drawDetails() {
  const trial = state.hovered ?? (state.pins.length === 1 ? state.pins[0] : null),
    areSeveral = !trial && state.pins.length > 1,
    byDefault = areSeveral || narrow() ? null : (recommended() ?? (BAR ? null : kneeTrial())),
    shown = trial ?? byDefault;
  byId("card").hidden = !shown;
  byId("pins").hidden = !areSeveral;
  byId("aside").classList.toggle("sheet", Boolean(trial || areSeveral));
  for (const [other, node] of state.scene.nodes)
    node.classList.toggle("active", other === trial || state.pins.includes(other));
  if (shown) drawCard(shown, !trial);
  if (areSeveral) drawPins();
}
// After a tap or a key. On a phone the details lie over the page's lower part: scroll until the plot is above them.
function keepInSight() {
  const aside = byId("aside"),
    below = byId("chart").getBoundingClientRect().bottom - aside.getBoundingClientRect().top;
  if (!aside.classList.contains("sheet")) return;
  if (!narrow()) aside.querySelector("#aside > :not([hidden]) header").scrollIntoView({ block: "nearest" });
  else if (below > 0) window.scrollBy({ top: below, behavior: scrolling() });
}
follow("axes", drawDetails);
follow("bar", drawDetails);
follow("selection", (isNear) => {
  drawDetails();
  if (isNear && (state.touch || narrow())) keepInSight();
});

// What the card is, or how to pin its trial.
function eyebrow(trial, byDefault) {
  if (byDefault) return el("p.eyebrow", BAR ? "Recommended" : "Knee of the front");
  if (state.pins.includes(trial)) return el("p.eyebrow", "Pinned");
  if (isFull()) return el("p.eyebrow.full", FULL);
  return state.touch ? button(".tap", "Tap to pin", () => pin(trial)) : el("p.eyebrow", "Click to pin");
}
function drawCard(trial, byDefault) {
  const isPinned = state.pins.includes(trial),
    config = DATA.configs[trial.digest],
    rest = DATA.axes.names.filter((name) => name !== state.x && name !== state.y);
  byId("card").dataset.trial = trial.id;
  show(
    "card",
    el(
      "header",
      eyebrow(trial, byDefault),
      icon(trial),
      el("h3", trial.title),
      (isPinned || (state.touch && !byDefault)) && closeButton("Close", () => unpin(trial)),
    ),
    el("p.front-status", frontStatus(trial)),
    trial.check && el("p.description", trial.check),
    trial.label !== trial.description && el("p.description", trial.description),
    trial.explanation && el("p.quiet", { id: "explanation" }, trial.explanation),
    thumbnail(trial),
    values(trial, [state.x, state.y], "main"),
    values(trial, rest, "rest"),
    el(
      "div.actions",
      copyButton(config, "Copy setting"),
      el("span.quiet", `${plural(trial.images, "image")}, ${duration(trial.seconds)}`),
    ),
    (isPinned || byDefault) && el("details", el("summary", "Setting as YAML"), el("pre", { tabindex: 0 }, config)),
  );
}
function frontStatus(trial) {
  const isMember = state.scene.front.includes(trial),
    isPair = !DATA.axes.z && state.x === DATA.axes.x && state.y === DATA.axes.y,
    isOfSweep = isPair || thirdOf(state.x, state.y) !== null,
    isFirstView = isOfSweep && !state.hidden.size && !hasRanges();
  const outside = () => {
    if (!trial.feasible) return `violates ${trial.violated.join("; ")}`;
    if (!isSelected(trial)) return "not among the selected trials";
    if (state.hidden.has(kindOf(trial))) return `not in the plot, which hides ${kindOf(trial)}`;
    return isPlotted(trial, state.x, state.y) ? "behind the front" : "not in the plot";
  };
  const share = trial.confidence !== null && isFirstView && percent(trial.confidence);
  return [
    trial.lossless && "lossless · ",
    isMember ? "on the front" : outside(),
    share && `; ${isMember ? "stays on it" : "on it"} in ${share} of draws from the errors`,
  ];
}
function thumbnail(trial) {
  const found = DATA.thumbnails[trial.images_of];
  if (!found) return null;
  const { uri: src, width, height } = found,
    alt = `Images generated with ${trial.title}`;
  return el("figure", el("img", { src, width, height, alt, class: width < 96 ? "pixels" : null }));
}
const metricName = (name) => el("span", { title: metricNote(name) }, metricTitle(name));
function values(trial, names, style) {
  const entry = (name) => {
    const { unit } = DATA.metrics[name];
    return [metricName(name), [withError(trial, name), unit && el("span.unit", ` ${unit}`)]];
  };
  return terms(`.${style}`, names.filter((name) => trial.metrics[name]).map(entry));
}

// Pinned trials side by side: the keys in which the settings differ, the objectives and the images' quality, the rest.
function drawPins() {
  const { pins } = state,
    measured = (name) => pins.some((trial) => trial.metrics[name]),
    names = [...new Set([state.x, state.y, ...DATA.axes.names])].filter(measured),
    isFirst = (name) => name === state.x || name === state.y || DATA.metrics[name].quality;
  const rows = (name, cells) =>
    el(
      "tbody",
      el("tr.group", el("th", { scope: "rowgroup", colspan: pins.length }, name)),
      el(
        "tr",
        cells.map((cell) => el("td", cell)),
      ),
    );
  const metricRows = (name) =>
    rows(
      metricTitle(name),
      pins.map((trial) => pinnedValue(trial, name)),
    );
  const part = (name, bodies) =>
    bodies.length ? [el("tbody", el("tr.part", el("th", { colspan: pins.length }, name))), bodies] : null;
  const differing = DATA.keys
    .map((key, i) => [key, pins.map((trial) => trial.flat[i])])
    .filter(([, found]) => new Set(found.map(String)).size > 1)
    .map(([key, found]) => rows(key, found.map(keyValue)));
  const heading = (trial) =>
    el(
      "th",
      { scope: "col", "data-trial": trial.id },
      icon(trial),
      el("span", shortened(trial.title, 40)),
      closeButton(`Release ${trial.title}`, () => unpin(trial)),
    );
  const table = el(
    "table.pins",
    el("thead", el("tr", pins.map(heading))),
    part("Parameters that differ", differing),
    part("Metrics", names.filter(isFirst).map(metricRows)),
    part("Other metrics", names.filter((name) => !isFirst(name)).map(metricRows)),
  );
  show(
    "pins",
    el(
      "header",
      el("h3", `${pins.length} pinned settings`),
      closeButton("Close all", () => unpin()),
    ),
    el("p.quiet", "Bold: not within error of the first one (95\u00a0%)."),
    pins.every(sheetOf) && button(".link", "compare their images", () => change("compare", pins)),
    el("div.scroll", table),
  );
}
const keyValue = (value) =>
  value === null ? "–" : typeof value === "number" ? Number(value.toPrecision(4)) : shortened(String(value), 40);
function pinnedValue(trial, name) {
  const [first] = state.pins;
  if (!trial.metrics[name]) return "–";
  const isApart = trial !== first && first.metrics[name] && difference(trial, first, name).significant;
  return el(isApart ? "strong" : "span", withError(trial, name));
}
