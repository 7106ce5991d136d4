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
  const list = el(
    "select",
    { change: (event) => change(event.target.value) },
    options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)),
  );
  return el("label", { class: "choice" }, el("span", {}, name), list);
}
function toggle(name, on, change) {
  const button = el(
    "button",
    {
      type: "button",
      class: "toggle",
      "aria-pressed": on,
      click: () => {
        const now = button.getAttribute("aria-pressed") !== "true";
        button.setAttribute("aria-pressed", now);
        change(now);
      },
    },
    name,
  );
  return button;
}
function drawControls() {
  const metrics = DATA.axes.names.map((name) => [name, metricTitle(name)]);
  const set = (key) => (value) => {
    state[key] = value;
    if (key === "colour") state.hidden.clear();
    redraw();
  };
  const zoom = toggle("zoom to front", state.near, set("near"));
  zoom.title = "Axes that span only the trials on the front; others may lie outside";
  show(
    "controls",
    choice("x", metrics, state.x, set("x")),
    choice("y", metrics, state.y, set("y")),
    choice(
      "colour",
      [
        ...(several ? [["sweep", "sweep"]] : []),
        ["acceptance", "acceptance"],
        ["tree", "tree"],
        ["drafter", "drafter"],
      ],
      state.colour,
      set("colour"),
    ),
    toggle("error bars", state.bars, set("bars")),
    zoom,
  );
}
function drawLegend() {
  const there = new Set(DATA.trials.filter((trial) => plotted(trial, state.x, state.y)).map(kindOf));
  show(
    "legend",
    kinds()
      .filter((name) => there.has(name))
      .map((name) =>
        el(
          "button",
          {
            type: "button",
            class: "kind",
            "data-kind": name,
            "aria-pressed": !state.hidden.has(name),
            click: () => {
              if (!state.hidden.delete(name)) state.hidden.add(name);
              redraw();
              [...byId("legend").children].find((button) => button.dataset.kind === name)?.focus();
            },
          },
          svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(name, 5)),
          name,
        ),
      ),
    el(
      "span",
      { class: "quiet" },
      BAR ? ringKey("fast", "recommended") : null,
      ringKey("knee", "knee"),
      ANSWER.lossless ? ringKey("lossless", metricTitle(ANSWER.best_lossless)) : null,
      DATA.trials.some((trial) => trial.state === "complete" && !trial.feasible)
        ? "hollow: violates a constraint"
        : "large: on the front",
    ),
    levelNote(state.x),
    levelNote(state.y),
  );
}
const ringKey = (kind, text) =>
  el(
    "span",
    {},
    svg(
      "svg",
      { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" },
      svg("circle", { class: `ring ${kind}`, r: 6 }),
    ),
    text,
  );
function drawHead() {
  document.title = `${DATA.name} · specfrontier`;
  show("name", DATA.name);
  show("about", DATA.about);
  show("summary", DATA.summary.join(" · "));
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
byId("chart").addEventListener("pointerdown", (event) => {
  state.touch = event.pointerType === "touch";
});
byId("chart").addEventListener("pointermove", (event) => {
  if (event.pointerType !== "touch") hover(nearest(event));
});
byId("chart").addEventListener("pointerleave", (event) => {
  if (event.pointerType !== "touch") hover(null);
});
// A finger cannot hover: its first tap on a point shows it, the second one pins it, one beside all points closes it.
byId("chart").addEventListener("click", (event) => {
  const trial = nearest(event);
  if (!state.touch || (trial && trial === state.hovered)) return trial && pin(trial);
  hover(trial);
  keepInSight();
  return trial && announce(`${title(trial)}: ${[state.x, state.y].map((name) => spoken(trial, name)).join(", ")}`);
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || closeColumns()) return;
  if (state.pins.length || state.hovered) unpin();
});
document.addEventListener("click", (event) => {
  if (!event.target.closest(".columns")) closeColumns();
});
const size = () => `${window.innerWidth} ${narrow() || window.innerHeight}`; // a phone's address bar comes and goes
byId("table").addEventListener("scroll", markMore, { passive: true });
let before = size();
window.addEventListener("resize", () => {
  if (size() !== before) {
    before = size();
    redraw();
  }
});
window.requestAnimationFrame(() =>
  window.setTimeout(() =>
    drawLater([
      drawImages,
      () => drawWithinError(scene.front),
      drawHeat,
      drawTableControls,
      () => drawTable(scene.front),
      fitTable,
      drawIncomplete,
      drawNotes,
      drawSetup,
      drawAnalysis,
      drawComparison,
    ]),
  ),
);
