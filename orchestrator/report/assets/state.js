// The reader's choices, and who follows them: `change` after "axes" (what the plot shows), "bar" or "selection".
import { keep, keepOne } from "./address.js";
import { DATA, trialOf } from "./data.js";

export const MAX_PINS = 3;
export const state = {
  x: DATA.axes.x,
  y: DATA.axes.y,
  colour: Object.keys(DATA.looks)[0],
  hidden: new Set(), // kinds
  near: false,
  bars: true,
  hovered: null,
  touch: false, // the last pointer on the chart was a finger
  pins: [],
  bar: DATA.answer.bar?.start,
  scene: null, // the plot's layout: { trials, front, place(trial), scaleY(value), nodes, box, ... }
};
const metrics = DATA.axes.names,
  { bar } = DATA.answer;
keepOne("x", state, metrics);
keepOne("y", state, metrics);
keepOne("colour", state, Object.keys(DATA.looks));
keepOne("near", state, [false, true]);
keepOne("bars", state, [false, true]);
keep(
  "hidden",
  () => [...state.hidden],
  (kinds) => {
    state.hidden = new Set(kinds.filter((kind) => Object.hasOwn(DATA.looks[state.colour], kind)));
  },
);
keep(
  "pins",
  () => state.pins.map(({ id }) => id),
  (ids) => {
    state.pins = [...new Set(ids.map(trialOf))].filter(Boolean).slice(0, MAX_PINS);
  },
);
keep(
  "bar",
  () => [state.bar],
  ([text]) => {
    const value = Number(text || NaN);
    if (bar && value >= bar.low && value <= bar.high)
      state.bar = Number((bar.low + Math.round((value - bar.low) / bar.step) * bar.step).toFixed(bar.places));
  },
);
export const kindOf = (trial) => trial.groups[state.colour];

const followers = { axes: [], bar: [], selection: [], compare: [] };
export const follow = (name, action) => followers[name].push(action);
export const change = (name, ...details) => followers[name].forEach((action) => action(...details));
