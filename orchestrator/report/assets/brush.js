// Ranges of values that the reader has marked on the parallel coordinates, by key. A trial that has a value within each
// of them is selected: only selected trials are in the chart and in the table.
import { keep } from "./address.js";
import { DATA } from "./data.js";

const ranges = new Map(); // key -> the lowest and the highest value
const valueOf = (trial, key) =>
  DATA.metrics[key] ? (trial.metrics[key]?.[0] ?? null) : (trial.flat[DATA.keys.indexOf(key)] ?? null);
const isWithin = (value, [low, high]) => {
  const own = typeof low === "number" ? value : String(value); // choices are in alphabetical order
  return value !== null && own >= low && own <= high;
};
export const isSelected = (trial) => [...ranges].every(([key, range]) => isWithin(valueOf(trial, key), range));
export const rangeOf = (key) => ranges.get(key) ?? null;
export const hasRanges = () => ranges.size > 0;
export const clearRanges = () => ranges.clear();
// Marks the values from the lowest to the highest of some; without any, the key has no range.
export function setRange(key, values) {
  const isText = values.some((value) => typeof value !== "number"),
    ordered = isText ? values.map(String).sort() : values.toSorted((a, b) => a - b);
  if (ordered.length) ranges.set(key, [ordered[0], ordered.at(-1)]);
  else ranges.delete(key);
}
keep(
  "range",
  () => [...ranges].flat(2),
  (texts) => {
    for (let i = 0; i + 2 < texts.length; i += 3) {
      const [key, ...ends] = texts.slice(i, i + 3),
        values = DATA.trials.map((trial) => valueOf(trial, key)).filter((value) => value !== null),
        isText = values.some((value) => typeof value !== "number"),
        range = isText ? ends : ends.map((text) => Number(text || NaN));
      if (values.some((value) => isWithin(value, range))) ranges.set(key, range);
    }
  },
);
