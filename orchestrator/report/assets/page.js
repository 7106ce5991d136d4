// Draws the first screen, then the sections (orchestrator/report/sections) one after another.
import { writeAddress } from "./address.js";
import { drawAnswer } from "./answer.js";
import { followPointer } from "./chart.js";
import { drawControls, redraw } from "./controls.js";
import { DATA, metricTitle, thirdOf } from "./data.js";
import "./details.js";
import { byId, el, items, narrow, show } from "./dom.js";
import { followSweep, isLive } from "./live.js";
import { unpin } from "./selection.js";
import { follow, state } from "./state.js";
import { indistinguishable } from "./values.js";

const SLICE_MS = 50; // a pause that a reader does not notice

function drawHead() {
  document.title = `${DATA.name} · specfrontier`;
  show("name", DATA.name);
  show("about", DATA.about);
  show("summary", DATA.summary.join(" · "));
  const links = Object.entries(DATA.sections).filter(([, { link }]) => link);
  show(
    "links",
    links.map(([name, { link }]) => el("a", { href: `#${name}` }, link)),
  );
  const end = isLive
    ? "It reloads when the sweep has new trials; `specfrontier report` without --serve writes it as a file."
    : "It loads nothing else: keep or send it as a single file.";
  show("foot", `Written ${DATA.written} from ${DATA.location}. ${end}`);
}
function drawWithinError() {
  if (thirdOf(state.x, state.y)) return show("within-error"); // neighbours are of a line
  const { front } = state.scene,
    [x, y] = [metricTitle(state.x), metricTitle(state.y)],
    pairs = indistinguishable(front, [state.x, state.y]);
  if (front.length < 2) return show("within-error");
  const line = (words, ...metrics) => {
    const alike = pairs.filter((pair) => pair.metrics.join() === metrics.join()),
      names = alike.map(({ a, b }, i) => [i ? "; " : " ", el("strong", a.title), " and ", el("strong", b.title)]);
    return alike.length > 0 && [words, names];
  };
  const lines = [
    line(`In both ${x} and ${y}:`, state.x, state.y),
    line(`In ${x} only:`, state.x),
    line(`In ${y} only:`, state.y),
  ];
  const none = `No neighbours on this front are within error of each other in ${x} or ${y} (95 %).`;
  const list = [
    el("p", "Neighbours on this front that are within error of each other (95 %):"),
    items("", lines.filter(Boolean)),
  ];
  return show("within-error", el("div.note", pairs.length ? list : el("p", none)));
}
// An empty section, and a function that draws it. script: a module with `draw(host, data, controls)`, where `controls`
// stand beside the heading.
function frame(name, { title, lead, data }, script) {
  const heading = el("h2", { id: `${name}-title` }, title),
    controls = el("div.controls", { id: `${name}-controls` }),
    bar = el("div.bar", heading, controls),
    code = (text, i) => (i % 2 ? el("code", text) : text), // between backticks
    host = el("div", { id: `${name}-list` });
  const section = el("section", { id: name, "aria-labelledby": heading.id }, bar, host);
  if (lead) host.before(el("p.lead", lead.split("`").map(code)));
  byId("main").append(section);
  return () => {
    script.draw(host, data, controls);
    if (!controls.hasChildNodes()) bar.replaceWith(heading);
  };
}
// Draws the parts in turns of SLICE_MS. Between them the page answers and paints, which costs as much as a small part.
function drawLater(parts) {
  const rest = [...parts],
    end = performance.now() + SLICE_MS;
  while (rest.length && performance.now() < end) rest.shift()();
  if (rest.length) {
    window.setTimeout(() => drawLater(rest));
  } else {
    writeAddress();
    followSweep();
    document.body.dataset.ready = "true";
  }
}

// scripts: of the sections, by name.
export function start(scripts) {
  drawHead();
  drawControls();
  redraw();
  drawAnswer();
  followPointer();
  const parts = Object.entries(DATA.sections).map(([name, section]) => frame(name, section, scripts[section.script]));
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !event.defaultPrevented && (state.pins.length || state.hovered)) unpin();
  });
  const size = () => `${window.innerWidth} ${narrow() || window.innerHeight}`; // a phone's address bar comes and goes
  let before = size();
  window.addEventListener("resize", () => {
    if (size() === before) return;
    before = size();
    redraw();
  });
  const neighbours = () => {
    drawWithinError();
    follow("axes", drawWithinError);
  };
  window.requestAnimationFrame(() => window.setTimeout(() => drawLater([neighbours, ...parts])));
}
