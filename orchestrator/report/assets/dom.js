// Elements of the page. Text enters it only as text nodes and attributes, never as markup.
const SVG = "http://www.w3.org/2000/svg";
export const byId = (id) => document.getElementById(id);
export const narrow = () => window.matchMedia("(max-width: 640px)").matches;
export const still = () => window.matchMedia("(prefers-reduced-motion: reduce)").matches;
export const scrolling = () => (still() ? "auto" : "smooth");

// el("a.link", { href: "#front" }, "Front"): tag and classes; attributes and listeners, if any; children, if any.
export const el = (selector, ...parts) => build((tag) => document.createElement(tag), selector, parts);
export const svg = (selector, ...parts) => build((tag) => document.createElementNS(SVG, tag), selector, parts);
function build(create, selector, parts) {
  const [tag, ...classes] = selector.split("."),
    element = create(tag),
    attributes = parts[0]?.constructor === Object ? parts.shift() : {};
  for (const [name, value] of Object.entries(attributes)) {
    const isFlag = typeof value === "boolean" && !name.startsWith("aria-");
    if (typeof value === "function") element.addEventListener(name, value);
    else if (isFlag) element.toggleAttribute(name, value);
    else if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.classList.add(...classes);
  element.append(...present(parts));
  return element;
}
const present = (children) => children.flat(Infinity).filter((child) => child || child === 0);

// Replaces the children of an element, which may be given by its id.
export const show = (target, ...children) =>
  (typeof target === "string" ? byId(target) : target).replaceChildren(...present(children));
export const button = (classes, name, click, attributes = {}) =>
  el(`button${classes}`, { type: "button", click, ...attributes }, name);
export const closeButton = (name, click) => button(".close", "×", click, { "aria-label": name });
export const iconOf = (...marks) =>
  svg("svg", { width: 16, height: 16, viewBox: "-8 -8 16 16", "aria-hidden": "true" }, marks);

export function toggle(name, on, change) {
  const flip = () => {
    const now = made.getAttribute("aria-pressed") !== "true";
    made.setAttribute("aria-pressed", now);
    change(now);
  };
  const made = button(".toggle", name, flip, { "aria-pressed": on });
  return made;
}
// A list to choose from; options: values and their names.
export function choice(name, options, value, change) {
  const entries = options.map(([key, text]) => el("option", { value: key, selected: key === value }, text));
  return el("label.choice", el("span", name), el("select", { change: (event) => change(event.target.value) }, entries));
}
// A table with a row and a column of headings. isNumber: whether the column with an index has numbers.
export function grid(headings, rows, isNumber) {
  const place = (i) => (isNumber(i) ? "number" : null),
    head = headings.map((text, i) => el("th", { scope: "col", class: place(i) }, text)),
    cell = (text, i) => (i ? el("td", { class: place(i) }, text) : el("th", { scope: "row", class: place(i) }, text));
  return el(
    "table",
    el("thead", el("tr", head)),
    el(
      "tbody",
      rows.map((cells) => el("tr", cells.map(cell))),
    ),
  );
}
// A list of names, each with its lines, or with one of several parts.
export const facts = (pairs) => terms(".facts", pairs, (lines) => lines.map((line) => el("dd", line)));
export const terms = (classes, pairs, lines = (parts) => el("dd", parts)) =>
  el(`dl${classes}`, pairs.map(([name, parts]) => el("div", el("dt", name), lines(parts))));
export const items = (classes, entries) => el(`ul${classes}`, entries.map((entry) => el("li", entry)));

export const announce = (text) => show("announcement", text);
export function copyButton(text, name = "Copy") {
  const made = button(".copy", name, async () => {
    await copy(text);
    made.textContent = "Copied";
    announce("Copied to the clipboard");
    window.setTimeout(() => show(made, name), 1600);
  });
  return made;
}
async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = el("textarea.sr", { readonly: true }); // if the page has no access to the clipboard
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}
