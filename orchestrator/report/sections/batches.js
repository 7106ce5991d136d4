// The speed-up of the front's settings at each batch size.
import { el, grid, show } from "../assets/dom.js";
import { withDownload } from "../assets/downloads.js";
import { formatMeasured } from "../assets/format.js";

export function draw(host, { sizes, rows }) {
  const head = ["trial", "setting", ...sizes.map((size) => `batch ${size}`)],
    cells = rows.map(([name, title, ...speeds]) => [name, title, ...speeds.map(formatMeasured)]);
  show(host, el("div.panel.scroll", withDownload("batches.csv", grid(head, cells, (i) => i > 1))));
}
