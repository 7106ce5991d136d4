// The reader's choices, and who follows them: `change` after "axes" (what the plot shows), "bar" or "selection".
import { DATA } from "./data.js";

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
export const kindOf = (trial) => trial.groups[state.colour];

const followers = { axes: [], bar: [], selection: [], compare: [] };
export const follow = (name, action) => followers[name].push(action);
export const change = (name, ...details) => followers[name].forEach((action) => action(...details));
