// Builds the page and redraws it after a choice.
let ready = false; // the parts below the first screen are drawn after its first paint
function redraw() {
  drawLegend();
  const { front } = drawChart();
  state.pins = state.pins.filter((trial) => scene.trials.includes(trial));
  state.hovered = null;
  markChoices();
  drawAside();
  if (ready) drawBelow(front);
}
function drawBelow(front) {
  drawWithinError(front);
  drawTable(front);
}

function choice(name, options, value, change) {
  const list = el("select", { change: (event) => change(event.target.value) }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
  return el("label", { class: "choice" }, el("span", {}, name), list);
}
function toggle(name, on, change) {
  const button = el("button", { type: "button", class: "toggle", "aria-pressed": on, click: () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", now);
    change(now);
  } }, name);
  return button;
}
function drawControls() {
  const metrics = DATA.axes.names.map((name) => [name, metricTitle(name)]);
  const set = (key) => (value) => { state[key] = value; if (key === "colour") state.hidden.clear(); redraw(); };
  show("controls", choice("x", metrics, state.x, set("x")), choice("y", metrics, state.y, set("y")),
    choice("colour", [...(several ? [["sweep", "sweep"]] : []), ["acceptance", "acceptance"], ["tree", "tree"], ["drafter", "drafter"]], state.colour, set("colour")),
    toggle("error bars", state.bars, set("bars")), toggle("zoom", state.near, set("near")));
}
function drawLegend() {
  const there = new Set(DATA.trials.filter((trial) => plotted(trial, state.x, state.y)).map(kindOf));
  show("legend", kinds().filter((name) => there.has(name)).map((name) => el("button", { type: "button", class: "kind", "data-kind": name,
    "aria-pressed": !state.hidden.has(name), click: () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      redraw();
      [...byId("legend").children].find((button) => button.dataset.kind === name)?.focus();
    } }, svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(name, 5)), name)),
  el("span", { class: "quiet" }, ringKey("fast"), "recommended", ringKey("knee"), "knee; ", DATA.trials.some((trial) => trial.state === "complete" && !trial.feasible) ? "hollow: violates a constraint" : "large: on the front"));
}
const ringKey = (kind) => svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, svg("circle", { class: `ring ${kind}`, r: 6 }));
function drawWithinError(front) {
  if (front.length < 2) return show("within-error");
  const pairs = indistinguishable(front), bold = (trial) => el("strong", {}, title(trial));
  const line = (words, metrics) => {
    const these = pairs.filter((pair) => pair.metrics.join() === metrics.join());
    return these.length ? el("li", {}, words, these.map(({ a, b }, i) => [i ? "; " : " ", bold(a), " and ", bold(b)]).flat()) : null;
  };
  const [x, y] = [metricTitle(state.x), metricTitle(state.y)];
  return show("within-error", el("div", { class: "note" }, pairs.length
    ? [el("p", {}, "Neighbours on this front within error of each other (95 % level):"),
      el("ul", {}, line(`In both ${x} and ${y}:`, [state.x, state.y]), line(`In ${x} only:`, [state.x]),
        line(`In ${y} only:`, [state.y]))]
    : el("p", {}, "All neighbours on this front differ significantly in both metrics (95 % level).")));
}

// Hypervolume of each sweep's front, and each pair of fronts.
function drawComparison() {
  byId("comparison").hidden = !DATA.comparison;
  if (!DATA.comparison) return;
  const { reference, fronts, pairs, notes } = DATA.comparison, row = (cells, head = false) => el("tr", {}, cells.map((text, i) => el(head || !i ? "th" : "td", { scope: head ? "col" : !i ? "row" : null, class: i ? "number" : null }, text)));
  const grid = (head, rows) => el("div", { class: "panel scroll" }, el("table", {}, el("thead", {}, row(head, true)), el("tbody", {}, rows.map((cells) => row(cells)))));
  show("comparison-list", notes.length ? el("ul", { class: "note" }, notes.map((note) => el("li", {}, note))) : null,
    grid(["front", "trials", "on its front", "hypervolume"], fronts.map(({ name, trials, members, volume, error }) => [name, trials, members, formatMeasured([volume, error])])),
    el("p", { class: "lead" }, `Up to the reference point ${reference.map(([name, value]) => `${metricTitle(name)} ${formatTick(value)}`).join(", ")}. More hypervolume: of the first front, with the error of the difference; trials on equal captions are paired. Epsilon: how much the first front must improve to match the second everywhere, in units of the fronts' range; 0 or less: it already does. Covers: the share of the second front that the first equals or dominates.`),
    grid(["front", "against", "more hypervolume", "epsilon", "covers"], pairs.map(({ first, second, more, error, epsilon, covers }) => [first, second, formatMeasured([more, error]), formatNumber(epsilon, 3), percent(covers)])));
}

function drawHead() {
  document.title = `${DATA.name} · specfrontier`;
  show("name", DATA.name);
  show("about", DATA.about);
  show("summary", DATA.summary.join(" · "));
}
function drawIncomplete() {
  for (const kind of ["failed", "stopped"]) drawCauses(kind, DATA.trials.filter((trial) => trial.state === kind));
}
function drawCauses(id, trials) {
  byId(id).hidden = !trials.length;
  show(`${id}-list`, el("table", {}, el("thead", {}, el("tr", {}, ["#", "setting", "cause"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", {}, trials.map((trial) => el("tr", {}, el("th", { scope: "row", class: "number" }, trial.number),
      el("td", { class: "setting" }, trial.label ? el("strong", {}, trial.label) : null, el("span", { class: "description" }, trial.description)),
      el("td", { class: "cause" }, trial.cause ?? "no cause recorded"))))));
}
function drawNotes() {
  show("notes-list", el("ul", { class: "notes" }, DATA.notes.map((note) => el("li", {}, note))),
    el("dl", { class: "facts" }, DATA.axes.names.map((name) => el("div", {}, el("dt", {}, metricTitle(name)),
      el("dd", {}, [DATA.metrics[name].about, DATA.metrics[name].direction === "maximize" ? "higher is better" : "lower is better", DATA.metrics[name].unit && DATA.metrics[name].unit !== "x" && `in ${DATA.metrics[name].unit}`].filter(Boolean).join("; "))))));
}
function drawSetup() {
  const list = (pairs) => el("dl", { class: "facts" }, pairs.map(([name, lines]) => el("div", {}, el("dt", {}, name), lines.map((text) => el("dd", {}, text)))));
  show("setup-list", DATA.sweeps.flatMap(({ name, facts, searched, space }) => [several && el("h3", { class: "sweep" }, name), searched.length && el("h3", {}, "Searched"), searched.length && list(searched),
    el("h3", {}, "Fixed"), list(facts), space && el("details", { class: "panel space" }, el("summary", {}, "sweep.yaml, with all defaults"), copyButton(space), el("pre", { tabindex: 0 }, space))]));
  show("foot", `Written ${DATA.written} from ${DATA.location}. It loads nothing else: keep or send it as a single file.`);
}

// One part after another, so that the page answers in between.
function drawLater([first, ...rest]) {
  if (!first) {
    ready = true;
    document.body.dataset.ready = "true";
    return;
  }
  first();
  window.setTimeout(() => drawLater(rest));
}

drawHead();
drawControls();
redraw();
drawAnswer();
byId("chart").addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") hover(nearest(event)); });
byId("chart").addEventListener("pointerleave", () => hover(null));
byId("chart").addEventListener("click", (event) => { const trial = nearest(event); if (trial) pin(trial); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && (state.pins.length || state.hovered)) unpin(); });
const size = () => `${window.innerWidth} ${narrow() || window.innerHeight}`; // a phone's address bar comes and goes
let before = size();
window.addEventListener("resize", () => { if (size() !== before) { before = size(); redraw(); } });
window.requestAnimationFrame(() => window.setTimeout(() => drawLater([drawImages, () => drawWithinError(scene.front), drawHeat, drawTableControls,
  () => drawTable(scene.front), drawIncomplete, drawNotes, drawSetup, drawAnalysis, drawComparison])));
