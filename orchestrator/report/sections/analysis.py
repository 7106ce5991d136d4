"""The search behind a report: importances of what it searched, and the hypervolume over the images
spent.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.front.compare import hypervolume
from orchestrator.front.front import Front
from orchestrator.front.joint import directions, values_of
from orchestrator.report.section import SECTIONS, Section, Subject
from orchestrator.store import files
from orchestrator.store.identity import plugins_of
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError
from search_spaces.space import Space
from workers.metrics.definition import Metric

if TYPE_CHECKING:
    from optuna.study import Study

# of trials with parameters: a quarter is the best group, which Optuna advises to have five at least
MIN_TRIALS = 20
_BEST_SHARE = 0.25


def analysis(subject: Subject) -> dict[str, Any]:
    """The importances of a single sweep, and the hypervolumes of all."""
    sweeps = list(subject.sweeps.values())
    front = subject.front
    found: dict[str, Any] = {"importances": {}, "hypervolumes": []}
    if len(sweeps) == 1:
        found["importances"] = importances(sweeps[0], subject.axes)
    if front is not None and front.candidates:
        found["hypervolumes"] = hypervolumes(front)
    return found


def importances(sweep: Sweep, metrics: Sequence[Metric]) -> dict[str, Any]:
    """How much each searched parameter matters for being among the best quarter of the trials in
    each metric.

    Optuna's PED-ANOVA evaluator computes them from the sweep's study, rebuilt from its trials. It
    also covers parameters that only some branches of the space have.

    Returns:
        `trials`: how many the study has. `needed`: how many it must have. `metrics`: the shares of
        the parameters, which sum to 1, by metric; empty with too few trials or without a space.
    """
    names = {metric.name for metric in metrics}
    complete = [record for record in sweep.records if record.is_complete and record.params]
    usable = [
        record
        for record in complete
        if record.duplicate_of is None and names <= record.metrics.keys()
    ]
    facts: dict[str, Any] = {"trials": len(usable), "needed": MIN_TRIALS, "metrics": {}}
    space = files.read_sweep_yaml(sweep.storage).get("space")
    if len(usable) < MIN_TRIALS or space is None:
        return facts
    import optuna

    try:
        with plugins_of(sweep.storage):
            tree = Space.read(space)
    except ConfigError:  # a plugin's, which is missing
        return facts
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=directions(metrics))
    for record in usable:
        trial = optuna.trial.FixedTrial(dict(record.params))
        try:
            tree.suggest(trial, sweep.identity.sampling)
        except (ConfigError, ValueError):  # proposed from another space
            continue
        values = [record.metrics[metric.name].value for metric in metrics]
        study.add_trial(
            optuna.trial.create_trial(
                params=trial.params, distributions=trial.distributions, values=values
            )
        )
    facts["trials"] = len(study.trials)
    if len(study.trials) >= MIN_TRIALS:
        facts["metrics"] = {
            metric.name: _importance(study, index, metric) for index, metric in enumerate(metrics)
        }
    return facts


def _importance(study: Study, index: int, metric: Metric) -> dict[str, float]:
    """The share of each parameter in one objective of the study."""
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    sign = -1.0 if metric.direction == "maximize" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reminds that low values are the best
        found = get_param_importances(
            study,
            evaluator=PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE),
            target=lambda trial: sign * trial.values[index],
        )
    return {name: round(share, 4) for name, share in found.items()}


def hypervolumes(front: Front) -> list[dict[str, Any]]:
    """The hypervolume of each sweep's front after each of its trials, in the order in which they
    finished, up to the reference point of all: `name`, `images` spent and `volume`.
    """
    reference = front.reference_point()
    metrics = front.metrics
    found = []
    for name, sweep in front.sweeps.items():
        images = 0
        rows = []
        curve: dict[str, Any] = {"name": name, "images": [], "volume": []}
        candidates = {trial.number for trial in front.candidates if trial.origin == name}
        for record in sorted(sweep.records, key=lambda record: (record.finished, record.number)):
            if record.duplicate_of is None:
                images += record.images
            if record.number in candidates:
                rows.append(values_of([record], metrics)[0])
            volume = 0.0
            if rows:
                volume = float(f"{hypervolume(rows, reference, directions(metrics)):.6g}")
            curve["images"].append(images)
            curve["volume"].append(volume)
        found.append(curve)
    return found


SECTIONS.add("analysis", Section("What the search found", 40, analysis, link="Analysis"))
