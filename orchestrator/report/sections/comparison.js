// The fronts of several sweeps: hypervolumes, and each pair of fronts.
import { metricTitle } from "../assets/data.js";
import { el, grid, show } from "../assets/dom.js";
import { formatMeasured, formatNumber, formatTick } from "../assets/format.js";

const TERMS =
  "More hypervolume: of the first front, with the error of the difference; trials on equal captions are paired. " +
  "Epsilon: how much the first front must improve to match the second everywhere, in units of the fronts' range; " +
  "0 or less: it already does. Covers: the share of the second front that the first equals or dominates.";

export function draw(host, { reference, fronts, pairs, notes }) {
  const corner = reference.map(([name, value]) => `${metricTitle(name)} ${formatTick(value)}`).join(", ");
  const frontRow = ({ name, trials, members, volume, error }) => [
    name,
    trials,
    members,
    formatMeasured([volume, error]),
  ];
  const pairRow = ({ first, second, more, error, epsilon, covers }) => [
    first,
    second,
    formatMeasured([more, error]),
    formatNumber(epsilon, 3),
    `${Math.round(100 * covers)} %`,
  ];
  const isNumber = (i) => i > 0,
    panel = (table) => el("div.panel.scroll", table);
  show(
    host,
    notes.length > 0 &&
      el(
        "ul.note",
        notes.map((note) => el("li", note)),
      ),
    panel(grid(["front", "trials", "on its front", "hypervolume"], fronts.map(frontRow), isNumber)),
    el("p.lead", `Up to the reference point ${corner}. `, TERMS),
    panel(grid(["front", "against", "more hypervolume", "epsilon", "covers"], pairs.map(pairRow), isNumber)),
  );
}
