// What Python wrote into the page (orchestrator/report/page.py), and the front of any trials in any two metrics, or in
// the sweep's three objectives.
export const DATA = JSON.parse(document.getElementById("data").textContent);
export const several = DATA.sweeps.length > 1;
const trials = new Map(DATA.trials.map((trial) => [trial.id, trial]));
export const trialOf = (id) => trials.get(id) ?? null;
export const vanillaOf = (trial) => trialOf(DATA.sweeps[trial.sweep].vanilla);
// The images of a trial for all captions (orchestrator/report/sections/images.py); undefined without them.
export const sheetOf = (trial) => DATA.sections.images?.data.sheets[trial.images_of];
// A sentence if a section shows only some of the complete trials.
export function shownNote(shown) {
  const all = DATA.trials.filter((trial) => trial.state === "complete" && trial.duplicate_of === null).length,
    first = "vanilla, the front, labelled ones, then others by number";
  return shown.length < all ? `${shown.length} of the ${all} complete trials are here: ${first}.` : null;
}
export const metricTitle = (name) => DATA.metrics[name]?.title ?? "metrics";
export const metricNote = (name) => `${name}: ${DATA.metrics[name].about}`; // the key, as in filters and commands
export const metricChoices = DATA.axes.names.map((name) => [name, metricTitle(name)]);

export const isMaximized = (metric) => DATA.metrics[metric].direction === "maximize";
const goodness = (trial, metric) => (isMaximized(metric) ? 1 : -1) * trial.metrics[metric][0];
// A duplicate has the values of the trial that it repeats, so only that one is plotted.
export const isPlotted = (trial, x, y) =>
  trial.state === "complete" && trial.duplicate_of === null && trial.metrics[x] && trial.metrics[y];

// The sweep's third objective, if it has three and these are two of them: the front is of all three. Else null.
export function thirdOf(x, y) {
  const objectives = [DATA.axes.x, DATA.axes.y, DATA.axes.z];
  if (!DATA.axes.z || x === y || !objectives.includes(x) || !objectives.includes(y)) return null;
  return objectives.find((metric) => metric !== x && metric !== y);
}
// From 0 for the worst to 1 for the best of these trials in a metric.
export function rankOf(trials, metric) {
  const values = trials.map((trial) => goodness(trial, metric)),
    [low, high] = [Math.min, Math.max].map((better) => values.reduce((a, b) => better(a, b), values[0]));
  return (trial) => (high > low ? (goodness(trial, metric) - low) / (high - low) : 1);
}
function dominates(a, b, metrics) {
  const gains = metrics.map((metric) => goodness(a, metric) - goodness(b, metric));
  return gains.every((gain) => gain >= 0) && gains.some((gain) => gain > 0);
}
// The trials that no other trial dominates, by improving x.
export function frontOf(candidates, x, y) {
  const z = thirdOf(x, y);
  if (z) {
    const rivals = candidates.filter((trial) => trial.feasible && isPlotted(trial, x, y) && trial.metrics[z]);
    return rivals
      .filter((trial) => !rivals.some((rival) => dominates(rival, trial, [x, y, z])))
      .sort((a, b) => goodness(a, x) - goodness(b, x) || goodness(a, y) - goodness(b, y));
  }
  const ordered = candidates
    .filter((trial) => trial.feasible && isPlotted(trial, x, y))
    .sort((a, b) => goodness(b, x) - goodness(a, x) || goodness(b, y) - goodness(a, y));
  const front = []; // from the best x on, each one with the best y so far
  for (const trial of ordered) {
    const last = front.at(-1),
      isEqual = last && goodness(trial, x) === goodness(last, x) && goodness(trial, y) === goodness(last, y);
    if (!last || isEqual || goodness(trial, y) > goodness(last, y)) front.push(trial);
  }
  return front.reverse();
}
