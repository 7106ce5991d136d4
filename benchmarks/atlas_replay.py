"""How well replay predicts the atlas's settings: accepted lengths, and the order of their
quality.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.atlas_table import SPANS, Atlas, Floats
from orchestrator.replay.predict import describe_settings
from orchestrator.replay.surrogate import Observations, Surrogate
from workers.metrics.estimate import Estimate, jackknife_error
from workers.replay.correction import Correction, Observation
from workers.replay.prediction import LENGTH, MEASURES, QUANTITIES, Prediction

WITHIN = 0.03
MODEL = "sampler's model"  # the replay sampler's Gaussian process, fitted to all other settings
_EVERYTHING = SPANS[3]  # all captions
_ERRORS = 2.0  # paired standard errors by which two settings differ beyond noise


def compare_replay(atlas: Atlas) -> list[str]:
    """Lines that say how well replay predicted accepted lengths and quality."""
    rows, before, after = length_errors(atlas)
    kinds = [f"{atlas.configs[row].drafter.kind} {atlas.configs[row].policy.kind}" for row in rows]
    lines = [f"{'':34}{'predicted':>26}{'corrected by all others':>26}"]
    lines += [
        f"{'drafter and tree':26}{'settings':>8}"
        + f"{'within 3 %':>11}{'median':>7}{'9 in 10':>8}" * 2
    ]
    for kind in [*dict.fromkeys(kinds), "all"]:
        part = np.array([kind in ("all", name) for name in kinds])
        lines.append(f"{kind:26}{part.sum():8}" + _shares(before[part]) + _shares(after[part]))
    candidates = measures(atlas)
    lines.append(f"\n{'Spearman with':26}" + "".join(f"{name:>16}" for name in atlas.quality))
    for name, values in candidates.items():
        cells = [rank_correlations(atlas, values[metric], metric) for metric in atlas.quality]
        lines.append(
            f"{name:26}" + "".join(f"{distinct:8.3f} ({every:.3f})" for distinct, every in cells)
        )
    return lines


def _shares(errors: Floats) -> str:
    size = np.abs(errors)
    return (
        f"{100 * np.mean(size <= WITHIN):9.0f} "
        f"%{100 * np.median(size):6.1f}%{100 * np.quantile(size, 0.9):7.1f}%"
    )


def length_errors(atlas: Atlas) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Rows that replay describes and whose length it does not know already; and the relative errors
    of their predicted accepted lengths, as predicted and corrected by all other settings.
    """
    rows, _ = described_rows(atlas)
    rows = rows[rows != 0]
    measured = atlas.mean_accepted_length(_EVERYTHING)
    observations = [
        Observation(
            atlas.configs[row],
            Prediction(
                {name: Estimate(float(atlas.predictions[name][row]), 0.0, 1) for name in QUANTITIES}
            ),
            Estimate.from_replicates(torch.from_numpy(measured[row]), atlas.passes.shape[1]),
        )
        for row in rows
    ]
    ratio = Correction.columns(observations)[2]
    return rows, np.expm1(-ratio), np.expm1(-Correction.fit(observations).left_out)


def described_rows(atlas: Atlas) -> tuple[NDArray[np.intp], dict[str, Floats]]:
    """Rows that replay describes, vanilla first, and the predictions [S] by quantity."""
    values = {name: atlas.predictions[name].copy() for name in QUANTITIES}
    for name, column in values.items():
        column[0] = 1.0 if name == LENGTH else 0.0
    return np.flatnonzero(~np.isnan(np.stack(list(values.values()))).any(axis=0)), values


def described_settings(atlas: Atlas) -> tuple[NDArray[np.intp], Floats, Floats]:
    """Rows that replay describes, vanilla first, their features, and guesses of their
    objectives.
    """
    rows, values = described_rows(atlas)
    configs = [atlas.configs[row] for row in rows]
    known = {name: column[rows].tolist() for name, column in values.items()}
    return rows, *describe_settings(configs, known, cols=None)


def measures(atlas: Atlas) -> dict[str, Mapping[str, Floats]]:
    """Candidate predictions of quality [S] by name and by the metric that they are compared
    with.
    """
    own = {name: dict.fromkeys(atlas.quality, atlas.predictions[name]) for name in MEASURES}
    return {
        **own,
        MODEL: {metric: left_out_predictions(atlas, metric) for metric in atlas.quality},
    }


def left_out_predictions(atlas: Atlas, metric: str) -> Floats:
    """What the sampler's Gaussian process, fitted to all other settings, predicts of each setting's
    metric [S]. The values are those that the process is fitted to: scaled, and in logs.
    """
    rows, features, _ = described_settings(atlas)
    rows = rows[1:]
    features = features[1:, : features.shape[1] // 2]  # of costs
    measured = atlas.quality[metric][rows, SPANS.index(_EVERYTHING)]
    errors = jackknife_error(torch.from_numpy(measured[:, 1:].T)).numpy()
    none = np.zeros((len(rows), 0))
    observations = Observations(features, measured[:, :1], errors[:, None], none, ["minimize"])
    process: Any = next(iter(Surrogate(observations, features).model.models))
    process.train()  # its prior
    with torch.no_grad():
        prior = process.likelihood(process(*process.train_inputs), *process.train_inputs)
    inverse = torch.linalg.inv(prior.covariance_matrix)
    predicted = np.full(len(atlas), np.nan)
    residual = (inverse @ (process.train_targets - prior.mean)) / inverse.diagonal()
    predicted[rows] = (process.train_targets - residual).detach().numpy()
    return predicted


def rank_correlations(atlas: Atlas, values: Floats, metric: str) -> tuple[float, float]:
    """Spearman's correlation of values [S] with a metric: over settings that differ beyond noise in
    it, and over all of them.
    """
    from scipy.stats import spearmanr

    rows = np.flatnonzero(~np.isnan(values))
    measured = atlas.quality[metric][:, SPANS.index(_EVERYTHING)]
    distinct = rows[distinct_settings(measured[rows])]
    both = (spearmanr(values[kept], measured[kept, 0])[0] for kept in (distinct, rows))
    among_distinct, among_all = map(float, both)
    return among_distinct, among_all


def distinct_settings(measured: Floats) -> list[int]:
    """Rows of values [S, 1 + G], the lowest first; each is larger than the one before by two paired
    errors.
    """
    chain: list[int] = []
    for row in np.argsort(measured[:, 0], kind="stable"):
        if chain:
            left_out = measured[row, 1:] - measured[chain[-1], 1:]
            groups = len(left_out)
            error = np.sqrt((groups - 1) / groups * ((left_out - left_out.mean()) ** 2).sum())
            if measured[row, 0] - measured[chain[-1], 0] <= _ERRORS * error:
                continue
        chain.append(int(row))
    return chain
