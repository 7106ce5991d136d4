// The trials in a state in which they are on no plot, with their causes.
import { DATA } from "../assets/data.js";
import { el, grid, show } from "../assets/dom.js";

export function draw(host, { state }) {
  const rows = DATA.trials
    .filter((trial) => trial.state === state)
    .map(({ number, label, description, cause }) => [
      number,
      el("div.setting", label && el("strong", label), el("span.description", description)),
      el("div.cause", cause ?? "no cause recorded"),
    ]);
  host.classList.add("panel", "scroll");
  show(host, grid(["#", "setting", "cause"], rows, (i) => !i));
}
