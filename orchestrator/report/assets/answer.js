// The recommendation: the best setting within a quality bar that a slider moves, the best lossless one and the knee.
import { ANSWER, BAR, barText, barValue, kneeTrial, limitText, losslessTrial, recommended, stepAt } from "./choices.js";
import { DATA, metricTitle, vanillaOf } from "./data.js";
import { button, byId, copyButton, el, show, terms } from "./dom.js";
import { capitalised, decimals, formatNumber, percent, plural } from "./format.js";
import { icon } from "./marks.js";
import { reveal } from "./selection.js";
import { change, state } from "./state.js";
import { difference, formatChange, withError } from "./values.js";

const MAX_WARNINGS = 2;
const FILES = { "--lossless": "exact.yaml", "--knee": "knee.yaml" }; // each choice is written to a file of its own

function command(option) {
  const { pareto, generate, config } = ANSWER.commands,
    file = FILES[option] || config;
  return `${pareto} ${option} --config ${file}\n${generate.replace(` --config ${config}`, ` --config ${file}`)}`;
}
export function drawAnswer() {
  const heading = el("h2", "Recommended setting");
  if (!ANSWER.commands) return show("answer", heading, el("p.quiet", "No setting is on the front yet."));
  const name = metricTitle(ANSWER.metric);
  show(
    "answer",
    heading,
    warnings(),
    BAR ? barControls(name) : el("p.quiet", `No quality bar: ${name} says nothing about the images.`),
    el("div.choice-part", { id: "lossless" }),
    el("div.choice-part", { id: "knee" }),
  );
  if (BAR) drawRecommendation();
  drawChoice("lossless", capitalised(ANSWER.best_lossless), losslessTrial(), {
    option: "--lossless",
    nothing: ANSWER.has_speed && `No measured lossless setting is surely ${ANSWER.better} than vanilla.`,
  });
  drawBasis();
  const share = ANSWER.knee?.confidence;
  return drawChoice("knee", "Knee of the front", kneeTrial(), {
    option: "--knee",
    nothing: "This front has no knee: no setting is on the better side of the line between its ends.",
    sure: () => sureness(`the knee in ${percent(share)} of draws`, share),
  });
}
// What makes the speeds of all choices less certain. Setup has all of them.
function warnings() {
  const shown = ANSWER.warnings.slice(0, MAX_WARNINGS),
    left = ANSWER.warnings.length - shown.length;
  return [
    shown.map((text) => el("p.warning", `Note: ${text}.`)),
    left > 0 && el("p.warning", el("a", { href: "#setup" }, `${plural(left, "more note")} on speeds`)),
  ];
}
function barControls(name) {
  const relation = BAR.relation === "<=" ? "at most" : "at least";
  const move = (event) => {
    state.bar = Number(event.target.value);
    drawRecommendation();
    drawBasis();
    change("bar");
  };
  const { low: min, high: max, step } = BAR,
    value = state.bar,
    slider = { type: "range", id: "bar", min, max, step, value, "aria-describedby": "bar-text", input: move };
  return [
    el("div.bar-row", el("label", { for: "bar" }, `${name} ${relation}`), el("output", { id: "bar-text", for: "bar" })),
    el("input", slider),
    el("div", { id: "fastest" }),
  ];
}
function drawRecommendation() {
  const trial = recommended(),
    share = stepAt(state.bar)[1],
    limit = limitText(state.bar),
    text = command(`--best '${limit}'`);
  show("bar-text", barWords());
  byId("bar").setAttribute("aria-valuetext", `${metricTitle(ANSWER.metric)}${limit.slice(ANSWER.metric.length)}`);
  if (!trial) return show("fastest", el("p.quiet", "No setting is within this bar."));
  return show(
    "fastest",
    choiceHead(`${capitalised(ANSWER.best)} within it`, copyButton(text, "Copy command")),
    choiceLines(trial),
    share !== null && sureness(`within the bar in ${percent(share)} of draws`, share),
    gain(trial),
    commandBox(text),
  );
}
function barWords() {
  const value = barValue(),
    { unit } = DATA.metrics[ANSWER.metric];
  if (!BAR.relative) return [barText(state.bar), unit && unit !== "×" && unit.length < 9 && ` ${unit}`];
  const own = value !== null && el("span.quiet", ` = ${formatNumber(value, decimals(value, 3))}`);
  return [`${barText(state.bar)} × vanilla`, own];
}
// A choice that the slider does not move. nothing: the sentence without one; without that, it has no place.
function drawChoice(id, heading, trial, { option, nothing, sure }) {
  byId(id).hidden = !trial && !nothing;
  if (byId(id).hidden) return null;
  if (!trial) return show(id, choiceHead(heading), el("p.quiet", nothing));
  const action = copyButton(command(option), "Copy command");
  return show(id, choiceHead(heading, action), choiceLines(trial), sure?.(), gain(trial));
}
const choiceHead = (heading, action) => el("div.choice-head", el("h3", heading), action);
// Name, setting, speed and the change of quality against vanilla.
function choiceLines(trial) {
  const { x, y } = DATA.axes,
    { unit } = DATA.metrics[x],
    vanilla = vanillaOf(trial),
    base = vanilla !== trial && vanilla?.metrics[y]?.[0],
    change = base ? formatChange(difference(trial, vanilla, y), base) : null,
    isVanillas = base && hasVanillas(trial, y),
    kind = isVanillas ? ", vanilla’s (lossless)" : change && ", change",
    description = trial.label === trial.description ? null : trial.description,
    link = button(".link", trial.title, () => reveal(trial), { title: "Show in the plot" });
  return [
    el("p.chosen", { "data-trial": trial.id }, icon(trial), link),
    description && el("p.description", { title: trial.explanation }, description),
    terms(".headline", [
      [metricTitle(x), [withError(trial, x), unit.length === 1 && el("span.unit", ` ${unit}`)]],
      [[metricTitle(y), kind], isVanillas || !change ? withError(trial, y) : change],
    ]),
  ];
}
// By theorem: a lossless setting's images have vanilla's distribution, on which alone the metric depends.
const hasVanillas = (trial, metric) => trial.lossless && DATA.metrics[metric].of_distribution;
// How the settings were chosen, below the chart, which shares the first screen with them.
function drawBasis() {
  const line = (heading, basis) => basis?.length > 0 && el("p.quiet", `${capitalised(heading)}: ${basis.join("; ")}.`);
  show(
    "basis",
    BAR && line(`${ANSWER.best} within the bar`, stepAt(state.bar)[2]),
    line(ANSWER.best_lossless, ANSWER.lossless?.basis),
  );
}
const sureness = (text, share) =>
  el("p.sure", el("meter", { min: 0, max: 1, value: share.toFixed(3), "aria-hidden": "true" }), el("span", text));
// How sure it is that a trial is better than vanilla in the first metric; null for vanilla.
function gain(trial) {
  const share = ANSWER.gains[trial.id];
  if (share === undefined) return null;
  return sureness(`${ANSWER.better} than vanilla in ${percent(share)} of draws`, share);
}
// Each word stays whole, so that no line ends inside an option.
function commandBox(text) {
  const words = (line) => line.split(" ").flatMap((word, i) => [i ? " " : "", el("span.word", word)]),
    lines = text.split("\n").map((line) => el("span.line", words(line), "\n"));
  return el("pre.command", { tabindex: 0, "aria-label": "Commands that use this setting" }, lines);
}
