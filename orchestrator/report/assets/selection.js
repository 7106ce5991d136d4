// The trial under the pointer, and the pinned ones. A pinned trial stays: the pointer crosses other points on its way
// to the details' buttons.
import { announce, byId, scrolling } from "./dom.js";
import { change, MAX_PINS, state } from "./state.js";

export const isFull = () => state.pins.length === MAX_PINS;
export const FULL = `${MAX_PINS} are pinned: release one to pin this`;

export function hover(trial, isNear = false) {
  if (state.hovered === trial) return;
  state.hovered = trial;
  change("selection", isNear);
}
export function pin(trial) {
  if (state.pins.includes(trial)) return unpin(trial);
  if (isFull()) {
    hover(trial); // the details say why
    return announce(`${trial.title}: ${FULL}`);
  }
  announce(`Pinned ${trial.title}; ${state.pins.length + 1} pinned`);
  return setPins([...state.pins, trial]);
}
// Releases one trial, or all.
export function unpin(trial = null) {
  const last = trial ?? state.hovered ?? state.pins.at(-1),
    inside = byId("aside").contains(document.activeElement);
  setPins(trial ? state.pins.filter((other) => other !== trial) : []);
  if (!inside) return;
  state.scene.nodes.get(last)?.focus({ preventScroll: true }); // the focused button is gone
  hover(null);
}
function setPins(pins) {
  [state.pins, state.hovered] = [pins, null];
  for (const [trial, node] of state.scene.nodes) node.setAttribute("aria-pressed", pins.includes(trial));
  change("selection", true);
}
export function reveal(trial) {
  byId("front").scrollIntoView({ behavior: scrolling() });
  if (!state.pins.includes(trial)) pin(trial);
}
