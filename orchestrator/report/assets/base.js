// DOM elements, number formats and the front. Text enters the page only as text nodes and attributes, never as markup.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const byId = (id) => document.getElementById(id);
const narrow = () => window.matchMedia("(max-width: 640px)").matches;

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || (value === false && !name.startsWith("aria-"))) continue;
    if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true && !name.startsWith("aria-") ? "" : String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return element;
}
const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
const show = (id, ...children) => byId(id).replaceChildren(...children.flat().filter(Boolean));

const metricTitle = (name) => (name ?? "metrics").replaceAll("_", " ");
const metricNote = (name) => `${name}: ${DATA.metrics[name].about}`; // the key, as in filters and commands
const capitalised = (text) => text.slice(0, 1).toUpperCase() + text.slice(1);
const unitOf = (metric) => (DATA.metrics[metric].unit === "x" ? "×" : DATA.metrics[metric].unit);
const several = DATA.sweeps.length > 1;
const title = (trial) =>
  (several ? `${DATA.sweeps[trial.sweep].name}: ` : "") + (trial.label || `trial ${trial.number}`);
const shortened = (text, length) => (text.length > length ? `${text.slice(0, length - 1).trimEnd()}…` : text);
const plural = (count, what) => `${count.toLocaleString("en")} ${what}${count === 1 ? "" : "s"}`;

// A share of draws, of which not even all make certain.
const percent = (share) => `${share > 0.99 ? ">99" : share < 0.01 ? "<1" : Math.round(100 * share)} %`;
function decimals(size, digits) {
  return size > 0 ? Math.max(0, Math.min(8, digits - 1 - Math.floor(Math.log10(size) + 1e-9))) : 0;
}
function formatNumber(value, places) {
  if (value !== 0 && (Math.abs(value) >= 1e7 || Math.abs(value) < 1e-6))
    return value.toExponential(2).replace("-", "−");
  const digits = { minimumFractionDigits: places, maximumFractionDigits: places };
  return value.toLocaleString("en", digits).replace("-", "−");
}
// A value to the second digit of its error, or with four digits if it has no error.
function parts([value, error]) {
  const places = error > 0 ? decimals(error, 2) : Number.isInteger(value) ? 0 : decimals(Math.abs(value), 4);
  return [formatNumber(value, places), error > 0 ? formatNumber(error, places) : null];
}
function formatMeasured(measured) {
  if (!measured) return "–";
  const [value, error] = parts(measured);
  return error === null ? value : `${value} ± ${error}`;
}
function duration(seconds) {
  if (seconds < 90) return `${formatNumber(seconds, seconds < 10 ? 1 : 0)} s`;
  return seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${formatNumber(seconds / 3600, 1)} h`;
}

const sign = (metric) => (DATA.metrics[metric].direction === "maximize" ? 1 : -1);
const goodness = (trial, metric) => sign(metric) * trial.metrics[metric][0];
// A duplicate has the values of the trial that it repeats, so only that one is drawn.
const plotted = (trial, x, y) =>
  trial.state === "complete" && trial.duplicate_of === null && trial.metrics[x] && trial.metrics[y];

// The trials that no other trial dominates: sorted by x from the best, each one with the best y so far.
function frontOf(trials, x, y) {
  const ordered = trials
    .filter((trial) => trial.feasible && plotted(trial, x, y))
    .sort((a, b) => goodness(b, x) - goodness(a, x) || goodness(b, y) - goodness(a, y));
  const front = [];
  for (const trial of ordered) {
    const last = front[front.length - 1];
    const better = !last || goodness(trial, y) > goodness(last, y);
    if (better || (goodness(trial, x) === goodness(last, x) && goodness(trial, y) === goodness(last, y)))
      front.push(trial);
  }
  return front.reverse(); // by improving x
}

const announce = (text) => {
  byId("announcement").textContent = text;
};
async function copy(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea", { readonly: true, class: "sr" }); // if the page has no access to the clipboard
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  button.textContent = "Copied";
  announce("Copied to the clipboard");
  window.setTimeout(() => {
    button.textContent = button.dataset.name;
  }, 1600);
}
function copyButton(text, name = "Copy") {
  const button = el(
    "button",
    { type: "button", class: "copy", "data-name": name, click: () => copy(text, button) },
    name,
  );
  return button;
}
