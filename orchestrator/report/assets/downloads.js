// Tables as CSV and the chart as SVG, in files that the reader downloads.
import { button, el } from "./dom.js";

export const downloadButton = (classes, name, file, type, make, attributes) =>
  button(classes, name, () => save(file, type, make()), attributes);
function save(name, type, text) {
  const href = URL.createObjectURL(new Blob([text], { type }));
  el("a", { href, download: name }).click();
  window.setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

// A table with its texts as a file.
export const withDownload = (file, table) => [
  table,
  downloadButton(".link.more", "CSV", file, "text/csv", () =>
    asCsv([...table.rows].map(({ cells }) => [...cells].map((cell) => cell.textContent))),
  ),
];

// Rows of numbers, texts, and null for nothing. A spreadsheet takes a text that begins with = + - @ or a tab for a
// formula, which the apostrophe prevents. A number stays one. As `csv_cell` of orchestrator/text.py.
export const asCsv = (rows) => rows.map((cells) => `${cells.map(csvCell).join(",")}\r\n`).join("");
function csvCell(value) {
  if (value === null || typeof value === "number") return String(value ?? "");
  const isNumber = /^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$/.test(value),
    text = isNumber ? String(value) : String(value).replace(/^[=+\-@\t\r]/, "'$&");
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

const PROPERTIES = [
  ...["fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray", "stroke-linejoin"],
  ...["paint-order", "opacity", "font-family", "font-size", "font-weight", "text-anchor", "white-space"],
];
// A picture of the page as a file of its own: each element has the style that it has here, and nothing reacts.
export function asSvg(picture) {
  const copy = picture.cloneNode(true),
    copies = [copy, ...copy.querySelectorAll("*")];
  for (const [i, element] of [picture, ...picture.querySelectorAll("*")].entries()) {
    const found = window.getComputedStyle(element);
    for (const { name } of [...copies[i].attributes])
      if (/^(class|style|tabindex|role|aria-pressed|data-.*)$/.test(name)) copies[i].removeAttribute(name);
    for (const name of PROPERTIES) copies[i].setAttribute(name, plainColour(found.getPropertyValue(name)));
  }
  const paper = document.createElementNS(copy.namespaceURI, "rect");
  paper.setAttribute("width", "100%");
  paper.setAttribute("height", "100%");
  paper.setAttribute("fill", plainColour(window.getComputedStyle(picture.closest(".panel")).backgroundColor));
  copy.prepend(paper);
  return new XMLSerializer().serializeToString(copy);
}
const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
// A mixed colour as what other programs read.
function plainColour(value) {
  if (!value.startsWith("color(")) return value;
  pen.clearRect(0, 0, 1, 1);
  pen.fillStyle = value;
  pen.fillRect(0, 0, 1, 1);
  const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
  return `rgba(${red}, ${green}, ${blue}, ${alpha / 255})`;
}
