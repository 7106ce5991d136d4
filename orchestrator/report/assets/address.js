// The reader's choices in the page's address: after # a part name=text for each choice that is not as at first. So an
// address that is copied, and a page that reloads, show what its reader saw.
const WAIT_MS = 200, // browsers refuse addresses that change often
  EVENTS = ["input", "change", "click", "keyup", "pointerup"];
const given = new URLSearchParams(window.location.hash.slice(1)),
  choices = [];

// Keeps a choice. write: its texts now. read: takes the texts of the address, and leaves out those that mean nothing
// here; it is called only if the address has any.
export function keep(name, write, read) {
  const first = write().join("\n");
  if (given.has(name)) read(given.getAll(name));
  choices.push({ name, first, write });
}
// Keeps a choice among values.
export const keepOne = (name, owner, values) =>
  keep(
    name,
    () => [owner[name]],
    ([text]) => {
      const value = values.find((other) => String(other) === text);
      if (value !== undefined) owner[name] = value;
    },
  );
function write() {
  const parts = choices
    .map(({ name, first, write: texts }) => [name, first, texts()])
    .filter(([, first, texts]) => texts.join("\n") !== first)
    .flatMap(([name, , texts]) => (texts.length ? texts : [""]).map((text) => [name, text]));
  const hash = `#${new URLSearchParams(parts)}`;
  if (hash !== (window.location.hash || "#")) window.history.replaceState(window.history.state, "", hash);
}
// From now on, when everything is drawn.
export function writeAddress() {
  let timer = null;
  const later = () => {
    window.clearTimeout(timer);
    timer = window.setTimeout(write, WAIT_MS);
  };
  for (const name of EVENTS) document.addEventListener(name, later);
  // A link to a section has moved the page; an address with choices was written into the browser's field.
  window.addEventListener("hashchange", () => {
    if (window.location.hash.includes("=")) window.location.reload();
    else write();
  });
}
