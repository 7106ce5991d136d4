// Names next to their points, each in the first free place around it, the most important name first. A name without a
// free place becomes its trial's number, and then is left out: no line crosses the plot.
import { svg } from "./dom.js";

const LINE = 14, // pixels from one line of a name to the next
  LETTER = 6.8, // pixels across a letter
  POINT = 8; // pixels from a point's middle to its edge
const overlap = (a, b) => a.x0 < b.x1 && b.x0 < a.x1 && a.y0 < b.y1 && b.y0 < a.y1;

// A group of names. named: { text, short, at: [x, y], gap, style }, the most important first; gap: pixels from the
// point. points: the middles of all points. box: the plot's sides in pixels.
export function writeNames(named, points, box) {
  const taken = points.map(([x, y]) => ({ x0: x - POINT, x1: x + POINT, y0: y - POINT, y1: y + POINT }));
  const isFree = (place) =>
    place.x0 >= box.left &&
    place.x1 <= box.right &&
    place.y0 >= box.top &&
    place.y1 <= box.bottom &&
    !taken.some((other) => overlap(place, other));
  const written = ({ text, short, at, gap, style }) => {
    for (const lines of [[text], halves(text), [short]])
      for (const place of placesOf(lines, at, gap)) {
        if (!isFree(place)) continue;
        taken.push(place);
        const line = (part, i) => svg(`text.${style}`, { x: place.x0, y: place.y0 + LINE * (i + 1) - 3 }, part);
        return lines.map(line);
      }
    return [];
  };
  return svg("g.labels", { "aria-hidden": "true" }, named.map(written));
}
// A name in two lines, at the space nearest to its middle; in one without a space.
function halves(text) {
  const spaces = [...text.matchAll(/ /g)].map(({ index }) => index),
    away = (index) => Math.abs(index - text.length / 2);
  if (!spaces.length) return [text];
  const middle = spaces.reduce((best, index) => (away(index) < away(best) ? index : best));
  return [text.slice(0, middle), text.slice(middle + 1)];
}
// Rectangles around a point for these lines, the best first.
function placesOf(lines, [x, y], gap) {
  const width = LETTER * Math.max(...lines.map((line) => line.length)),
    height = LINE * lines.length,
    near = 0.7 * gap;
  const corners = [
    [x + gap, y - height / 2],
    [x - gap - width, y - height / 2],
    [x - width / 2, y - gap - height],
    [x - width / 2, y + gap],
    [x + near, y - near - height],
    [x + near, y + near],
    [x - near - width, y - near - height],
    [x - near - width, y + near],
  ];
  return corners.map(([x0, y0]) => ({ x0, y0, x1: x0 + width, y1: y0 + height }));
}
