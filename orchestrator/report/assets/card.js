// The details beside the chart: of the trial under the pointer, of a pinned one, several pinned ones side by side, or
// of the recommended one.
function values(trial, names, style) {
  return el(
    "dl",
    { class: style },
    names
      .filter((name) => trial.metrics[name])
      .map((name) => {
        const unit = unitOf(name);
        return el(
          "div",
          {},
          el("dt", { title: metricNote(name) }, metricTitle(name)),
          el("dd", {}, withError(trial, name), unit && el("span", { class: "unit" }, ` ${unit}`)),
        );
      }),
  );
}
function withError(trial, metric) {
  const [value, error] = parts(trial.metrics[metric]);
  return [value, error && el("span", { class: "pm" }, ` ± ${error}`)];
}
const others = () => DATA.axes.names.filter((name) => name !== state.x && name !== state.y);

function picture(trial, text) {
  const found = DATA.images[trial.images_of];
  return (
    found &&
    el("img", {
      src: found.uri,
      width: found.width,
      height: found.height,
      alt: text,
      class: found.width < 96 ? "pixels" : null,
    })
  );
}
const defaultAxes = () => state.x === DATA.axes.x && state.y === DATA.axes.y && !state.hidden.size;
function frontStatus(trial, front) {
  const status = front.includes(trial)
    ? "on the front"
    : trial.feasible
      ? "behind the front"
      : `violates ${trial.violated.join("; ")}`;
  return el(
    "p",
    { class: "front-status" },
    trial.label ? `trial ${trial.number} · ` : "",
    trial.lossless ? "lossless · " : "",
    status,
    trial.confidence !== null && defaultAxes()
      ? `; ${front.includes(trial) ? "stays on it" : "on it"} in ${percent(trial.confidence)} of draws from the errors`
      : "",
  );
}

function drawAside() {
  const trial = state.hovered ?? (state.pins.length === 1 ? state.pins[0] : null),
    several = !trial && state.pins.length > 1;
  const shown = trial ?? (several || narrow() ? null : (recommended() ?? (BAR ? null : kneeTrial())));
  const card = byId("card"),
    pins = byId("pins");
  card.hidden = !shown;
  pins.hidden = !several;
  byId("aside").classList.toggle("sheet", Boolean(trial || several));
  for (const [other, node] of scene?.nodes ?? [])
    node.classList.toggle("active", other === trial || state.pins.includes(other));
  if (shown) drawCard(card, shown, !trial);
  if (several) drawPins(pins);
}
// After a tap or a key. On a phone the details lie over the page's lower part: scroll until the plot is above them.
function keepInSight() {
  const aside = byId("aside"),
    below = byId("chart").getBoundingClientRect().bottom - aside.getBoundingClientRect().top;
  if (!aside.classList.contains("sheet")) return;
  if (!narrow()) aside.querySelector("#aside > :not([hidden]) header").scrollIntoView({ block: "nearest" });
  else if (below > 0) window.scrollBy({ top: below, behavior: scrolling() });
}
const FULL = `${MAX_PINS} are pinned: release one to pin this`;
// What the card is, or how to pin its trial.
function eyebrow(trial, byDefault) {
  const text = (words, style = "") => el("p", { class: `eyebrow ${style}` }, words);
  if (byDefault) return text(BAR ? "Recommended" : "Knee of the front");
  if (state.pins.includes(trial)) return text("Pinned");
  if (state.pins.length === MAX_PINS) return text(FULL, "full");
  if (!state.touch) return text("Click to pin");
  return el("button", { type: "button", class: "tap", click: () => pin(trial) }, "Tap to pin");
}
function drawCard(card, trial, byDefault) {
  const kept = state.pins.includes(trial),
    grid = picture(trial, `Images generated with ${title(trial)}`),
    config = DATA.configs[trial.digest];
  card.dataset.trial = trial.id;
  const closes = kept || (state.touch && !byDefault);
  card.replaceChildren(
    ...[
      el(
        "header",
        {},
        eyebrow(trial, byDefault),
        icon(trial),
        el("h3", {}, title(trial)),
        closes ? closeButton("Close", () => unpin(trial)) : null,
      ),
      frontStatus(trial, scene.front),
      trial.label === trial.description ? null : el("p", { class: "description" }, trial.description),
      grid && el("figure", {}, grid),
      values(trial, [state.x, state.y], "main"),
      values(trial, others(), "rest"),
      el(
        "div",
        { class: "actions" },
        copyButton(config, "Copy setting"),
        el("span", { class: "quiet" }, `${plural(trial.images, "image")}, ${duration(trial.seconds)}`),
      ),
      kept || byDefault
        ? el("details", {}, el("summary", {}, "Setting as YAML"), el("pre", { tabindex: 0 }, config))
        : null,
    ].filter(Boolean),
  );
}
const closeButton = (name, click) => el("button", { type: "button", class: "close", "aria-label": name, click }, "×");

// Pinned trials side by side: the objectives and the images' quality, the keys in which the settings differ, the rest.
function drawPins(panel) {
  const pinned = state.pins,
    [first] = pinned,
    names = [...new Set([state.x, state.y, ...DATA.axes.names])].filter((name) =>
      pinned.some((trial) => trial.metrics[name]),
    ),
    isFirst = (name) => name === state.x || name === state.y || DATA.metrics[name].quality;
  const part = (name, rows) =>
    rows.length
      ? [el("tbody", {}, el("tr", { class: "part" }, el("th", { colspan: pinned.length }, name))), ...rows]
      : [];
  const group = (name, cells) => [
    el("tr", { class: "group" }, el("th", { scope: "rowgroup", colspan: pinned.length }, name)),
    el("tr", {}, cells),
  ];
  const keys = DATA.keys
    .map((key, i) => [key, i])
    .filter(([, i]) => new Set(pinned.map((trial) => String(trial.flat[i]))).size > 1);
  const metricRows = (name) =>
    el(
      "tbody",
      {},
      group(
        metricTitle(name),
        pinned.map((trial) => el("td", {}, ...pinnedValue(trial, first, name))),
      ),
    );
  panel.replaceChildren(
    ...[
      el(
        "header",
        {},
        el("h3", {}, `${pinned.length} pinned settings`),
        closeButton("Close all", () => unpin()),
      ),
      el("p", { class: "quiet" }, "Bold: not within error of the first one (95\u00a0%)."),
      pinned.every((trial) => SHEETS[trial.images_of])
        ? el("button", { type: "button", class: "link", click: () => compareImages(pinned) }, "compare their images")
        : null,
      el(
        "div",
        { class: "scroll" },
        el(
          "table",
          { class: "pins" },
          el(
            "thead",
            {},
            el(
              "tr",
              {},
              pinned.map((trial) =>
                el(
                  "th",
                  { scope: "col", "data-trial": trial.id },
                  icon(trial),
                  el("span", {}, shortened(title(trial), 40)),
                  closeButton(`Release ${title(trial)}`, () => unpin(trial)),
                ),
              ),
            ),
          ),
          names.filter(isFirst).map(metricRows),
          part(
            "Parameters that differ",
            keys.map(([key, i]) =>
              el(
                "tbody",
                {},
                group(
                  key,
                  pinned.map((trial) => el("td", {}, keyValue(trial.flat[i]))),
                ),
              ),
            ),
          ),
          part("Other metrics", names.filter((name) => !isFirst(name)).map(metricRows)),
        ),
      ),
    ].filter(Boolean),
  );
}
const keyValue = (value) =>
  value === null ? "–" : typeof value === "number" ? Number(value.toPrecision(4)) : shortened(String(value), 40);
function pinnedValue(trial, first, name) {
  if (!trial.metrics[name]) return ["–"];
  const apart = trial !== first && first.metrics[name] && difference(trial, first, name).significant;
  return [apart ? el("strong", {}, withError(trial, name)) : el("span", {}, withError(trial, name))];
}

// A pinned trial stays: the pointer crosses other points on its way to the card's buttons.
function hover(trial) {
  if (state.hovered === trial) return;
  state.hovered = trial;
  drawAside();
}
function pin(trial) {
  if (state.pins.includes(trial)) return unpin(trial);
  if (state.pins.length === MAX_PINS) {
    hover(trial); // the card says why
    return announce(`${title(trial)}: ${FULL}`);
  }
  state.pins = [...state.pins, trial];
  announce(`Pinned ${title(trial)}; ${state.pins.length} pinned`);
  return drawPinned();
}
function unpin(trial = null) {
  const last = trial ?? state.hovered ?? state.pins.at(-1),
    inside = byId("aside").contains(document.activeElement);
  state.pins = trial ? state.pins.filter((other) => other !== trial) : [];
  drawPinned();
  if (!inside) return;
  scene.nodes.get(last)?.focus({ preventScroll: true }); // the focused button is gone
  hover(null);
}
function drawPinned() {
  state.hovered = null;
  for (const [trial, node] of scene.nodes) node.setAttribute("aria-pressed", state.pins.includes(trial));
  for (const row of document.querySelectorAll("#table tbody tr"))
    row.classList.toggle(
      "active",
      state.pins.some((trial) => trial.id === row.dataset.trial),
    );
  drawAside();
  if (state.touch || narrow()) keepInSight();
}

const scrolling = () => (window.matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth");
function reveal(trial) {
  byId("front").scrollIntoView({ behavior: scrolling() });
  if (!state.pins.includes(trial)) pin(trial);
}
