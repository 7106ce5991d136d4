// Heat maps of the accepted length by position in the image. All share one scale, drawn once.
import { DATA, frontOf, shownNote } from "../assets/data.js";
import { el, show } from "../assets/dom.js";
import { formatNumber } from "../assets/format.js";
import { state } from "../assets/state.js";

const STEPS = 64; // of the scale
const NO_VALUE = [150, 150, 150];

function canvas(values, columns, rows, label, { low, high, ramp }) {
  const made = el("canvas.heat", { width: columns, height: rows, role: "img", "aria-label": label }),
    context = made.getContext("2d"),
    pixels = context.createImageData(columns, rows);
  for (const [i, value] of values.entries()) {
    const colour = value === null ? NO_VALUE : shade((value - low) / (high - low || 1), ramp);
    pixels.data.set([...colour, 255], 4 * i);
  }
  context.putImageData(pixels, 0, 0);
  return made;
}
function shade(share, ramp) {
  const at = Math.max(0, Math.min(1, share)) * (ramp.length - 1),
    low = Math.min(Math.floor(at), ramp.length - 2);
  return ramp[low].map((channel, i) => Math.round(channel + (ramp[low + 1][i] - channel) * (at - low)));
}
export function draw(host, data) {
  const { cells, means, rows, columns, low, high } = data,
    trials = DATA.trials.filter((trial) => cells[trial.images_of] && trial.duplicate_of === null),
    front = frontOf(DATA.trials, state.x, state.y),
    scale = Array.from({ length: STEPS }, (_, i) => low + ((high - low) * i) / (STEPS - 1)),
    [least, most] = [low, high].map((value) => formatNumber(value, 2));
  const map = (trial) => {
    const values = cells[trial.images_of],
      known = values.filter((value) => value !== null),
      ends = [Math.min(...known), Math.max(...known)].map((value) => formatNumber(value, 2)).join(" to "),
      mean = `${formatNumber(means[trial.images_of], 2)} tokens per pass`;
    return el(
      "figure",
      { "data-trial": trial.id },
      canvas(values, columns, rows, `Accepted length by position with ${trial.title}: ${ends}, ${mean}`, data),
      el("figcaption", { class: front.includes(trial) ? "strong" : null }, `${trial.title}: ${mean}`),
    );
  };
  const key = canvas(scale, STEPS, 1, `Scale from ${least} to ${most} tokens`, data);
  host.classList.add("panel");
  show(
    host,
    el("div.scale", el("span", least), key, el("span", `${most} tokens per pass`)),
    el("div.maps", trials.map(map)),
    shownNote(trials) && el("p.quiet", shownNote(trials)),
  );
}
