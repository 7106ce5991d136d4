// Builds the page and redraws it after a choice.
function redraw() {
  const { front } = drawChart();
  if (state.pinned && !scene.trials.includes(state.pinned)) state.pinned = null;
  state.hovered = null;
  drawLegend();
  drawWithinError(front);
  drawMembers(front);
  drawTable(front);
  drawCard(state.pinned);
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
  show("controls", choice("x axis", metrics, state.x, set("x")), choice("y axis", metrics, state.y, set("y")),
    choice("colour by", [["acceptance", "acceptance rule"], ["tree", "tree policy"], ["drafter", "drafter"]], state.colour, set("colour")),
    toggle("error bars", state.bars, set("bars")), toggle("zoom to the front", state.near, set("near")));
  show("table-controls", el("span", { class: "quiet", id: "shown" }),
    el("input", { type: "search", placeholder: "lantern fid<5", "aria-label": "Filter trials by words or conditions such as fid<5", spellcheck: "false",
      input: (event) => { state.query = event.target.value; drawTable(scene.front); } }),
    toggle("front only", state.frontOnly, (on) => { state.frontOnly = on; drawTable(scene.front); }));
}
function drawLegend() {
  const there = new Set(DATA.trials.filter((trial) => plotted(trial, state.x, state.y)).map(kindOf));
  show("legend", kinds().filter((name) => there.has(name)).map((name) => el("button", { type: "button", class: "kind", "data-kind": name,
    "aria-pressed": !state.hidden.has(name), click: () => {
      if (!state.hidden.delete(name)) state.hidden.add(name);
      redraw();
      [...byId("legend").children].find((button) => button.dataset.kind === name)?.focus();
    } }, svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(name, 5)), name)),
  DATA.trials.some((trial) => trial.state === "complete" && !trial.feasible) ? el("span", { class: "quiet" }, "hollow: violates a constraint") : null);
}
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

function drawHead() {
  document.title = `${DATA.name} · specfrontier`;
  show("name", DATA.name);
  show("about", DATA.about);
  show("summary", DATA.summary.join(" · "));
  const done = DATA.trials.filter((trial) => trial.state === "complete"), front = frontOf(DATA.trials, state.x, state.y);
  const tile = (name, value, below) => el("div", {}, el("dt", {}, name), el("dd", {}, value), below && el("dd", { class: "below" }, below));
  const best = (metric, from) => [...from].sort((a, b) => goodness(b, metric) - goodness(a, metric))[0];
  const ends = front.length ? [state.x, state.y].map((metric) => [metric, best(metric, front)]) : [];
  show("tiles", tile("trials", done.length, incomplete(done.length)),
    tile("on the front", front.length, `${metricTitle(state.x)} against ${metricTitle(state.y)}`),
    ends.map(([metric, trial]) => tile(`best ${metricTitle(metric)}`, withError(trial, metric), shortened(title(trial), 30))));
}
// The trials that are not complete, in words.
function incomplete(complete) {
  const count = (kind) => DATA.trials.filter((trial) => trial.state === kind).length;
  const parts = [[count("failed"), "failed"], [count("stopped"), "stopped early"]].filter(([number]) => number).map((part) => part.join(" "));
  return DATA.trials.length > complete ? `and ${parts.join(", ")}` : "all finished";
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
  show("setup-list", DATA.searched.length ? [el("h3", {}, "Searched"), list(DATA.searched)] : null, el("h3", {}, "Fixed"), list(DATA.facts),
    DATA.space ? el("details", { class: "panel space" }, el("summary", {}, "sweep.yaml, with all defaults"), copyButton(DATA.space), el("pre", { tabindex: 0 }, DATA.space)) : null);
  show("foot", `Written ${DATA.written} from ${DATA.location}. It loads nothing else: keep or send it as a single file.`);
}

drawHead();
drawIncomplete();
drawNotes();
drawSetup();
drawControls();
redraw();
byId("chart").addEventListener("pointermove", (event) => { if (event.pointerType !== "touch") hover(nearest(event)); });
byId("stage").addEventListener("pointerleave", () => hover(null));
byId("chart").addEventListener("click", (event) => { const trial = nearest(event); pin(trial === state.pinned ? null : trial); });
document.addEventListener("keydown", (event) => { if (event.key === "Escape" && (state.pinned || state.hovered)) pin(null); });
let width = window.innerWidth;
window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; redraw(); } });
