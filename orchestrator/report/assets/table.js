// The table of all trials: a click on a header sorts it, a query filters it, and its columns can be chosen.
const ROWS = 100; // before the reader asks for all
const shownColumns = new Set([
  "number",
  "sweep",
  "setting",
  ...(narrow() ? [] : ["acceptance", "tree", "drafter"]), // so that values are beside the settings
  "images",
  "seconds",
  ...COLUMNS.filter((column) => column.metric)
    .slice(0, 4)
    .map((column) => column.key),
]);
const inWords = (column) => column.text || column.flag;
const table = { tests: [], all: false, invalid: false };

function drawTableControls() {
  const box = (column) =>
    el(
      "label",
      {},
      el("input", {
        type: "checkbox",
        checked: shownColumns.has(column.key),
        "data-column": column.key,
        change: (event) => {
          shownColumns[event.target.checked ? "add" : "delete"](column.key);
          drawTable(scene.front);
        },
      }),
      column.name,
    );
  const part = (name, columns) =>
    columns.length ? el("fieldset", {}, el("legend", {}, name), columns.map(box)) : null;
  show(
    "table-controls",
    el("span", { class: "quiet", id: "shown", role: "status" }),
    el("input", {
      type: "search",
      id: "filter",
      placeholder: "fid<=1.2*vanilla and lossless",
      "aria-label": "Filter trials by words or by conditions on any key or metric, such as fid<=1.2*vanilla",
      "aria-describedby": "filter-error",
      spellcheck: "false",
      input: (event) => filterTable(event.target.value),
    }),
    toggle("front only", state.frontOnly, (on) => {
      state.frontOnly = on;
      drawTable(scene.front);
    }),
    el(
      "details",
      { class: "columns" },
      el("summary", {}, "columns"),
      el(
        "div",
        { class: "panel" },
        part(
          "Trial",
          COLUMNS.filter((column) => !column.metric && !column.config && column.key !== "number"),
        ),
        part(
          "Metrics",
          COLUMNS.filter((column) => column.metric),
        ),
        part(
          "Setting",
          COLUMNS.filter((column) => column.config),
        ),
      ),
    ),
  );
}
// Closes the choice of columns, and says whether it was open. The focus returns to its button, unless another element
// has taken it.
function closeColumns() {
  const box = byId("table-controls").querySelector(".columns[open]");
  if (!box) return false;
  if (box.contains(document.activeElement) || document.activeElement === document.body)
    box.querySelector("summary").focus({ preventScroll: true });
  box.open = false;
  return true;
}
// An invalid query has no result, and says what is wrong.
function filterTable(query) {
  let problem = "";
  try {
    table.tests = readQuery(query);
  } catch (error) {
    if (!(error instanceof FilterError)) throw error;
    problem = error.message;
    table.tests = [() => false];
  }
  table.invalid = problem !== "";
  byId("filter").setAttribute("aria-invalid", problem !== "");
  byId("filter-error").textContent = problem;
  drawTable(scene.front);
}

// Numbers by value, text alphabetically; missing values come last in both directions.
function sorted(trials) {
  const { value } = columnOf.get(state.sort.key),
    way = state.sort.descending ? -1 : 1;
  return [...trials].sort((a, b) => {
    const [u, v] = [value(a), value(b)];
    if (u === null || v === null) return (u === null) - (v === null) || a.number - b.number;
    return (
      way * (typeof u === "string" || typeof v === "string" ? String(u).localeCompare(String(v)) : u - v) ||
      a.number - b.number
    );
  });
}
function sortBy(column) {
  const best = column.metric ? DATA.metrics[column.metric].direction === "maximize" : false; // best values first
  state.sort = { key: column.key, descending: state.sort.key === column.key ? !state.sort.descending : best };
  drawTable(scene.front);
  byId("table")
    .querySelector(`[data-key="${CSS.escape(column.key)}"] button`)
    .focus();
  announce(`Sorted by ${column.name}, ${state.sort.descending ? "descending" : "ascending"}`);
}

function drawTable(front) {
  const on = new Set(front),
    columns = COLUMNS.filter((column) => shownColumns.has(column.key));
  const found = sorted(
    DATA.trials.filter((trial) => table.tests.every((test) => test(trial)) && (!state.frontOnly || on.has(trial))),
  );
  const rows = table.all ? found : found.slice(0, ROWS),
    drawn = new Set(scene.trials);
  const order = (column) =>
    state.sort.key !== column.key ? "none" : state.sort.descending ? "descending" : "ascending";
  const head = el(
    "tr",
    {},
    columns.map((column) =>
      el(
        "th",
        { scope: "col", "data-key": column.key, "aria-sort": order(column), class: inWords(column) ? null : "number" },
        el(
          "button",
          { type: "button", title: column.metric && metricNote(column.metric), click: () => sortBy(column) },
          column.name,
          el("span", { class: "arrow", "aria-hidden": "true" }),
        ),
      ),
    ),
  );
  byId("shown").textContent =
    found.length === DATA.trials.length
      ? plural(found.length, "trial")
      : `${found.length} of ${plural(DATA.trials.length, "trial")}`;
  const left = byId("table").scrollLeft;
  show(
    "table",
    el(
      "table",
      {},
      el("thead", {}, head),
      el(
        "tbody",
        {},
        rows.map((trial) => row(trial, columns, on, drawn)),
      ),
    ),
    found.length
      ? null
      : el("p", { class: "empty" }, table.invalid ? "No result: the filter cannot be read." : "No trial matches."),
    rows.length < found.length
      ? el(
          "button",
          {
            type: "button",
            class: "link more",
            click: () => {
              table.all = true;
              drawTable(front);
            },
          },
          `Show all ${found.length} rows`,
        )
      : null,
  );
  byId("table").scrollLeft = left;
  markMore();
}
// Leaves out columns that say more about a setting than is needed, as long as the table is wider than its place.
const SPARE = ["drafter", "tree", "acceptance", "images", "seconds"];
function fitTable() {
  const frame = byId("table");
  for (const key of narrow() ? [] : SPARE) {
    if (frame.scrollWidth <= frame.clientWidth) break;
    shownColumns.delete(key);
    byId("table-controls").querySelector(`[data-column="${key}"]`).checked = false;
    drawTable(scene.front);
  }
}
// Whether the table goes on to the right: its edge fades.
function markMore() {
  const frame = byId("table");
  frame.classList.toggle("goes-on", frame.scrollLeft + frame.clientWidth < frame.scrollWidth - 2);
}
function row(trial, columns, on, drawn) {
  const name = trial.label ? el("strong", {}, trial.label) : null;
  const tags = [
    on.has(trial) ? "front" : "",
    trial.lossless ? "lossless" : "",
    trial.state !== "complete" ? trial.state : trial.feasible ? "" : "violates a constraint",
    trial.duplicate_of === null ? "" : `duplicate of ${trial.duplicate_of}`,
  ].filter(Boolean);
  const cells = columns.map((column) => {
    if (column.key === "number") {
      return el(
        "th",
        { scope: "row", class: "number" },
        drawn.has(trial)
          ? el(
              "button",
              {
                type: "button",
                class: "link",
                "aria-label": `Show trial ${trial.number} in the plot`,
                click: () => reveal(trial),
              },
              trial.number,
            )
          : trial.number,
      );
    }
    if (column.key === "setting") {
      return el(
        "td",
        { class: "setting" },
        name,
        tags.map((tag) =>
          el("span", { class: `tag ${tag === "front" ? "good" : tag === "failed" ? "bad" : ""}` }, tag),
        ),
        el("span", { class: "description" }, trial.description),
      );
    }
    if (inWords(column)) return el("td", {}, shortened(String(column.value(trial) ?? "–"), 60));
    return el("td", { class: "number" }, ...cell(column, trial));
  });
  return el(
    "tr",
    {
      "data-trial": trial.id,
      class: trial.state !== "complete" ? "failed" : state.pins.includes(trial) ? "active" : null,
    },
    cells,
  );
}
function cell(column, trial) {
  if (column.key === "seconds") return [duration(trial.seconds)];
  if (column.config)
    return [
      trial.flat[DATA.keys.indexOf(column.key)] === null
        ? "–"
        : Number(column.value(trial).toPrecision?.(5) ?? column.value(trial)).toLocaleString("en", {
            maximumSignificantDigits: 5,
          }),
    ];
  if (!column.metric) return [column.value(trial).toLocaleString("en")];
  if (!trial.metrics[column.metric]) return [el("span", { class: "quiet" }, "–")];
  if (trial.state !== "complete")
    return [
      el(
        "span",
        { class: "quiet", title: `on ${plural(trial.images, "image")}: not comparable with complete trials` },
        formatMeasured(trial.metrics[column.metric]),
      ),
    ];
  return withError(trial, column.metric);
}
