"""The surrogate knows that the quality of a lossless setting is a function of its sampling alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from orchestrator.front.pareto import Floats
from orchestrator.replay.predict import describe_settings
from orchestrator.replay.surrogate import Observations, Surrogate, _first_rows
from search_spaces.trial import DecodingConfig, Sampling
from workers.replay.prediction import LENGTH, MEASURES

pytestmark = pytest.mark.filterwarnings("ignore::Warning:botorch")
WARM, COOL = Sampling(cfg=1.5), Sampling(temperature=0.8, cfg=1.5)
LEVEL = {WARM: 4.0, COOL: 3.0}  # the true fid of lossless settings
ERROR = 0.1  # of a measured fid


def chain(length: int, budget: float, sampling: Sampling = WARM) -> DecodingConfig:
    """Lossless with a budget of 1."""
    entry = {
        "drafter": "eagle",
        "tree": {"policy": "chain", "length": length},
        "acceptance": {"schedule": "constant", "budget": budget},
    }
    return DecodingConfig.from_mapping(entry).with_sampling(sampling)


def window(length: int, sampling: Sampling = WARM) -> DecodingConfig:
    """A lossless Jacobi window."""
    entry = {"drafter": "jacobi", "tree": {"policy": "chain", "length": length}}
    return DecodingConfig.from_mapping(entry).with_sampling(sampling)


CONFIGS = [
    DecodingConfig(sampling=WARM),
    *(chain(length, 1.0) for length in (2, 3, 5)),
    *(chain(3, budget) for budget in (1.02, 1.1, 1.3, 1.6, 2.0)),
    *(chain(3, budget, COOL) for budget in (1.02, 1.1, 1.3, 1.6, 2.0)),
    window(7),
    chain(4, 1.0, COOL),
    window(5, COOL),
]
BUDGETS = np.array([float(config.flat().get("acceptance.budget", 1.0)) for config in CONFIGS])
LOSSLESS = np.array([config.is_lossless(config.sampling) for config in CONFIGS])
TOLD = list(range(14))  # neither a window nor a lossless setting of the cool sampling


def features() -> tuple[Floats, int]:
    """As predicted: a larger budget accepts more and costs more."""
    lengths = [1.0 if config.is_vanilla else 2 * budget for config, budget in _predicted()]
    # the relaxation of lossless settings is predicted with noise, which must not matter
    noise = 0.01 * np.random.default_rng(0).random(len(CONFIGS))
    values = {name: (BUDGETS - 1 + noise).tolist() for name in MEASURES}
    table, _ = describe_settings(CONFIGS, {LENGTH: lengths, **values}, cols=8)
    return table, table.shape[1] // 2


def _predicted() -> Sequence[tuple[DecodingConfig, float]]:
    return list(zip(CONFIGS, BUDGETS.tolist(), strict=True))


def observed(rows: Sequence[int], seed: int = 0, *, is_known: bool = True) -> Observations:
    """Speed and fid as told: lossless settings have the value of their group's first member."""
    rng = np.random.default_rng(seed)
    table, first = features()
    level = np.array([LEVEL[config.sampling] for config in CONFIGS if config.sampling])
    fid = level + 2 * (BUDGETS - 1) + ERROR * rng.standard_normal(len(CONFIGS))
    if is_known:
        for sampling in LEVEL:
            group = [row for row in rows if LOSSLESS[row] and CONFIGS[row].sampling == sampling]
            fid[group] = fid[group[:1]]
    speed = np.exp(0.3 * table[:, 0] * -1)
    kept = list(rows)
    return Observations(
        features=table[kept],
        values=np.stack([speed, fid], axis=1)[kept],
        errors=np.tile([0.01, ERROR], (len(kept), 1)),
        violations=np.zeros((len(kept), 0)),
        directions=["maximize", "minimize"],
        reference=np.array([0.5, 9.0]),
        columns=[slice(first), slice(first, None)] if is_known else None,
    )


def predicted_fid(seen: Observations) -> tuple[Floats, Floats]:
    """Means and standard deviations [N] of the surrogate's log fid."""
    table, _ = features()
    surrogate = Surrogate(seen, table)
    outcome = surrogate._outcomes[1]
    with torch.no_grad():
        posterior = surrogate.model.posterior(surrogate._scaled(table))
    mean = posterior.mean[:, 1].numpy() * outcome.scale + outcome.shift
    return mean, posterior.variance[:, 1].sqrt().numpy() * outcome.scale


def test_lossless_settings_of_one_sampling_have_the_same_features_of_quality() -> None:
    table, first = features()
    quality = table[:, first:]
    for sampling in LEVEL:
        rows = [
            row
            for row, config in enumerate(CONFIGS)
            if LOSSLESS[row] and config.sampling == sampling
        ]
        assert len(rows) >= 2
        assert (quality[rows] == quality[rows[0]]).all()
        others = np.delete(quality, rows, axis=0)
        assert not (others == quality[rows[0]]).all(axis=1).any()
    lossy = ~LOSSLESS
    assert (quality[lossy] == table[lossy, :first]).all()
    costs = table[LOSSLESS, :first]
    assert len({tuple(row) for row in costs.tolist()}) == LOSSLESS.sum()


def test_a_setting_of_a_measured_group_has_its_value_and_its_error() -> None:
    """For 20 sweeps the value differs from what was told by less than one error, and from the
    truth by less than three.
    """
    for seed in range(20):
        seen = observed(TOLD, seed)
        mean, spread = predicted_fid(seen)
        told = float(seen.values[0, 1])
        rows = [0, 1, 2, 3, CONFIGS.index(window(7))]
        assert mean[rows] == pytest.approx(mean[0])
        assert spread[rows] == pytest.approx(spread[0])
        relative = ERROR / told
        assert abs(mean[0] - np.log(told)) < relative
        assert 0.7 * relative < spread[0] <= 1.05 * relative, "told to four settings"
        assert abs(np.exp(mean[0]) - LEVEL[WARM]) < 3.5 * ERROR


def test_a_group_s_value_is_one_measurement_however_many_members_were_told_it() -> None:
    """Four members of a group, or one of them: nearly the same prediction of quality. Values are
    scaled by those that were told.
    """
    once = [row for row in TOLD if row not in (1, 2, 3)]
    many, one = (predicted_fid(observed(rows)) for rows in (TOLD, once))
    assert many[0] == pytest.approx(one[0], abs=0.02)
    assert many[1] == pytest.approx(one[1], rel=0.15)


def test_another_sampling_is_learnt_from_its_own_settings() -> None:
    """No lossless setting of the cool sampling was told: its lossy ones say where it lies, and all
    of its lossless settings have one prediction.
    """
    cool = [CONFIGS.index(chain(4, 1.0, COOL)), CONFIGS.index(window(5, COOL))]
    errors = []
    for seed in range(10):
        mean, spread = predicted_fid(observed(TOLD, seed))
        assert mean[cool[0]] == pytest.approx(mean[cool[1]])
        assert spread[cool[0]] > spread[0], "less is known than of a measured group"
        errors.append(np.exp(mean[cool[0]]) - LEVEL[COOL])
    assert abs(np.mean(errors)) < 0.35
    assert np.abs(errors).max() < 0.8


def test_settings_of_a_group_are_equally_good_in_every_draw() -> None:
    """So a slower one never improves the front. By own measured fids, any may be better by luck."""
    table, _ = features()
    rows = [0, 1, 3, CONFIGS.index(window(7))]
    spreads = {}
    for is_known in (True, False):
        surrogate = Surrogate(observed(TOLD, is_known=is_known), table)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            posterior = surrogate.model.posterior(surrogate._scaled(table[rows]))
            draws = posterior.rsample(torch.Size([200]))[..., 1]
        fids = surrogate._outcomes[1].restore(draws).detach()
        spreads[is_known] = float((fids - fids[:, :1]).square().mean().sqrt())
    assert spreads[True] < 0.01 * ERROR
    assert spreads[False] > 0.3 * ERROR


def test_the_first_of_equal_rows_counts() -> None:
    """So a setting that claims to be lossless and fails its check does not change its group's
    value.
    """
    x = torch.tensor([[0.0, 1.0], [0.5, 1.0], [0.0, 1.0], [0.5, 1.0], [0.5, 0.0]]).double()
    assert _first_rows(x).tolist() == [0, 1, 4]
