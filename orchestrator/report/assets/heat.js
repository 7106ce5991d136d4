// Heat maps of the accepted length by position in the image. All share one scale, drawn once.
const RAMP = [
  [68, 1, 84],
  [59, 82, 139],
  [33, 145, 140],
  [94, 201, 98],
  [253, 231, 37],
]; // as in workers/data/pictures.py
const NO_VALUE = [150, 150, 150];

function shade(share) {
  const at = Math.max(0, Math.min(1, share)) * (RAMP.length - 1),
    low = Math.min(Math.floor(at), RAMP.length - 2);
  return RAMP[low].map((channel, i) => Math.round(channel + (RAMP[low + 1][i] - channel) * (at - low)));
}
function heatCanvas(values, columns, rows, label) {
  const canvas = el("canvas", { width: columns, height: rows, role: "img", "aria-label": label, class: "heat" }),
    context = canvas.getContext("2d");
  const { low, high } = DATA.heat,
    pixels = context.createImageData(columns, rows);
  for (const [i, value] of values.entries())
    pixels.data.set([...(value === null ? NO_VALUE : shade((value - low) / (high - low || 1))), 255], 4 * i);
  context.putImageData(pixels, 0, 0);
  return canvas;
}
function drawHeat() {
  const { cells = {}, means, rows, columns, low, high } = DATA.heat,
    trials = DATA.trials.filter((trial) => cells[trial.images_of] && trial.duplicate_of === null);
  byId("heat").hidden = !trials.length;
  if (!trials.length) return;
  const ramp = Array.from({ length: 64 }, (_, i) => low + ((high - low) * i) / 63),
    front = frontOf(DATA.trials, state.x, state.y);
  show(
    "heat-list",
    el(
      "div",
      { class: "scale" },
      el("span", {}, formatNumber(low, 2)),
      heatCanvas(ramp, 64, 1, `Scale from ${formatNumber(low, 2)} to ${formatNumber(high, 2)} tokens`),
      el("span", {}, `${formatNumber(high, 2)} tokens per pass`),
    ),
    el(
      "div",
      { class: "maps" },
      trials.map((trial) => {
        const known = cells[trial.images_of].filter((value) => value !== null),
          mean = `mean accepted length ${formatNumber(means[trial.images_of], 2)}`;
        const range = `${formatNumber(
          known.reduce((a, b) => Math.min(a, b)),
          2,
        )} to ${formatNumber(
          known.reduce((a, b) => Math.max(a, b)),
          2,
        )}`;
        return el(
          "figure",
          { "data-trial": trial.id },
          heatCanvas(
            cells[trial.images_of],
            columns,
            rows,
            `Accepted length by position with ${title(trial)}: ${range}, ${mean}`,
          ),
          el(
            "figcaption",
            { class: front.includes(trial) ? "strong" : null },
            `${shortened(title(trial), 32)}: ${mean}`,
          ),
        );
      }),
    ),
  );
}
