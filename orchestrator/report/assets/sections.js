// The parts below the first screen: texts and tables.
const COMPARISON_TERMS =
  "More hypervolume: of the first front, with the error of the difference; trials on equal captions are paired. " +
  "Epsilon: how much the first front must improve to match the second everywhere, in units of the fronts' range; " +
  "0 or less: it already does. Covers: the share of the second front that the first equals or dominates.";

function drawWithinError(front) {
  if (front.length < 2) return show("within-error");
  const pairs = indistinguishable(front),
    bold = (trial) => el("strong", {}, title(trial));
  const line = (words, metrics) => {
    const these = pairs.filter((pair) => pair.metrics.join() === metrics.join());
    return these.length
      ? el("li", {}, words, these.map(({ a, b }, i) => [i ? "; " : " ", bold(a), " and ", bold(b)]).flat())
      : null;
  };
  const [x, y] = [metricTitle(state.x), metricTitle(state.y)];
  return show(
    "within-error",
    el(
      "div",
      { class: "note" },
      pairs.length
        ? [
            el("p", {}, "Neighbours on this front that are within error of each other (95 %):"),
            el(
              "ul",
              {},
              line(`In both ${x} and ${y}:`, [state.x, state.y]),
              line(`In ${x} only:`, [state.x]),
              line(`In ${y} only:`, [state.y]),
            ),
          ]
        : el("p", {}, `No neighbours on this front are within error of each other in ${x} or ${y} (95 %).`),
    ),
  );
}

// Hypervolume of each sweep's front, and each pair of fronts.
function drawComparison() {
  byId("comparison").hidden = !DATA.comparison;
  if (!DATA.comparison) return;
  const corner = ([name, value]) => `${metricTitle(name)} ${formatTick(value)}`;
  const { reference, fronts, pairs, notes } = DATA.comparison,
    row = (cells, head = false) =>
      el(
        "tr",
        {},
        cells.map((text, i) =>
          el(head || !i ? "th" : "td", { scope: head ? "col" : !i ? "row" : null, class: i ? "number" : null }, text),
        ),
      );
  const grid = (head, rows) =>
    el(
      "div",
      { class: "panel scroll" },
      el(
        "table",
        {},
        el("thead", {}, row(head, true)),
        el(
          "tbody",
          {},
          rows.map((cells) => row(cells)),
        ),
      ),
    );
  show(
    "comparison-list",
    notes.length
      ? el(
          "ul",
          { class: "note" },
          notes.map((note) => el("li", {}, note)),
        )
      : null,
    grid(
      ["front", "trials", "on its front", "hypervolume"],
      fronts.map(({ name, trials, members, volume, error }) => [
        name,
        trials,
        members,
        formatMeasured([volume, error]),
      ]),
    ),
    el("p", { class: "lead" }, `Up to the reference point ${reference.map(corner).join(", ")}. `, COMPARISON_TERMS),
    grid(
      ["front", "against", "more hypervolume", "epsilon", "covers"],
      pairs.map(({ first, second, more, error, epsilon, covers }) => [
        first,
        second,
        formatMeasured([more, error]),
        formatNumber(epsilon, 3),
        `${Math.round(100 * covers)} %`,
      ]),
    ),
  );
}

function drawIncomplete() {
  for (const kind of ["failed", "stopped"])
    drawCauses(
      kind,
      DATA.trials.filter((trial) => trial.state === kind),
    );
}
function drawCauses(id, trials) {
  byId(id).hidden = !trials.length;
  show(
    `${id}-list`,
    el(
      "table",
      {},
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          ["#", "setting", "cause"].map((name) => el("th", { scope: "col" }, name)),
        ),
      ),
      el(
        "tbody",
        {},
        trials.map((trial) =>
          el(
            "tr",
            {},
            el("th", { scope: "row", class: "number" }, trial.number),
            el(
              "td",
              { class: "setting" },
              trial.label ? el("strong", {}, trial.label) : null,
              el("span", { class: "description" }, trial.description),
            ),
            el("td", { class: "cause" }, trial.cause ?? "no cause recorded"),
          ),
        ),
      ),
    ),
  );
}
function drawNotes() {
  show(
    "notes-list",
    el(
      "ul",
      { class: "notes" },
      DATA.notes.map((note) => el("li", {}, note)),
    ),
    el(
      "dl",
      { class: "facts" },
      DATA.axes.names.map((name) =>
        el(
          "div",
          {},
          el("dt", {}, metricTitle(name), metricTitle(name) === name ? null : el("code", {}, ` ${name}`)),
          el(
            "dd",
            {},
            [
              DATA.metrics[name].about,
              DATA.metrics[name].direction === "maximize" ? "higher is better" : "lower is better",
              DATA.metrics[name].unit && DATA.metrics[name].unit !== "x" && `in ${DATA.metrics[name].unit}`,
            ]
              .filter(Boolean)
              .join("; "),
          ),
        ),
      ),
    ),
  );
}
function drawSetup() {
  const list = (pairs) =>
    el(
      "dl",
      { class: "facts" },
      pairs.map(([name, lines]) =>
        el(
          "div",
          {},
          el("dt", {}, name),
          lines.map((text) => el("dd", {}, text)),
        ),
      ),
    );
  show(
    "setup-list",
    DATA.sweeps.flatMap(({ name, facts, searched, space }) => [
      several && el("h3", { class: "sweep" }, name),
      searched.length && el("h3", {}, "Searched"),
      searched.length && list(searched),
      el("h3", {}, "Fixed"),
      list(facts),
      space &&
        el(
          "details",
          { class: "panel space" },
          el("summary", {}, "sweep.yaml, with all defaults"),
          copyButton(space),
          el("pre", { tabindex: 0 }, space),
        ),
    ]),
  );
  show(
    "foot",
    `Written ${DATA.written} from ${DATA.location}. It loads nothing else: keep or send it as a single file.`,
  );
}
