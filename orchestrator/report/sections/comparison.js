// The fronts of several sweeps: hypervolumes, and each pair of fronts.
import { metricTitle } from "../assets/data.js";
import { el, grid, items, show } from "../assets/dom.js";
import { withDownload } from "../assets/downloads.js";
import { formatMeasured, formatNumber, formatTick } from "../assets/format.js";

const TERMS =
  "More hypervolume: of the first front, with the error of the difference; trials on equal captions are paired. " +
  "Epsilon: how much the first front must improve to match the second everywhere, in units of the fronts' range; " +
  "0 or less: it already does. Reverse epsilon: how much the second must, to match the first. " +
  "Covers: the share of the second front that the first equals or dominates. " +
  "Is covered: the share of the first that the second does.";

export function draw(host, { metrics, reference, sizes, hypervolumes, hypervolume_errors: errors, pairs, notes }) {
  const corner = metrics.map((name, i) => `${metricTitle(name)} ${formatTick(reference[i])}`).join(", "),
    names = Object.keys(sizes).sort((a, b) => hypervolumes[b] - hypervolumes[a]),
    fronts = names.map((name) => [name, ...sizes[name], formatMeasured([hypervolumes[name], errors[name]])]);
  const row = ({ first, second, difference, epsilon, coverage }) => [
    first,
    second,
    formatMeasured(difference),
    ...epsilon.map((amount) => formatNumber(amount, 3)),
    ...coverage.map((share) => `${Math.round(100 * share)} %`),
  ];
  const isNumber = (i) => i > 0,
    panel = (file, table) => el("div.panel.scroll", withDownload(file, table));
  show(
    host,
    notes.length > 0 && items(".note", notes),
    panel("fronts.csv", grid(["front", "trials", "on its front", "hypervolume"], fronts, isNumber)),
    el("p.lead", `Up to the reference point ${corner}. `, TERMS),
    panel(
      "pairs.csv",
      grid(
        ["front", "against", "more hypervolume", "epsilon", "reverse epsilon", "covers", "is covered"],
        pairs.map(row),
        (i) => i > 1,
      ),
    ),
  );
}
