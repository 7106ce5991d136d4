// Everything that the results depend on, by sweep.
import { several } from "../assets/data.js";
import { copyButton, el, facts, show } from "../assets/dom.js";

export function draw(host, sweeps) {
  const part = ({ name, facts: fixed, searched, space }) => [
    several && el("h3.sweep", name),
    searched.length > 0 && [el("h3", "Searched"), facts(searched)],
    el("h3", "Fixed"),
    facts(fixed),
    space &&
      el(
        "details.panel.space",
        el("summary", "sweep.yaml, with all defaults"),
        copyButton(space),
        el("pre", { tabindex: 0 }, space),
      ),
  ];
  show(host, sweeps.map(part));
}
