// Plots by Observable Plot.
// Without the style element that it adds, which the page's policy forbids; style.css has its rules.
export function plot(options) {
  const picture = Plot.plot({ className: "plot", ...options });
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
