// The image comparer: the same captions by vanilla and two chosen settings, side by side, blinking, or as differences.
const SHEETS = DATA.comparer.sheets ?? {},
  PER_PAGE = 12,
  BLINK_MS = 700,
  AMPLIFY = 3;
const ZOOMS = [1, 1.5, 2, 3, 4, 6]
  .map((factor) => Math.round(factor * (DATA.comparer.width ?? 48)))
  .filter((side) => side <= 400);
// trials: the reference and one or two others. chosen: by the reader, so the slider no longer changes them.
const compared = {
  trials: [],
  chosen: false,
  mode: "side",
  page: 0,
  zoom: ZOOMS.findIndex((side) => side >= 90),
  flipped: false,
  timer: null,
};
const loaded = new Map(); // key -> a promise of its sheet

const withSheet = () =>
  DATA.trials.filter((trial) => SHEETS[trial.images_of] && trial.state === "complete" && trial.duplicate_of === null);
function sheet(key) {
  if (!loaded.has(key)) {
    const image = new Image();
    image.src = SHEETS[key];
    loaded.set(
      key,
      image.decode().then(() => image),
    );
  }
  return loaded.get(key);
}

function drawImages() {
  const trials = withSheet();
  if (trials.length < 2)
    return show("image-panel", el("p", { class: "empty" }, "This report has no images of two settings to compare."));
  compared.trials = defaultTrials(trials);
  const others = trials.filter((trial) => trial !== compared.trials[0]);
  const pages = Math.ceil(DATA.comparer.captions.length / PER_PAGE);
  const select = (place, name) =>
    choice(
      name,
      others.map((trial) => [trial.id, shortened(`${title(trial)}${trial.label ? "" : `: ${trial.description}`}`, 48)]),
      compared.trials[place].id,
      (id) => {
        compared.chosen = true;
        setCompared(compared.trials.with(place, trialOf.get(id)));
      },
    );
  const modes = [
    ["side", "side by side"],
    ["blink", "blink"],
    ["difference", "difference"],
  ].map(([mode, name]) =>
    el(
      "button",
      {
        type: "button",
        class: "toggle",
        "data-mode": mode,
        "aria-pressed": mode === compared.mode,
        click: () => setMode(mode),
      },
      name,
    ),
  );
  const turn = (step) => () => {
    compared.page = (compared.page + step + pages) % pages;
    drawTiles();
  };
  show(
    "image-controls",
    compared.trials.slice(1).map((_, i) => select(i + 1, ["first", "second"][i])),
    el("span", { class: "buttons", role: "group", "aria-label": "How images are compared" }, modes),
    el(
      "button",
      { type: "button", class: "toggle", id: "flip", hidden: true, click: () => flip(!compared.flipped) },
      "flip",
    ),
    el(
      "label",
      { class: "choice" },
      el("span", {}, "size"),
      el("input", {
        type: "range",
        id: "zoom",
        min: 0,
        max: ZOOMS.length - 1,
        step: 1,
        value: compared.zoom,
        input: (event) => {
          compared.zoom = Number(event.target.value);
          setZoom();
        },
      }),
    ),
    el(
      "span",
      { class: "buttons" },
      el("button", { type: "button", class: "toggle", "aria-label": "Previous captions", click: turn(-1) }, "‹"),
      el("span", { class: "quiet", id: "image-page" }),
      el("button", { type: "button", class: "toggle", "aria-label": "Next captions", click: turn(1) }, "›"),
    ),
  );
  drawImageNote();
  return drawTiles();
}
function drawImageNote() {
  const difference = `Differences to the reference are shown ${AMPLIFY} times as strong.`;
  show(
    "image-note",
    DATA.comparer.from_tokens
      ? "Images beside each other have one caption and the same random numbers. "
      : "The target was not at hand when this report was written: these are the first images of each trial. ",
    compared.mode === "difference" && difference,
  );
}
// Vanilla, the recommended setting and the knee; further ones where these are the same.
function defaultTrials(trials) {
  const vanilla = trials.find((trial) => trial === vanillaOf(trial)) ?? trials[0];
  const wanted = [recommended(), kneeTrial(), ...frontOf(trials, state.x, state.y).reverse(), ...trials];
  const able = [...new Set(wanted)].filter((trial) => trials.includes(trial) && trial !== vanilla);
  const others = able.filter((trial) => trial !== vanillaOf(trial)); // of another sweep
  return [vanilla, ...(others.length ? others : able).slice(0, 2)];
}
function setCompared(trials) {
  compared.trials = trials;
  for (const [i, list] of byId("image-controls").querySelectorAll("select").entries()) list.value = trials[i + 1].id;
  return drawTiles();
}
// The slider has moved.
function followRecommendation() {
  if (!compared.trials.length || compared.chosen) return;
  const trials = defaultTrials(withSheet());
  if (trials.some((trial, i) => trial !== compared.trials[i])) setCompared(trials);
}
function setMode(mode) {
  compared.mode = mode;
  for (const button of byId("image-controls").querySelectorAll("[data-mode]"))
    button.setAttribute("aria-pressed", button.dataset.mode === mode);
  const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
  window.clearInterval(compared.timer);
  compared.timer = mode === "blink" && !still ? window.setInterval(() => flip(!compared.flipped), BLINK_MS) : null;
  byId("flip").hidden = mode !== "blink";
  drawImageNote();
  flip(false);
}
// In blink mode vanilla's image takes the place of each other one, and back.
function flip(on) {
  compared.flipped = on;
  byId("image-panel").classList.toggle("flipped", on);
  paintTiles();
}
const setZoom = () => {
  const side = ZOOMS[compared.zoom],
    panel = byId("image-panel");
  panel.style.setProperty("--tile", `${side}px`);
  panel.classList.toggle("pixels", side >= 2 * DATA.comparer.width);
};

function drawTiles() {
  const { captions, width, height } = DATA.comparer,
    first = compared.page * PER_PAGE,
    shown = captions.slice(first, first + PER_PAGE);
  byId("image-page").textContent = `${first + 1}–${first + shown.length} of ${captions.length}`;
  const tile = (trial, number, place) =>
    el("canvas", {
      width,
      height,
      role: "img",
      "data-trial": trial.id,
      "data-caption": number,
      "data-place": place,
      "aria-label": `${title(trial)}: ${captions[number]}`,
    });
  show(
    "image-panel",
    el(
      "div",
      { class: "tile-names" },
      compared.trials.map((trial, place) =>
        el("span", {}, icon(trial), place ? title(trial) : `${title(trial)} (reference)`),
      ),
    ),
    el(
      "div",
      { class: "tiles" },
      shown.map((caption, i) =>
        el(
          "figure",
          {},
          el(
            "div",
            { class: "triple" },
            compared.trials.map((trial, place) => tile(trial, first + i, place)),
          ),
          el("figcaption", {}, caption),
        ),
      ),
    ),
  );
  setZoom();
  return paintTiles();
}
async function paintTiles() {
  const { trials } = compared,
    [base, ...others] = await Promise.all(trials.map((trial) => sheet(trial.images_of)));
  if (trials !== compared.trials) return; // others were chosen meanwhile
  for (const canvas of byId("image-panel").querySelectorAll("canvas")) {
    const own = [base, ...others][Number(canvas.dataset.place)],
      context = canvas.getContext("2d", { willReadFrequently: true });
    const source = compared.mode === "blink" && compared.flipped ? base : own,
      number = Number(canvas.dataset.caption);
    paint(context, source, number);
    if (compared.mode === "difference" && own !== base) subtract(context, base, number);
  }
  byId("image-panel").dataset.painted =
    `${compared.mode} ${compared.page} ${compared.flipped} ${compared.trials.map((trial) => trial.id).join(" ")}`;
}
function paint(context, source, number) {
  const { width, height, columns } = DATA.comparer;
  context.drawImage(
    source,
    (number % columns) * width,
    Math.floor(number / columns) * height,
    width,
    height,
    0,
    0,
    width,
    height,
  );
}
// The absolute difference to vanilla's image, amplified.
function subtract(context, base, number) {
  const { width, height } = DATA.comparer,
    own = context.getImageData(0, 0, width, height);
  paint(context, base, number);
  const other = context.getImageData(0, 0, width, height);
  for (let i = 0; i < own.data.length; i += 1)
    if (i % 4 < 3) own.data[i] = Math.min(255, AMPLIFY * Math.abs(own.data[i] - other.data[i]));
  context.putImageData(own, 0, 0);
}
// Compares the images of two pinned trials.
function compareImages(trials) {
  const [vanilla, ...before] = compared.trials,
    able = trials.filter((trial) => SHEETS[trial.images_of] && trial !== vanilla);
  compared.chosen = true;
  setCompared([vanilla, ...new Set([...able, ...before])].slice(0, compared.trials.length));
  byId("images").scrollIntoView({ behavior: scrolling() });
}
