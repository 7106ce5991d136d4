// The details of a trial: the card next to its point, and its entry in the list of settings on the front.
function values(trial, names, style) {
  return el("dl", { class: style }, names.filter((name) => trial.metrics[name]).map((name) => {
    const unit = unitOf(name);
    return el("div", {}, el("dt", {}, metricTitle(name)), el("dd", {}, withError(trial, name), unit && el("span", { class: "unit" }, ` ${unit}`)));
  }));
}
function withError(trial, metric) {
  const [value, error] = parts(trial.metrics[metric]);
  return [value, error && el("span", { class: "pm" }, ` ± ${error}`)];
}
const others = () => DATA.axes.names.filter((name) => name !== state.x && name !== state.y);

function picture(trial, kind, text) {
  const found = DATA.images[trial.digest]?.[kind];
  return found && el("img", { src: found.uri, width: found.width, height: found.height, alt: text,
    class: found.width < 96 ? "pixels" : null });
}
function frontStatus(trial, front) {
  const status = front.includes(trial) ? "on the front" : trial.feasible ? "behind the front" : `violates ${trial.violated.join("; ")}`;
  return el("p", { class: "front-status" }, trial.label ? `trial ${trial.number} · ` : "", status,
    trial.confidence !== null && defaultAxes() ? `; ${front.includes(trial) ? "stays on it" : "on it"} in ${Math.round(100 * trial.confidence)} % of draws from the errors` : "");
}
const defaultAxes = () => state.x === DATA.axes.x && state.y === DATA.axes.y && !state.hidden.size;

function drawCard(trial) {
  const card = byId("card"), kept = trial && trial === state.pinned;
  card.hidden = !trial;
  card.classList.toggle("pinned", Boolean(kept));
  for (const node of byId("chart").querySelectorAll(".point")) {
    node.classList.toggle("active", trial !== null && node.dataset.trial === String(trial.number));
  }
  if (!trial) return;
  card.dataset.trial = trial.number;
  const grid = picture(trial, "grid", `Images generated with ${title(trial)}`);
  show("card",
    el("header", {}, svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(kindOf(trial), 5)),
      el("h3", {}, title(trial)), kept ? el("button", { type: "button", class: "close", "aria-label": "Close", click: () => pin(null) }, "×") : null),
    frontStatus(trial, scene.front), el("p", { class: "description" }, trial.description),
    el("div", { class: "body" }, grid && el("figure", {}, grid), values(trial, [state.x, state.y], "main")),
    values(trial, others(), "rest"),
    kept ? el("div", { class: "actions" }, copyButton(DATA.configs[trial.digest], "Copy setting"),
      el("span", { class: "quiet" }, `${plural(trial.images, "image")}, ${duration(trial.seconds)}`)) : null);
  placeCard(card, trial);
}
// Next to its point, where it fits; at the bottom of a narrow screen.
function placeCard(card, trial) {
  if (narrow()) { card.style.left = card.style.top = ""; return; }
  const [px, py] = scene.place(trial), { offsetWidth: width, offsetHeight: height } = card;
  const right = px + 22 + width <= scene.width, left = right ? px + 22 : Math.max(0, px - 22 - width);
  card.style.left = `${Math.min(left, scene.width - width)}px`;
  card.style.top = `${Math.max(-8, Math.min(py - height / 3, scene.height - height + 8))}px`;
}

// A pinned card stays: the pointer crosses other points on its way to the card's buttons.
function hover(trial) {
  if (state.hovered === trial) return;
  state.hovered = trial;
  if (!state.pinned) drawCard(trial);
}
function pin(trial) {
  state.pinned = trial;
  if (trial === null) state.hovered = null;
  drawCard(trial);
  for (const row of document.querySelectorAll("#table tbody tr")) row.classList.toggle("active", trial !== null && row.dataset.trial === String(trial.number));
}

function drawMembers(front) {
  if (!front.length) return show("member-list", el("p", { class: "empty" }, "No visible trial is on the front."));
  return show("member-list", [...front].reverse().map((trial) => member(trial)));
}
function member(trial) {
  const grid = picture(trial, "grid", `Images generated with ${title(trial)}`), heat = picture(trial, "heat", `Accepted length over the image grid with ${title(trial)}`);
  const captions = DATA.captions[DATA.images[trial.digest]?.captions] ?? [], config = DATA.configs[trial.digest];
  return el("article", { class: "panel member", "data-trial": trial.number },
    el("header", {}, svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, mark(kindOf(trial), 5)),
      el("h3", {}, title(trial)), values(trial, [state.x, state.y], "inline"),
      el("button", { type: "button", class: "link", click: () => reveal(trial) }, "show in the plot")),
    el("p", { class: "description" }, trial.description),
    el("div", { class: "columns" },
      grid && el("figure", {}, enlarged(grid), captions.length ? el("details", {}, el("summary", {}, "Captions, row by row"), el("ol", {}, captions.map((text) => el("li", {}, text)))) : el("figcaption", {}, "first images")),
      heat && el("figure", {}, enlarged(heat), el("figcaption", {}, "accepted length by position in the image")),
      grid || heat ? null : el("p", { class: "quiet" }, "This page has no image of it."),
      el("div", { class: "config" }, copyButton(config), el("pre", { tabindex: 0, "aria-label": "Setting as YAML" }, config))));
}
// An image that a click enlarges or shrinks.
function enlarged(image) {
  const button = el("button", { type: "button", class: "zoom", title: "Enlarge", "aria-expanded": false, click: () => {
    const large = button.parentElement.classList.toggle("large");
    button.setAttribute("aria-expanded", large);
    button.title = large ? "Make smaller" : "Enlarge";
  } }, image);
  return button;
}
function reveal(trial) {
  byId("front").scrollIntoView({ behavior: window.matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
  pin(trial);
}
