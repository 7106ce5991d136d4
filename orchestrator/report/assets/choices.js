// What the report recommends: the best setting within the quality bar, the front's knee, the best lossless setting.
import { DATA, several, trialOf } from "./data.js";
import { state } from "./state.js";

export const ANSWER = DATA.answer;
export const BAR = ANSWER.bar; // null where the second metric has none

// Of the slider's position: the id of the best trial within the bar (null: none), the share of draws in which it stays
// within, and how it was chosen.
export const stepAt = (bar) => BAR.steps[Math.round((bar - BAR.low) / BAR.step)];
export const recommended = () => (BAR ? trialOf(stepAt(state.bar)[0]) : null);
export const kneeTrial = () => trialOf(ANSWER.knee?.id);
export const losslessTrial = () => trialOf(ANSWER.lossless?.id);
export const barText = (bar) => bar.toFixed(BAR.places);
export const limitText = (bar) => `${ANSWER.metric} ${BAR.relation} ${barText(bar)}${BAR.relative ? " * vanilla" : ""}`;
// The bar in the metric's own unit; null if sweeps with different values of vanilla share it.
export function barValue() {
  if (!BAR?.relative) return BAR ? state.bar : null;
  const vanilla = several ? null : trialOf(DATA.sweeps[0].vanilla);
  return vanilla ? state.bar * vanilla.metrics[ANSWER.metric][0] : null;
}
