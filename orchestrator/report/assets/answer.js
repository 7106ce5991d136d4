// The recommendation: the best setting within a quality bar that a slider moves, and the front's knee.
const ANSWER = DATA.answer,
  BAR = ANSWER.bar, // null where the second metric has none
  MAX_WARNINGS = 2;

// Of the slider's position: the id of the best trial within the bar (null: none), and the share of draws in which it
// stays within.
const stepAt = (bar) => BAR.steps[Math.round((bar - BAR.low) / BAR.step)];
const losslessTrial = () => trialOf.get(ANSWER.lossless) ?? null;
const kneeTrial = () => (ANSWER.knee ? trialOf.get(ANSWER.knee.id) : null);
const recommended = () => (BAR ? (trialOf.get(stepAt(state.bar)[0]) ?? null) : null);
const barText = (bar) => bar.toFixed(BAR.places);
const limitText = (bar) => `${ANSWER.metric} ${BAR.relation} ${barText(bar)}${BAR.relative ? " * vanilla" : ""}`;
// The bar in the metric's own unit; null if sweeps with different values of vanilla share it.
function barValue() {
  if (!BAR?.relative) return BAR ? state.bar : null;
  const vanilla = several ? null : trialOf.get(DATA.sweeps[0].vanilla);
  return vanilla ? state.bar * vanilla.metrics[ANSWER.metric][0] : null;
}
// Each choice is written to a file of its own.
const FILES = { "--lossless": "exact.yaml", "--knee": "knee.yaml" };
function command(option) {
  const { pareto, generate, config } = ANSWER.commands,
    file = FILES[option] || config;
  return `${pareto} ${option} --config ${file}\n${generate.replace(` --config ${config}`, ` --config ${file}`)}`;
}

function drawAnswer() {
  const head = [el("h2", {}, "Recommended setting")];
  if (!ANSWER.commands) return show("answer", head, el("p", { class: "quiet" }, "No setting is on the front yet."));
  const name = metricTitle(ANSWER.metric);
  show(
    "answer",
    head,
    warnings(),
    BAR ? barControls(name) : el("p", { class: "quiet" }, `No quality bar: ${name} says nothing about the images.`),
    el("div", { id: "lossless", class: "choice-part" }),
    el("div", { id: "knee", class: "choice-part" }),
  );
  if (BAR) drawRecommendation();
  drawChoice("lossless", capitalised(metricTitle(ANSWER.best_lossless)), losslessTrial(), {
    option: "--lossless",
    nothing: ANSWER.has_speed && `No measured lossless setting is ${metricTitle(ANSWER.better)} than vanilla.`,
  });
  drawChoice("knee", "Knee of the front", kneeTrial(), {
    option: "--knee",
    nothing: "This front has no knee: no setting bends it.",
    sure: () => sureness(`the knee in ${percent(ANSWER.knee.confidence)} of draws`, ANSWER.knee.confidence),
  });
}
// What makes the speeds of all choices less certain. Setup has all of them.
function warnings() {
  const shown = ANSWER.warnings.slice(0, MAX_WARNINGS),
    left = ANSWER.warnings.length - shown.length;
  return [
    ...shown.map((text) => el("p", { class: "warning" }, `Note: ${text}.`)),
    left > 0 && el("p", { class: "warning" }, el("a", { href: "#setup" }, `${plural(left, "more note")} on speeds`)),
  ];
}
function barControls(name) {
  const slider = el("input", {
    type: "range",
    id: "bar",
    min: BAR.low,
    max: BAR.high,
    step: BAR.step,
    value: BAR.start,
    "aria-describedby": "bar-text",
    input: (event) => {
      state.bar = Number(event.target.value);
      drawRecommendation();
    },
  });
  return [
    el(
      "div",
      { class: "bar-row" },
      el("label", { for: "bar" }, `${name} ${BAR.relation === "<=" ? "at most" : "at least"}`),
      el("output", { id: "bar-text", for: "bar" }),
    ),
    slider,
    el("div", { id: "fastest" }),
  ];
}
function drawRecommendation() {
  const trial = recommended(),
    share = stepAt(state.bar)[1],
    value = barValue(),
    unit = unitOf(ANSWER.metric);
  const words = BAR.relative
    ? [
        `${barText(state.bar)} × vanilla`,
        value !== null && el("span", { class: "quiet" }, ` = ${formatNumber(value, decimals(value, 3))}`),
      ]
    : [barText(state.bar), unit && unit !== "×" && unit.length < 9 && ` ${unit}`];
  show("bar-text", ...words);
  byId("bar").setAttribute(
    "aria-valuetext",
    `${metricTitle(ANSWER.metric)} ${limitText(state.bar).slice(ANSWER.metric.length)}`,
  );
  show(
    "fastest",
    ...(trial
      ? [
          choiceHead(
            `${capitalised(metricTitle(ANSWER.best))} within it`,
            copyButton(command(`--best '${limitText(state.bar)}'`), "Copy command"),
          ),
          ...choiceLines(trial),
          share !== null && sureness(`within the bar in ${percent(share)} of draws`, share),
          gain(trial),
          commandBox(command(`--best '${limitText(state.bar)}'`)),
        ]
      : [el("p", { class: "quiet" }, "No setting is within this bar.")]),
  );
  markChoices();
  drawAside();
  followRecommendation();
}
// A choice that the slider does not move. nothing: the sentence without one; without that, it has no place.
function drawChoice(id, heading, trial, { option, nothing, sure = () => null }) {
  byId(id).hidden = !trial && !nothing;
  if (byId(id).hidden) return null;
  if (!trial) return show(id, choiceHead(heading), el("p", { class: "quiet" }, nothing));
  return show(
    id,
    choiceHead(heading, copyButton(command(option), "Copy command")),
    ...choiceLines(trial),
    sure(),
    gain(trial),
  );
}
const choiceHead = (heading, ...actions) => el("div", { class: "choice-head" }, el("h3", {}, heading), actions);
// Name, setting, speed and the change of quality against vanilla.
function choiceLines(trial) {
  const { x, y } = DATA.axes,
    vanilla = vanillaOf(trial),
    unit = unitOf(x);
  const change =
    vanilla && vanilla !== trial && vanilla.metrics[y] && vanilla.metrics[y][0]
      ? formatChange(difference(trial, vanilla, y), vanilla.metrics[y][0])
      : null;
  const [name, more] = trial.label
    ? [title(trial), trial.label === trial.description ? null : trial.description]
    : [trial.description, title(trial)];
  return [
    el(
      "p",
      { class: "chosen", "data-trial": trial.id },
      icon(trial),
      el("button", { type: "button", class: "link", title: "Show in the plot", click: () => reveal(trial) }, name),
    ),
    more && el("p", { class: "description" }, more),
    el(
      "dl",
      { class: "headline" },
      el(
        "div",
        {},
        el("dt", {}, metricTitle(x)),
        el("dd", {}, withError(trial, x), unit && unit.length < 2 && el("span", { class: "unit" }, ` ${unit}`)),
      ),
      el(
        "div",
        {},
        el("dt", {}, metricTitle(y), change && (byChance(trial, y) ? ", change by chance" : ", change")),
        el("dd", {}, ...(change ?? withError(trial, y))),
      ),
    ),
  ];
}
// Of a lossless setting, whose images have vanilla's own distribution.
const byChance = (trial, metric) => trial.lossless && DATA.metrics[metric].quality;
const sureness = (text, share) =>
  el(
    "p",
    { class: "sure" },
    el("meter", { min: 0, max: 1, value: share.toFixed(3), "aria-hidden": "true" }),
    el("span", {}, text),
  );
// How sure it is that a trial is better than vanilla in the first metric; null for vanilla.
const gain = (trial) => {
  const share = ANSWER.gains[trial.id],
    chance = byChance(trial, DATA.axes.x) ? " by chance" : "";
  if (share === undefined) return null;
  return sureness(`${metricTitle(ANSWER.better)} than vanilla in ${percent(share)} of draws${chance}`, share);
};
// Each word stays whole, so that no line ends inside an option.
function commandBox(text) {
  const line = (words) =>
    el(
      "span",
      { class: "line" },
      words.split(" ").flatMap((word, i) => [i ? " " : "", el("span", { class: "word" }, word)]),
      "\n",
    );
  const lines = text.split("\n").map(line);
  return el("pre", { class: "command", tabindex: 0, "aria-label": "Commands that use this setting" }, lines);
}
// Where the line of the bar and its name are in the chart; null where it is not on these axes.
function barLine() {
  const value = state.y === ANSWER.metric ? barValue() : null,
    { left, right, top, bottom } = scene.box,
    at = value === null ? -1 : scene.scaleY(value);
  if (at < top || at > bottom) return null;
  return {
    at,
    line: { left, right, top: at - 1, bottom: at + 1 },
    name: { left, right: left + 76, top: at - 18, bottom: at },
  };
}
// Rings in the chart around the recommended setting, the knee and the lossless one, and the line of the bar.
function markChoices() {
  if (!scene) return;
  const layer = byId("chart").querySelector(".choices"),
    [fast, knee, lossless] = [recommended(), kneeTrial(), losslessTrial()];
  if (!layer) return;
  const ring = (trial, kind, r) =>
    trial &&
    scene.trials.includes(trial) &&
    svg("circle", { class: `ring ${kind}`, r, transform: `translate(${scene.place(trial).join(" ")})` });
  const bar = barLine();
  layer.replaceChildren(
    ...[
      bar && svg("line", { class: "bar-line", x1: bar.line.left, x2: bar.line.right, y1: bar.at, y2: bar.at }),
      bar && svg("text", { class: "bar-name", x: bar.line.left + 4, y: bar.at - 5 }, "quality bar"),
      ring(lossless, "lossless", 9.5),
      ring(knee, "knee", 11.5),
      ring(fast, "fast", 15),
    ].filter(Boolean),
  );
}
