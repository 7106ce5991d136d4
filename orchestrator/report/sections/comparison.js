// The fronts of several sweeps: hypervolumes, and each pair of fronts.
import { metricTitle } from "../assets/data.js";
import { el, grid, items, show } from "../assets/dom.js";
import { withDownload } from "../assets/downloads.js";
import { formatMeasured, formatNumber, formatTick } from "../assets/format.js";

const TERMS =
  "More hypervolume: of the first front, with the error of the difference; trials on equal captions are paired. " +
  "Epsilon: how much the first front must improve to match the second everywhere, in units of the fronts' range; " +
  "0 or less: it already does. Covers: the share of the second front that the first equals or dominates.";

export function draw(host, { metrics, reference, sizes, hypervolumes, hypervolume_errors: errors, pairs, notes }) {
  const corner = metrics.map((name, i) => `${metricTitle(name)} ${formatTick(reference[i])}`).join(", "),
    names = Object.keys(sizes).sort((a, b) => hypervolumes[b] - hypervolumes[a]),
    fronts = names.map((name) => [name, ...sizes[name], formatMeasured([hypervolumes[name], errors[name]])]);
  const row = (first, second, [more, error], epsilon, covers) => [
    first,
    second,
    formatMeasured([more, error]),
    formatNumber(epsilon, 3),
    `${Math.round(100 * covers)} %`,
  ];
  const bothWays = ({ first, second, difference: [more, error], epsilon, coverage }) => [
    row(first, second, [more, error], epsilon[0], coverage[0]),
    row(second, first, [-more, error], epsilon[1], coverage[1]),
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
      grid(["front", "against", "more hypervolume", "epsilon", "covers"], pairs.flatMap(bothWays), isNumber),
    ),
  );
}
