// The table of all trials: a click on a header sorts it, a query of words and conditions such as fid<5 filters it.
const KINDS = { acceptance: "acceptance", tree: "tree", drafter: "drafter" };
const COLUMNS = [
  { key: "number", name: "#", value: (trial) => trial.number },
  { key: "setting", name: "setting", text: true, value: (trial) => (trial.label || trial.description).toLowerCase() },
  ...Object.entries(KINDS).map(([key, name]) => ({ key, name, text: true, value: (trial) => trial.groups[key] })),
  ...[...new Set([DATA.axes.x, DATA.axes.y, ...DATA.axes.names])].filter(Boolean).map((metric) => ({ key: metric, name: metricTitle(metric), metric, value: (trial) => (trial.state === "complete" ? trial.metrics[metric]?.[0] ?? null : null) })),
  { key: "images", name: "images", value: (trial) => trial.images },
  { key: "seconds", name: "time", value: (trial) => trial.seconds },
];

function matching(front) {
  const words = state.query.toLowerCase().split(/\s+/).filter(Boolean);
  const tests = words.map((word) => condition(word) ?? ((trial) => haystack(trial).includes(word)));
  return DATA.trials.filter((trial) => tests.every((test) => test(trial)) && (!state.frontOnly || front.includes(trial)));
}
function condition(word) {
  const found = /^([a-z0-9_.]+)(<=|>=|<|>)(-?[0-9.]+)$/.exec(word);
  const column = found && COLUMNS.find((entry) => entry.key === found[1] && !entry.text);
  if (!column) return null;
  const limit = Number(found[3]), holds = { "<": (v) => v < limit, ">": (v) => v > limit, "<=": (v) => v <= limit, ">=": (v) => v >= limit }[found[2]];
  return (trial) => { const value = column.value(trial); return value !== null && holds(value); };
}
const haystack = (trial) => [`#${trial.number}`, trial.label, trial.description, ...Object.values(trial.groups), trial.state, trial.cause ?? ""].join(" ").toLowerCase();

// Numbers by value, text alphabetically; missing values come last in both directions.
function sorted(trials) {
  const { value } = COLUMNS.find((column) => column.key === state.sort.key), way = state.sort.descending ? -1 : 1;
  return [...trials].sort((a, b) => {
    const [u, v] = [value(a), value(b)];
    if (u === null || v === null) return (u === null) - (v === null) || a.number - b.number;
    return way * (typeof u === "string" ? u.localeCompare(v) : u - v) || a.number - b.number;
  });
}
function sortBy(column) {
  const best = column.metric ? DATA.metrics[column.metric].direction === "maximize" : false; // best values first
  state.sort = { key: column.key, descending: state.sort.key === column.key ? !state.sort.descending : best };
  drawTable(scene.front);
  byId("table").querySelector(`[data-key="${CSS.escape(column.key)}"] button`).focus();
  byId("announcement").textContent = `Sorted by ${column.name}, ${state.sort.descending ? "descending" : "ascending"}`;
}

function drawTable(front) {
  const rows = sorted(matching(front));
  const order = (column) => (state.sort.key !== column.key ? "none" : state.sort.descending ? "descending" : "ascending");
  const head = el("tr", {}, COLUMNS.map((column) => el("th", { scope: "col", "data-key": column.key, "aria-sort": order(column), class: column.text ? null : "number" },
    el("button", { type: "button", click: () => sortBy(column) }, column.name, el("span", { class: "arrow", "aria-hidden": "true" })))));
  byId("shown").textContent = rows.length === DATA.trials.length ? plural(rows.length, "trial") : `${rows.length} of ${plural(DATA.trials.length, "trial")}`;
  const left = byId("table").scrollLeft;
  show("table", el("table", {}, el("thead", {}, head), el("tbody", {}, rows.map((trial) => row(trial, front)))),
    rows.length ? null : el("p", { class: "empty" }, "No trial matches."));
  byId("table").scrollLeft = left;
}
function row(trial, front) {
  const at = scene.trials.includes(trial), name = trial.label ? el("strong", {}, trial.label) : null;
  const tags = [front.includes(trial) ? "front" : "", trial.state !== "complete" ? trial.state : trial.feasible ? "" : "violates a constraint",
    trial.duplicate_of === null ? "" : `duplicate of ${trial.duplicate_of}`].filter(Boolean);
  const cells = COLUMNS.map((column) => {
    if (column.key === "number") {
      return el("th", { scope: "row", class: "number" }, at ? el("button", { type: "button", class: "link", "aria-label": `Show trial ${trial.number} in the plot`, click: () => reveal(trial) }, trial.number) : trial.number);
    }
    if (column.key === "setting") {
      return el("td", { class: "setting" }, name, tags.map((tag) => el("span", { class: `tag ${tag === "front" ? "good" : tag === "failed" ? "bad" : ""}` }, tag)),
        el("span", { class: "description" }, trial.description));
    }
    if (column.text) return el("td", {}, trial.groups[column.key]);
    return el("td", { class: "number" }, ...cell(column, trial));
  });
  return el("tr", { "data-trial": trial.id, class: trial.state !== "complete" ? "failed" : state.pins.includes(trial) ? "active" : null }, cells);
}
function cell(column, trial) {
  if (column.key === "seconds") return [duration(trial.seconds)];
  if (!column.metric) return [column.value(trial).toLocaleString("en")];
  if (!trial.metrics[column.metric]) return [el("span", { class: "quiet" }, "–")];
  if (trial.state !== "complete") return [el("span", { class: "quiet", title: `on ${plural(trial.images, "image")}: not comparable with complete trials` }, formatMeasured(trial.metrics[column.metric]))];
  return withError(trial, column.metric);
}
