// Parallel coordinates, slices per parameter, importances and the hypervolume, drawn by Observable Plot.
const MAX_KEYS = 10,
  analysis = { metric: DATA.axes.y };
const complete = () => DATA.trials.filter((trial) => plotted(trial, DATA.axes.x, DATA.axes.y));
// The keys in which complete trials differ: those of most trials first.
function variedKeys(trials) {
  const values = (i) =>
    trials
      .map((trial) => trial.flat[i])
      .filter((value) => value !== null && (typeof value !== "string" || value.length < 40));
  return DATA.keys
    .map((key, i) => ({ key, i, values: values(i) }))
    .filter(({ values: found }) => new Set(found).size > 1 && found.length > 2)
    .sort((a, b) => b.values.length - a.values.length)
    .slice(0, MAX_KEYS);
}
// A scale to 0..1 of numbers, by logarithm if they span two orders of magnitude, or of choices in alphabetical order.
function unitScale(values, direction = "maximize") {
  const choices = values.some((value) => typeof value !== "number") ? [...new Set(values.map(String))].sort() : null;
  if (choices)
    return {
      at: (value) => (choices.indexOf(String(value)) + 0.5) / choices.length,
      marks: choices.map((name, i) => [(i + 0.5) / choices.length, name]),
    };
  const low = values.reduce((a, b) => Math.min(a, b)),
    high = values.reduce((a, b) => Math.max(a, b)),
    bend = low > 0 && high / low > 100 ? Math.log : (value) => value;
  const share = (value) => (bend(value) - bend(low)) / (bend(high) - bend(low) || 1),
    at = direction === "maximize" ? share : (value) => 1 - share(value);
  return {
    at,
    marks: [
      [at(low), formatTick(low)],
      [at(high), formatTick(high)],
    ],
  };
}
const formatTick = (value) => Number(value.toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
const endOf = (text, length) => (text.length > length ? `…${text.slice(1 - length)}` : text);
const panelWidth = (id) => Math.max(280, byId(id).clientWidth);
const labelled = (picture, text) => {
  picture.setAttribute("role", "img");
  picture.setAttribute("aria-label", text);
  return picture;
};

function drawAnalysis() {
  const trials = complete(),
    varied = variedKeys(trials),
    enough = trials.length > 2 && varied.length;
  const none = el("p", { class: "empty" }, "Not enough trials: fewer than three complete ones differ in a parameter.");
  show("parallel", enough ? parallel(trials, varied) : none);
  show(
    "slice-controls",
    enough
      ? choice(
          "metric",
          DATA.axes.names.map((name) => [name, metricTitle(name)]),
          analysis.metric,
          (name) => {
            analysis.metric = name;
            drawSlices(trials, varied);
          },
        )
      : null,
  );
  if (enough) drawSlices(trials, varied);
  byId("slices").parentElement.hidden = !enough;
  drawImportances();
  drawHypervolumes();
}

function parallel(trials, varied) {
  const { x, y } = DATA.axes,
    front = new Set(frontOf(trials, x, y));
  const dimensions = [
    ...varied.map(({ key, i, values: found }) => ({
      name: key,
      scale: unitScale(found),
      of: (trial) => trial.flat[i],
    })),
    ...[x, y].map((metric) => ({
      name: `${metricTitle(metric)}.(best on top)`,
      scale: unitScale(
        trials.map((trial) => trial.metrics[metric][0]),
        DATA.metrics[metric].direction,
      ),
      of: (trial) => trial.metrics[metric][0],
    })),
  ];
  const points = trials.flatMap((trial) =>
    dimensions.map((dimension, place) => ({
      trial,
      place,
      at: dimension.of(trial) === null ? -0.14 : dimension.scale.at(dimension.of(trial)),
    })),
  );
  const lines = (member) =>
    Plot.line(
      points.filter(({ trial }) => front.has(trial) === member),
      {
        x: "place",
        y: "at",
        z: ({ trial }) => trial.id,
        curve: "monotone-x",
        className: member ? "course member" : "course",
        title: ({ trial }) => title(trial),
      },
    );
  const marks = dimensions.flatMap(({ scale }, place) =>
    scale.marks.map(([at, name]) => ({ place, at, name: shortened(name, 14) })),
  );
  const width = Math.max(panelWidth("parallel"), dimensions.length * 96);
  return labelled(
    draw({
      width,
      height: 340,
      marginLeft: 70,
      marginRight: 70,
      marginTop: 42,
      marginBottom: 22,
      x: { domain: [0, dimensions.length - 1], axis: null },
      y: { domain: [-0.18, 1.04], axis: null },
      marks: [
        Plot.ruleX(dimensions, { x: (_, i) => i, className: "pole" }),
        lines(false),
        lines(true),
        Plot.text(dimensions, {
          x: (_, i) => i,
          y: 1.04,
          dy: -16,
          text: ({ name }) => name.replace(/\.(.*)/, (_, rest) => (rest.startsWith("(") ? `\n${rest}` : `.\n${rest}`)),
          className: "pole-name",
        }),
        Plot.text(marks, { x: "place", y: "at", dx: 6, text: "name", textAnchor: "start", className: "pole-mark" }),
        Plot.text([0], { x: 0, y: -0.14, dx: -8, text: () => "no value", textAnchor: "end", className: "pole-mark" }),
      ],
    }),
    `Parallel coordinates of ${plural(trials.length, "trial")}: ${[...varied.map(({ key }) => key), x, y].join(", ")}`,
  );
}

function drawSlices(trials, varied) {
  const metric = analysis.metric,
    front = new Set(frontOf(trials, DATA.axes.x, DATA.axes.y)),
    measured = trials.filter((trial) => trial.metrics[metric]);
  const columns = Math.max(1, Math.floor(panelWidth("slices") / 300)),
    width = Math.floor((panelWidth("slices") - 14 * (columns - 1)) / columns);
  byId("slices").style.setProperty("--columns", columns);
  show(
    "slices",
    varied.map(({ key, i, values: found }) => {
      const own = measured.filter((trial) => trial.flat[i] !== null),
        text = found.some((value) => typeof value !== "number");
      const low = text ? 0 : found.reduce((a, b) => Math.min(a, b)),
        high = text ? 0 : found.reduce((a, b) => Math.max(a, b));
      const value = (trial) => (text ? String(trial.flat[i]) : trial.flat[i]);
      const dots = (member) =>
        Plot.dot(
          own.filter((trial) => front.has(trial) === member),
          {
            x: value,
            y: (trial) => trial.metrics[metric][0],
            r: member ? 4.5 : 3,
            className: member ? "dot member" : "dot",
            title: (trial) => `${title(trial)}: ${formatMeasured(trial.metrics[metric])}`,
          },
        );
      return el(
        "figure",
        {},
        labelled(
          draw({
            width,
            height: 190,
            marginLeft: 48,
            marginBottom: 32,
            marginTop: 12,
            x: {
              label: null,
              ...(text
                ? { type: "point", tickFormat: (name) => endOf(name, 11) }
                : { type: low > 0 && high / low > 100 ? "log" : "linear" }),
              ticks: 4,
            },
            y: { label: null, ticks: 5 },
            marks: [Plot.gridY({ ticks: 5, className: "grid" }), dots(false), dots(true)],
          }),
          `${metricTitle(metric)} against ${key}`,
        ),
        el("figcaption", {}, `${metricTitle(metric)} against `, el("code", {}, key)),
      );
    }),
  );
}

function drawImportances() {
  const { trials = 0, needed = 0, metrics = {} } = DATA.importances ?? {},
    names = Object.keys(metrics).filter((metric) => Object.keys(metrics[metric]).length);
  byId("importances").parentElement.hidden = several;
  if (!names.length)
    return show(
      "importances",
      el(
        "p",
        { class: "quiet" },
        `Not enough trials: the search has ${plural(trials, "trial")} with parameters, importances need ${needed}.`,
      ),
    );
  const sentence = ({ metric, key, share }) => `${key} ${Math.round(100 * share)} % for ${metric}`;
  const rows = names.flatMap((metric) =>
    Object.entries(metrics[metric]).map(([key, share]) => ({
      metric: metricTitle(metric),
      key,
      share,
    })),
  );
  return show(
    "importances",
    labelled(
      draw({
        width: panelWidth("importances"),
        height: 76 + 26 * new Set(rows.map(({ key }) => key)).size,
        marginLeft: 200,
        marginTop: 30,
        marginBottom: 44,
        x: { domain: [0, 1], label: "share of the importance", labelOffset: 38, ticks: 4 },
        y: { label: null, tickFormat: (key) => endOf(key, 34) },
        fx: { label: null },
        marks: [
          Plot.barX(rows, { x: "share", y: "key", fx: "metric", className: "importance", sort: { y: "-x" } }),
          Plot.ruleX([0]),
        ],
      }),
      `Importance of the searched parameters: ${rows.map(sentence).join(", ")}`,
    ),
  );
}

function drawHypervolumes() {
  const sentence = ({ name, images, volume }) =>
    `${name} reaches ${formatTick(volume.at(-1))} after ${plural(images.at(-1), "image")}`;
  const curves = DATA.hypervolumes,
    rows = curves.flatMap(({ name, images, volume }, i) => images.map((at, j) => ({ name, i, at, volume: volume[j] })));
  if (rows.length < 2) return show("volumes", el("p", { class: "quiet" }, "Not enough trials."));
  return show(
    "volumes",
    labelled(
      draw({
        width: panelWidth("volumes"),
        height: 268,
        marginLeft: 62,
        marginRight: several ? 110 : 20,
        marginTop: 26,
        marginBottom: 44,
        x: { label: "images spent", labelOffset: 38, ticks: panelWidth("volumes") / 90 },
        y: { label: "hypervolume", zero: true, ticks: 5 },
        marks: [
          Plot.gridY({ ticks: 5, className: "grid" }),
          ...curves.map((curve, i) =>
            Plot.line(
              rows.filter((row) => row.i === i),
              { x: "at", y: "volume", curve: "step-after", className: `volume c${i % PALETTE}` },
            ),
          ),
          ...(several
            ? [
                Plot.text(
                  curves.map((curve, i) => rows.filter((row) => row.i === i).at(-1)),
                  { x: "at", y: "volume", text: "name", textAnchor: "start", dx: 6, className: "pole-mark" },
                ),
              ]
            : []),
        ],
      }),
      `Hypervolume over images spent: ${curves.map(sentence).join("; ")}`,
    ),
  );
}
