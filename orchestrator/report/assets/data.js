// What Python wrote into the page (orchestrator/report/page.py), and the front of any trials in any two metrics.
export const DATA = JSON.parse(document.getElementById("data").textContent);
export const several = DATA.sweeps.length > 1;
const trials = new Map(DATA.trials.map((trial) => [trial.id, trial]));
export const trialOf = (id) => trials.get(id) ?? null;
export const vanillaOf = (trial) => trialOf(DATA.sweeps[trial.sweep].vanilla);
// The images of a trial for all captions (orchestrator/report/sections/images.py); undefined without them.
export const sheetOf = (trial) => DATA.sections.images?.data.sheets[trial.images_of];
export const metricTitle = (name) => DATA.metrics[name]?.title ?? "metrics";
export const metricNote = (name) => `${name}: ${DATA.metrics[name].about}`; // the key, as in filters and commands
export const metricChoices = DATA.axes.names.map((name) => [name, metricTitle(name)]);

export const isMaximized = (metric) => DATA.metrics[metric].direction === "maximize";
const goodness = (trial, metric) => (isMaximized(metric) ? 1 : -1) * trial.metrics[metric][0];
// A duplicate has the values of the trial that it repeats, so only that one is plotted.
export const isPlotted = (trial, x, y) =>
  trial.state === "complete" && trial.duplicate_of === null && trial.metrics[x] && trial.metrics[y];

// The trials that no other trial dominates, by improving x.
export function frontOf(candidates, x, y) {
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
