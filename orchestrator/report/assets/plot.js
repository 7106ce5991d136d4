// Plots by Observable Plot, without the style element that it adds, which the page's policy forbids; style.css has its
// rules. margins: top, right, bottom, left, in pixels.
export function plot({ margins: [marginTop, marginRight, marginBottom, marginLeft], ...options }) {
  const picture = Plot.plot({ className: "plot", marginTop, marginRight, marginBottom, marginLeft, ...options });
  for (const style of picture.querySelectorAll("style")) style.remove();
  return picture;
}
// A plot with a text for those who cannot see it.
export function picture(text, options) {
  const made = plot(options);
  made.setAttribute("role", "img");
  made.setAttribute("aria-label", text);
  return made;
}
