// The image comparer: the same captions by vanilla and two chosen settings, side by side, blinking, or as differences.
import { keep, keepOne } from "../assets/address.js";
import { kneeTrial, recommended } from "../assets/choices.js";
import { DATA, frontOf, sheetOf, shownNote, trialOf, vanillaOf } from "../assets/data.js";
import { button, byId, choice, el, scrolling, show, still, toggle } from "../assets/dom.js";
import { formatNumber, shortened } from "../assets/format.js";
import { icon } from "../assets/marks.js";
import { follow, state } from "../assets/state.js";

const PER_PAGE = 12,
  BLINK_MS = 700,
  AMPLIFY = 3,
  MAX_SIDE = 400,
  ZOOMS = [1, 1.5, 2, 3, 4, 6];
const MODES = { side: "side by side", blink: "blink", difference: "difference" };
const LOSSLESS =
  "The images of a lossless setting are other samples of vanilla's distribution: they differ from vanilla's as two " +
  "images of vanilla would, and their quality is the same. ";
let data = null;
// trials: the reference and one or two others. chosen: by the reader, so the slider no longer changes them. order: of
// captions, by their numbers. differences: of the first two trials, see `differencesOf`.
const compared = {
  trials: [],
  chosen: false,
  mode: "side",
  page: 0,
  zoom: 0,
  flipped: false,
  timer: null,
  byDifference: true,
  order: [],
  differences: [],
};
const measured = new Map(); // keys of two sheets -> a promise of their differences
const loaded = new Map(); // key -> a promise of its sheet

function sheet(key) {
  if (!loaded.has(key)) {
    const image = new Image();
    image.src = data.sheets[key];
    loaded.set(
      key,
      image.decode().then(() => image),
    );
  }
  return loaded.get(key);
}
const withSheet = () =>
  DATA.trials.filter((trial) => sheetOf(trial) && trial.state === "complete" && trial.duplicate_of === null);

export function draw(host, given, controls) {
  data = given;
  const trials = withSheet();
  show(host, el("p.lead", { id: "image-note" }), el("div.panel", { id: "image-panel" }));
  if (trials.length < 2)
    return show("image-panel", el("p.empty", "This report has no images of two settings to compare."));
  compared.trials = defaultTrials(trials);
  compared.order = [...data.captions.keys()];
  const others = trials.filter((trial) => trial !== compared.trials[0]);
  keepChoices(others);
  drawControls(controls, others);
  setMode(compared.mode);
  follow("bar", followRecommendation);
  follow("compare", compareImages);
  drawTiles();
  return orderTiles();
}
// others: that can be compared with the first.
function keepChoices(others) {
  const sides = zooms();
  compared.zoom = sides.findIndex((side) => side >= 90);
  keepOne("mode", compared, Object.keys(MODES));
  keepOne("byDifference", compared, [true, false]);
  keepOne("page", compared, [...Array(pageCount()).keys()]);
  keepOne("zoom", compared, [...sides.keys()]);
  keep(
    "images",
    () => (compared.chosen ? compared.trials.slice(1).map(({ id }) => id) : []),
    (ids) => {
      const [first, ...before] = compared.trials,
        able = ids.map(trialOf).filter((trial) => others.includes(trial));
      compared.chosen = able.length > 0;
      compared.trials = [first, ...[...able, ...before].slice(0, before.length)];
    },
  );
}
const pageCount = () => Math.ceil(data.captions.length / PER_PAGE);
function drawControls(controls, others) {
  const name = (trial) => shortened(trial.label ? trial.title : `${trial.title}, ${trial.description}`, 48),
    options = others.map((trial) => [trial.id, name(trial)]);
  const select = (trial, i) =>
    choice(["first", "second"][i], options, trial.id, (id) => choose(compared.trials.with(i + 1, trialOf(id))));
  const mode = ([key, text]) =>
    button(".toggle", text, () => setMode(key), { "data-mode": key, "aria-pressed": key === compared.mode });
  const pages = pageCount();
  const turn = (step) => () => {
    compared.page = (compared.page + step + pages) % pages;
    drawTiles();
  };
  const order = (on) => {
    compared.byDifference = on;
    orderTiles();
  };
  const sides = zooms(),
    zoom = (event) => {
      compared.zoom = Number(event.target.value);
      setZoom();
    };
  const slider = { type: "range", id: "zoom", max: sides.length - 1, value: compared.zoom, input: zoom };
  show(
    controls,
    compared.trials.slice(1).map(select),
    el("span.buttons", { role: "group", "aria-label": "How images are compared" }, Object.entries(MODES).map(mode)),
    button(".toggle", "flip", () => flip(!compared.flipped), { id: "flip", hidden: true }),
    toggle("most different first", compared.byDifference, order),
    el("label.choice", el("span", "size"), el("input", slider)),
    el(
      "span.buttons",
      button(".toggle", "‹", turn(-1), { "aria-label": "Previous captions" }),
      el("span.quiet", { id: "image-page" }),
      button(".toggle", "›", turn(1), { "aria-label": "Next captions" }),
    ),
  );
}
function drawNote() {
  const source = data.from_tokens
    ? "Images beside each other have one caption and the same random numbers. "
    : "The target was not at hand when this report was written: these are the first images of each trial. ";
  const difference = `Differences to the reference are shown ${AMPLIFY} times as strong. `,
    share = "Per cent: the mean difference of the first two images. A click enlarges them. ";
  show(
    "image-note",
    source,
    share,
    compared.mode === "difference" && difference,
    compared.trials.slice(1).some((trial) => trial.lossless) && LOSSLESS,
    shownNote(withSheet()),
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
  for (const [i, list] of byId("images-controls").querySelectorAll("select").entries()) list.value = trials[i + 1].id;
  drawNote();
  drawTiles();
  return orderTiles();
}
function choose(trials) {
  compared.chosen = true;
  setCompared(trials);
}
// The slider has moved.
function followRecommendation() {
  const trials = compared.chosen ? compared.trials : defaultTrials(withSheet());
  if (trials.some((trial, i) => trial !== compared.trials[i])) setCompared(trials);
}
// Compares the images of pinned trials.
function compareImages(trials) {
  const [vanilla, ...before] = compared.trials,
    able = trials.filter((trial) => sheetOf(trial) && trial !== vanilla);
  choose([vanilla, ...new Set([...able, ...before])].slice(0, compared.trials.length));
  byId("images").scrollIntoView({ behavior: scrolling() });
}
function setMode(mode) {
  compared.mode = mode;
  for (const other of byId("images-controls").querySelectorAll("[data-mode]"))
    other.setAttribute("aria-pressed", other.dataset.mode === mode);
  window.clearInterval(compared.timer);
  const blink = () => flip(!compared.flipped);
  compared.timer = mode === "blink" && !still() ? window.setInterval(blink, BLINK_MS) : null;
  byId("flip").hidden = mode !== "blink";
  drawNote();
  flip(false);
}
// In blink mode vanilla's image takes the place of each other one, and back.
function flip(on) {
  compared.flipped = on;
  byId("image-panel").classList.toggle("flipped", on);
  paintTiles();
}
const zooms = () => ZOOMS.map((factor) => Math.round(factor * data.width)).filter((side) => side <= MAX_SIDE);
function setZoom() {
  const side = zooms()[compared.zoom],
    panel = byId("image-panel");
  panel.style.setProperty("--tile", `${side}px`);
  panel.classList.toggle("pixels", side >= 2 * data.width);
}

function drawTiles() {
  const { captions, width, height } = data,
    first = compared.page * PER_PAGE,
    shown = compared.order.slice(first, first + PER_PAGE);
  const tile = (trial, place, number) =>
    el("canvas", {
      width,
      height,
      role: "img",
      "data-trial": trial.id,
      "data-caption": number,
      "data-place": place,
      "aria-label": `${trial.title}: ${captions[number]}`,
    });
  const tiles = (number) => compared.trials.map((trial, place) => tile(trial, place, number)),
    name = (trial, place) => el("span", icon(trial), place ? trial.title : `${trial.title} (reference)`);
  const enlarge = ({ currentTarget: pressed }) =>
    pressed.setAttribute("aria-pressed", pressed.closest("figure").classList.toggle("large"));
  const figure = (number) => {
    const share = compared.differences[number],
      isKnown = share !== undefined,
      attributes = { "aria-pressed": false, "aria-label": `Enlarge: ${captions[number]}` };
    return el(
      "figure",
      button(".triple", tiles(number), enlarge, attributes),
      el("figcaption", captions[number], isKnown && el("span.share", ` ${formatNumber(100 * share, 1)} %`)),
    );
  };
  show("image-page", `${first + 1}–${first + shown.length} of ${captions.length}`);
  show("image-panel", el("div.tile-names", compared.trials.map(name)), el("div.tiles", shown.map(figure)));
  setZoom();
  return paintTiles();
}
// Orders the captions by how much the first two images differ, or as they came, and draws them again.
async function orderTiles() {
  const { trials } = compared,
    differences = await differencesOf(...trials.map((trial) => trial.images_of));
  if (trials !== compared.trials) return; // others were chosen meanwhile
  const order = [...data.captions.keys()];
  if (compared.byDifference) order.sort((a, b) => differences[b] - differences[a]);
  Object.assign(compared, { differences, order });
  drawTiles();
}
// The mean difference of two sheets' images in each caption, as a share of the range of a colour.
function differencesOf(first, second) {
  const key = `${first} ${second}`;
  const measure = (sheets) => {
    const { captions, width, height, columns } = data,
      [sheetWidth, sheetHeight] = [columns * width, Math.ceil(captions.length / columns) * height],
      [a, b] = sheets.map((source) => colours(source, sheetWidth, sheetHeight)),
      sums = new Float64Array(columns * Math.ceil(captions.length / columns));
    for (let y = 0; y < sheetHeight; y += 1)
      for (let x = 0; x < sheetWidth; x += 1) {
        const number = Math.floor(y / height) * columns + Math.floor(x / width),
          at = 4 * (y * sheetWidth + x);
        for (let i = at; i < at + 3; i += 1) sums[number] += Math.abs(a[i] - b[i]);
      }
    return Array.from(sums, (sum) => sum / (3 * 255 * width * height));
  };
  if (!measured.has(key)) measured.set(key, Promise.all([first, second].map(sheet)).then(measure));
  return measured.get(key);
}
function colours(source, width, height) {
  const context = el("canvas", { width, height }).getContext("2d", { willReadFrequently: true });
  context.drawImage(source, 0, 0);
  return context.getImageData(0, 0, width, height).data;
}
async function paintTiles() {
  const { trials } = compared,
    sheets = await Promise.all(trials.map((trial) => sheet(trial.images_of)));
  if (trials !== compared.trials) return; // others were chosen meanwhile
  for (const canvas of byId("image-panel").querySelectorAll("canvas")) {
    const own = sheets[canvas.dataset.place],
      number = Number(canvas.dataset.caption),
      context = canvas.getContext("2d", { willReadFrequently: true });
    paint(context, compared.mode === "blink" && compared.flipped ? sheets[0] : own, number);
    if (compared.mode === "difference" && own !== sheets[0]) subtract(context, sheets[0], number);
  }
  const { mode, page, flipped } = compared;
  byId("image-panel").dataset.painted = `${mode} ${page} ${flipped} ${trials.map((trial) => trial.id).join(" ")}`;
}
function paint(context, source, number) {
  const { width, height, columns } = data,
    [x, y] = [(number % columns) * width, Math.floor(number / columns) * height];
  context.drawImage(source, x, y, width, height, 0, 0, width, height);
}
// The absolute difference to vanilla's image, amplified.
function subtract(context, base, number) {
  const { width, height } = data,
    own = context.getImageData(0, 0, width, height);
  paint(context, base, number);
  const other = context.getImageData(0, 0, width, height);
  for (let i = 0; i < own.data.length; i += 1)
    if (i % 4 < 3) own.data[i] = Math.min(255, AMPLIFY * Math.abs(own.data[i] - other.data[i]));
  context.putImageData(own, 0, 0);
}
