// What the numbers mean, and each metric.
import { DATA, isMaximized, metricTitle } from "../assets/data.js";
import { el, facts, items, show } from "../assets/dom.js";

export function draw(host, notes) {
  const entry = (name) => {
    const { about, unit } = DATA.metrics[name],
      better = `${isMaximized(name) ? "higher" : "lower"} is better`,
      ofUnit = unit && unit !== "×" && `unit: ${unit}`,
      title = metricTitle(name);
    return [
      [title, title !== name && el("code", ` ${name}`)],
      [[about, better, ofUnit].filter(Boolean).join("; ")],
    ];
  };
  show(
    host,
    items(".notes", notes),
    facts(DATA.axes.names.map(entry)),
  );
}
