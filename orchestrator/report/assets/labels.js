// Names in the right margin of the chart, each as near to the height of its point as the others allow, with a line to
// it, as in front.png (orchestrator/shown/plots.py).
import { svg } from "./dom.js";

const LINE = 15, // pixels from one name to the next
  MAX_NAMES = 12;

// A group of names. named: { text, at: [x, y], style }, the most important first. box: the plot's sides in pixels.
export function writeNames(named, { right, top, bottom }) {
  const most = Math.min(MAX_NAMES, Math.floor((bottom - top) / LINE)),
    rising = named.slice(0, most).sort((a, b) => a.at[1] - b.at[1]),
    highest = bottom - LINE * (rising.length - 1);
  let lowest = top;
  const name = ({ text, at: [x, y], style }, i) => {
    lowest = Math.max(lowest, y - LINE * i);
    const height = Math.min(lowest, highest) + LINE * i;
    return [
      svg("line.leader", { x1: x, y1: y, x2: right + 6, y2: height }),
      svg(`text.${style}`, { x: right + 9, y: height + 4 }, text),
    ];
  };
  return svg("g.labels", { "aria-hidden": "true" }, rising.map(name));
}
