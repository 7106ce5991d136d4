// The table of all trials: a click on a header sorts it, a query filters it, and its columns can be chosen.
import { keep, keepOne } from "../assets/address.js";
import { isSelected } from "../assets/brush.js";
import { DATA, isMaximized, metricNote } from "../assets/data.js";
import { announce, button, byId, el, narrow, show, toggle } from "../assets/dom.js";
import { asCsv, downloadButton } from "../assets/downloads.js";
import { FilterError, queryReader } from "../assets/filter.js";
import { duration, formatMeasured, plural, shortened, significant } from "../assets/format.js";
import { reveal } from "../assets/selection.js";
import { follow, state } from "../assets/state.js";
import { withError } from "../assets/values.js";

const ROWS = 100; // before the reader asks for all
const FIRST = ["number", "sweep", "setting", "images", "seconds"]; // columns, with METRICS metrics
const METRICS = 4;
const SPARE = ["drafter", "tree", "acceptance", "images", "seconds"]; // these say more about a setting than is needed
const FACTS = {
  setting: (trial) => (trial.label || trial.description).toLowerCase(),
  label: (trial) => trial.label || null,
  front: (trial) => state.scene.front.includes(trial),
};
const table = {
  columns: new Map(),
  shown: new Set(),
  test: () => true,
  all: false,
  invalid: false,
  query: "",
  front: false,
};
const order = { key: "number", descending: false };
let read = null;

// What a trial has in a column; null for nothing.
function reader({ key, part }) {
  if (part === "metric") return ({ metrics, state: own }) => (own === "complete" ? (metrics[key]?.[0] ?? null) : null);
  if (part === "parameter") return ({ flat }) => flat[DATA.keys.indexOf(key)];
  return FACTS[key] ?? ((trial) => trial.groups[key] ?? trial[key]);
}
const columnsOf = (part) => [...table.columns.values()].filter((column) => column.part === part);

export function draw(host, { columns, patterns, headings }, controls) {
  table.columns = new Map(columns.map((column) => [column.key, { ...column, value: reader(column) }]));
  read = queryReader(table.columns, patterns, headings);
  const metrics = columnsOf("metric").map(({ key }) => key),
    words = narrow() ? [] : ["acceptance", "tree", "drafter"];
  table.shown = new Set([...FIRST, ...words, ...metrics.slice(0, METRICS)]);
  keepOne("front", table, [false, true]);
  keep(
    "sort",
    () => [order.key, order.descending ? "down" : "up"],
    ([key, way]) => table.columns.has(key) && Object.assign(order, { key, descending: way === "down" }),
  );
  drawControls(controls);
  const region = { id: "table", tabindex: 0, role: "region", "aria-labelledby": "trials-title" };
  show(host, el("p.problem", { id: "filter-error", role: "alert" }), el("div.panel.scroll", region));
  byId("table").addEventListener("scroll", markMore, { passive: true });
  document.addEventListener("click", (event) => event.target.closest(".columns") || closeColumns());
  // before the page releases pinned trials
  const close = (event) => event.key === "Escape" && closeColumns() && event.preventDefault();
  document.addEventListener("keydown", close, true);
  keep(
    "filter",
    () => [table.query],
    ([query]) => {
      table.query = byId("filter").value = query;
    },
  );
  filterTable(table.query);
  fitTable();
  keep("columns", () => [...table.columns.keys()].filter((key) => table.shown.has(key)), showColumns);
  follow("axes", drawTable);
  follow("selection", markPinned);
}
function drawControls(controls) {
  const field = {
    type: "search",
    id: "filter",
    placeholder: "fid<=1.2*vanilla and lossless",
    "aria-label": "Filter trials by words or by conditions on any key or metric, such as fid<=1.2*vanilla",
    "aria-describedby": "filter-error",
    spellcheck: "false",
    input: (event) => filterTable(event.target.value),
  };
  const showFront = (on) => {
    table.front = on;
    drawTable();
  };
  const facts = columnsOf("trial").filter(({ key }) => key !== "number"),
    parts = [
      ["Trial", facts],
      ["Metrics", columnsOf("metric")],
      ["Setting", columnsOf("parameter")],
    ];
  const part = ([name, columns]) => columns.length > 0 && el("fieldset", el("legend", name), columns.map(box));
  show(
    controls,
    el("span.quiet", { id: "shown", role: "status" }),
    el("input", field),
    toggle("front only", table.front, showFront),
    downloadButton(".toggle", "CSV", "trials.csv", "text/csv", tableText, { title: "Download these rows" }),
    el("details.columns", el("summary", "columns"), el("div.panel", parts.map(part))),
  );
}
// Whether a column is shown.
function box({ key, name }) {
  const change = (event) => {
    table.shown[event.target.checked ? "add" : "delete"](key);
    drawTable();
  };
  return el(
    "label",
    el("input", { type: "checkbox", checked: table.shown.has(key), "data-column": key, change }),
    name,
  );
}
function showColumns(keys) {
  table.shown = new Set(keys.filter((key) => table.columns.has(key)));
  for (const field of byId("trials-controls").querySelectorAll("[data-column]"))
    field.checked = table.shown.has(field.dataset.column);
  drawTable();
}
// Closes the choice of columns, and says whether it was open. The focus returns to its button, unless another element
// has taken it.
function closeColumns() {
  const open = byId("trials-controls").querySelector(".columns[open]");
  if (!open) return false;
  if (open.contains(document.activeElement) || document.activeElement === document.body)
    open.querySelector("summary").focus({ preventScroll: true });
  open.open = false;
  return true;
}
// An invalid query has no result, and says what is wrong.
function filterTable(query) {
  let problem = "";
  table.query = query;
  try {
    table.test = read(query);
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    problem = error.message;
    table.test = () => false;
  }
  table.invalid = problem !== "";
  byId("filter").setAttribute("aria-invalid", table.invalid);
  show("filter-error", problem);
  drawTable();
}

// Numbers by value, text alphabetically; missing values come last in both directions.
function sorted(trials) {
  const { value } = table.columns.get(order.key),
    way = order.descending ? -1 : 1;
  return [...trials].sort((a, b) => {
    const [u, v] = [value(a), value(b)],
      isText = typeof u === "string" || typeof v === "string";
    if (u === null || v === null) return (u === null) - (v === null) || a.number - b.number;
    return way * (isText ? String(u).localeCompare(String(v)) : u - v) || a.number - b.number;
  });
}
function sortBy({ key, name, part }) {
  const bestFirst = part === "metric" && isMaximized(key);
  Object.assign(order, { key, descending: order.key === key ? !order.descending : bestFirst });
  drawTable();
  byId("table")
    .querySelector(`[data-key="${CSS.escape(key)}"] button`)
    .focus();
  announce(`Sorted by ${name}, ${order.descending ? "descending" : "ascending"}`);
}

const shownColumns = () => [...table.columns.values()].filter(({ key }) => table.shown.has(key));
function matches() {
  const front = new Set(state.scene.front),
    passes = (trial) => table.test(trial) && (!table.front || front.has(trial));
  return sorted(DATA.trials.filter((trial) => isSelected(trial) && passes(trial)));
}
// The table's rows and columns, with whole numbers and a column of errors beside each metric.
function tableText() {
  const columns = shownColumns(),
    names = ({ key, part }) => (part === "metric" ? [key, `error/${key}`] : key),
    value = (column, trial) => (column.key === "setting" ? trial.label || trial.description : column.value(trial)),
    measured = ({ key, value: own }, trial) => (own(trial) === null ? [null, null] : trial.metrics[key].slice(0, 2)),
    cells = (trial) => (column) => (column.part === "metric" ? measured : value)(column, trial);
  return asCsv([columns.flatMap(names), ...matches().map((trial) => columns.flatMap(cells(trial)))]);
}
function drawTable() {
  const front = new Set(state.scene.front),
    columns = shownColumns(),
    found = matches(),
    rows = table.all ? found : found.slice(0, ROWS),
    plotted = new Set(state.scene.trials),
    left = byId("table").scrollLeft;
  const all = plural(DATA.trials.length, "trial"),
    none = table.invalid ? "No result: the filter cannot be read." : "No trial matches.";
  const showAll = () => {
    table.all = true;
    drawTable();
  };
  show("shown", found.length === DATA.trials.length ? all : `${found.length} of ${all}`);
  show(
    "table",
    el(
      "table",
      el("thead", el("tr", columns.map(header))),
      el(
        "tbody",
        rows.map((trial) => row(trial, columns, front.has(trial), plotted.has(trial))),
      ),
    ),
    !found.length && el("p.empty", none),
    rows.length < found.length && button(".link.more", `Show all ${found.length} rows`, showAll),
  );
  byId("table").scrollLeft = left;
  markMore();
  markPinned();
}
function header(column) {
  const { key, name, part } = column,
    way = order.key !== key ? "none" : order.descending ? "descending" : "ascending",
    arrow = el("span.arrow", { "aria-hidden": "true" }),
    title = part === "metric" ? metricNote(key) : null,
    attributes = { scope: "col", "data-key": key, "aria-sort": way, class: isNumber(column) ? "number" : null };
  return el(
    "th",
    attributes,
    button("", [name, arrow], () => sortBy(column), { title }),
  );
}
const isNumber = ({ kind }) => kind === "numbers";
// Leaves out columns as long as the table is wider than its place.
function fitTable() {
  const frame = byId("table");
  for (const key of narrow() ? [] : SPARE) {
    if (frame.scrollWidth <= frame.clientWidth) break;
    table.shown.delete(key);
    byId("trials-controls").querySelector(`[data-column="${key}"]`).checked = false;
    drawTable();
  }
}
// Whether the table goes on to the right: its edge fades.
function markMore() {
  const frame = byId("table");
  frame.classList.toggle("goes-on", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 2);
}
function markPinned() {
  const pinned = new Set(state.pins.map(({ id }) => id));
  for (const line of document.querySelectorAll("#table tbody tr"))
    line.classList.toggle("active", pinned.has(line.dataset.trial));
}
function row(trial, columns, isMember, isPlotted) {
  const cells = columns.map((column) => {
    if (column.key === "number") return el("th.number", { scope: "row" }, numberCell(trial, isPlotted));
    if (column.key === "setting") return el("td.setting", settingCell(trial, isMember));
    if (isNumber(column)) return el("td.number", cell(column, trial));
    return el("td", shortened(String(column.value(trial) ?? "–"), 60));
  });
  return el("tr", { "data-trial": trial.id, class: trial.state !== "complete" ? "failed" : null }, cells);
}
function numberCell(trial, isPlotted) {
  const name = { "aria-label": `Show trial ${trial.number} in the plot` };
  return isPlotted ? button(".link", trial.number, () => reveal(trial), name) : trial.number;
}
function settingCell(trial, isMember) {
  const tag = (text, style = "") => text && el(`span.tag${style}`, text),
    isComplete = trial.state === "complete";
  return [
    trial.label && el("strong", trial.label),
    isMember && tag("front", ".good"),
    trial.lossless && tag("lossless"),
    !isComplete && tag(trial.state, trial.state === "failed" ? ".bad" : ""),
    isComplete && !trial.feasible && tag("violates a constraint"),
    trial.duplicate_of !== null && tag(`duplicate of ${trial.duplicate_of}`),
    el("span.description", { title: trial.explanation }, trial.description),
  ];
}
const parameter = (value) => (typeof value === "number" ? significant(value, 5) : (value?.toString() ?? "–"));
function cell({ key, part, value }, trial) {
  if (key === "seconds") return duration(trial.seconds);
  if (part === "parameter") return parameter(value(trial));
  if (part !== "metric") return value(trial).toLocaleString("en");
  if (!trial.metrics[key]) return el("span.quiet", "–");
  if (trial.state === "complete") return withError(trial, key);
  const title = `on ${plural(trial.images, "image")}: not comparable with complete trials`;
  return el("span.quiet", { title }, formatMeasured(trial.metrics[key]));
}
