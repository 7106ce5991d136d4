// Accepted drafts of a verification, and how often the draft at each position is accepted: a small chart per trial, and
// a table of the groups of captions.
import { DATA, frontOf } from "../assets/data.js";
import { el, grid, show } from "../assets/dom.js";
import { withDownload } from "../assets/downloads.js";
import { formatMeasured, plural } from "../assets/format.js";
import { picture } from "../assets/plot.js";
import { state } from "../assets/state.js";

const WIDTH = 210;

function chart({ mean, shares, rates }, title, positions) {
  const bars = shares.map(([share], drafts) => ({ drafts, share })),
    dots = rates.flatMap((rate, i) => (rate ? [{ position: i + 1, rate: rate[0], error: rate[1] ?? 0 }] : []));
  const named = rates.map((rate, i) => `position ${i + 1} ${formatMeasured(rate)}`).join(", "),
    text = `Acceptance with ${title}: ${formatMeasured(mean)} drafts a verification; ${named}`;
  return picture(text, {
    width: WIDTH,
    height: 130,
    margins: [8, 8, 24, 34],
    x: { domain: [-0.6, positions + 0.6], label: null, ticks: Math.min(positions, 6), tickFormat: "d" },
    y: { domain: [0, 1], label: null, ticks: 3 },
    marks: [
      Plot.gridY({ ticks: 3, className: "grid" }),
      Plot.rectY(bars, {
        x1: ({ drafts }) => drafts - 0.4,
        x2: ({ drafts }) => drafts + 0.4,
        y: "share",
        className: "histogram",
      }),
      Plot.ruleX(dots, {
        x: "position",
        y1: ({ rate, error }) => Math.max(0, rate - error),
        y2: ({ rate, error }) => Math.min(1, rate + error),
        className: "whisker",
      }),
      Plot.dot(dots, { x: "position", y: "rate", r: 3, className: "dot member" }),
    ],
  });
}
export function draw(host, { trials: counts, groups, more_groups: others }) {
  const shown = DATA.trials.filter((trial) => counts[trial.images_of] && trial.duplicate_of === null),
    front = frontOf(DATA.trials, state.x, state.y),
    positions = Math.max(...shown.map((trial) => counts[trial.images_of].shares.length - 1));
  const figure = (trial) => {
    const own = counts[trial.images_of],
      caption = `${trial.title}: ${formatMeasured(own.mean)} drafts accepted`;
    return el(
      "figure",
      { "data-trial": trial.id },
      chart(own, trial.title, positions),
      el("figcaption", { class: front.includes(trial) ? "strong" : null }, caption),
    );
  };
  const cells = shown.map((trial) => {
    const own = counts[trial.images_of];
    return [trial.title, formatMeasured(own.mean), ...groups.map((group) => formatMeasured(own.groups[group]))];
  });
  const head = ["trial", "all captions", ...groups],
    table = groups.length > 0 && el("div.scroll", withDownload("acceptance.csv", grid(head, cells, (i) => i > 0)));
  const rest = others ? ` (${others} more: compare --by group --json)` : "",
    title = `Accepted drafts of a verification, by ${plural(groups.length, "group")} of captions${rest}:`;
  host.classList.add("panel");
  show(
    host,
    el("div.maps.charts", shown.map(figure)),
    table && el("p.quiet", title),
    table,
  );
}
