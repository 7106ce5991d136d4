"""How much each searched parameter matters, from the trials of a sweep."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orchestrator.front.joint import directions
from orchestrator.store import files, launches
from orchestrator.store.identity import plugins_of
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, html_table
from search_spaces.params import ConfigError
from search_spaces.space import Space
from workers.metrics.definition import Metric
from workers.metrics.estimate import measured

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

# of trials with parameters: a quarter is the best group, which Optuna advises to have five at least
MIN_TRIALS = 20
_BEST_SHARE = 0.25
_BLOCKS = 10  # of trials, each of which is left out once for the errors


@dataclass(frozen=True, slots=True)
class Importances:
    """How much each searched parameter matters for being among the best quarter of the trials."""

    trials: int  # that count: complete ones with parameters of the sweep's space
    more: str  # the command that adds trials, if too few are missing for no other reason; else ""
    # of each metric: the parameters' shares, which sum to 1, and their standard errors; the largest
    # first; empty with too few trials or without a space
    shares: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    lacks: str = ""  # what more trials would not mend

    @property
    def problem(self) -> str:
        """Why there are no shares; "" if there are."""
        if self.shares:
            return ""
        if self.lacks:
            return f"there are no importances: {self.lacks}"
        text = (
            f"importances need {MIN_TRIALS} measured trials with parameters, and "
            f"{counted(self.trials, 'trial')} can be used"
        )
        return f"{text}; this adds some: {self.more}"

    @property
    def table(self) -> tuple[list[str], list[list[str]]]:
        """The shares as a table: a heading, and a row for each parameter."""
        names = list(self.shares)
        parameters = dict.fromkeys(key for shares in self.shares.values() for key in shares)
        rows = [
            [key, *(measured(*self.shares[name].get(key, (0.0, math.nan))) for name in names)]
            for key in parameters
        ]
        return ["parameter", *names], rows

    def to_mapping(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "trials": self.trials,
            "needed": MIN_TRIALS,
            "metrics": {
                metric: {key: round(share, 4) for key, (share, _) in shares.items()}
                for metric, shares in self.shares.items()
            },
            "errors": {
                metric: {key: round(error, 4) for key, (_, error) in shares.items()}
                for metric, shares in self.shares.items()
            },
        }

    def __repr__(self) -> str:
        if self.problem:
            return self.problem
        head, rows = self.table
        return "\n".join("  ".join(row) for row in [head, *rows])

    def _repr_html_(self) -> str:
        return self.problem or html_table(*self.table)


def importances(sweep: Sweep, metrics: Sequence[Metric]) -> Importances:
    """How much each searched parameter matters for being among the best quarter of the trials in
    each metric. Trials count if all of their images were measured: none of those that racing
    stopped, that failed, or that the replay only predicted.

    Optuna's PED-ANOVA evaluator (Watanabe et al. 2023) computes the shares. It also covers
    parameters that only some branches of the space have. Their errors are those of a delete-a-group
    jackknife over the trials.
    """
    names = {metric.name for metric in metrics}
    usable = [
        record
        for record in sweep.records
        if record.is_complete and record.params and record.duplicate_of is None
    ]
    space = files.read_sweep_yaml(sweep.storage).get("space")
    if space is None:
        return Importances(0, "", lacks="the sweep has no space to search")
    try:
        with plugins_of(sweep.storage):
            tree = Space.read(space)
    except ConfigError as error:  # a plugin that is missing
        return Importances(0, "", lacks=str(error))
    measured_trials = [each for each in usable if names <= each.metrics.keys()]
    trials = _frozen(tree, sweep, measured_trials, metrics)
    if len(trials) < MIN_TRIALS:
        return Importances(len(trials), _more(sweep, MIN_TRIALS - len(trials)))
    shares = {
        metric.name: _with_errors(trials, index, metrics) for index, metric in enumerate(metrics)
    }
    return Importances(len(trials), "", shares)


def _more(sweep: Sweep, missing: int) -> str:
    """The command that adds trials to the sweep."""
    planned = max(files.planned_trials(sweep.storage) or 0, len(sweep.records))
    return f"{launches.find_launch(sweep.storage).resume} --trials {planned + missing}"


def _frozen(
    tree: Space, sweep: Sweep, records: Sequence[TrialRecord], metrics: Sequence[Metric]
) -> list[FrozenTrial]:
    """The trials as Optuna has them; without those that were proposed from another space."""
    import optuna

    found = []
    for record in records:
        trial = optuna.trial.FixedTrial(dict(record.params))
        try:
            tree.suggest(trial, sweep.identity.sampling)
        except (ConfigError, ValueError):
            continue
        values = [record.metrics[metric.name].value for metric in metrics]
        found.append(
            optuna.trial.create_trial(
                params=trial.params, distributions=trial.distributions, values=values
            )
        )
    return found


def _with_errors(
    trials: Sequence[FrozenTrial], index: int, metrics: Sequence[Metric]
) -> dict[str, tuple[float, float]]:
    """The share of each parameter in one metric, with its standard error, the largest first."""
    whole = _shares(trials, index, metrics)
    parts = []
    for block in range(_BLOCKS):
        kept = [trial for place, trial in enumerate(trials) if place % _BLOCKS != block]
        parts.append(_shares(kept, index, metrics))
    found = {}
    for key, share in whole.items():
        values = [part.get(key, 0.0) for part in parts]
        mean = math.fsum(values) / _BLOCKS
        squares = math.fsum((value - mean) ** 2 for value in values)
        found[key] = (share, math.sqrt((_BLOCKS - 1) / _BLOCKS * squares))
    return found


def _shares(
    trials: Sequence[FrozenTrial], index: int, metrics: Sequence[Metric]
) -> dict[str, float]:
    """The share of each parameter in one metric."""
    import optuna
    from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=directions(metrics))
    study.add_trials(trials)
    sign = -1.0 if metrics[index].direction == "maximize" else 1.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it reminds that low values are the best
        return get_param_importances(
            study,
            evaluator=PedAnovaImportanceEvaluator(target_quantile=_BEST_SHARE),
            target=lambda trial: sign * trial.values[index],
        )
