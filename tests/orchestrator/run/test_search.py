"""The search with every sampler, and the study as Optuna users open it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState, create_trial

from benchmarks.instant import plausible
from orchestrator.errors import StudyError
from orchestrator.front.pareto import nondominated
from orchestrator.replay.predict import random_settings
from orchestrator.replay.sampler import SettingsPool
from orchestrator.run.search import Proposal, Search
from orchestrator.store.names import SettingNames
from orchestrator.store.records import TrialRecord
from orchestrator.views.study import check_study, open_storage, own_trials, short_names
from search_spaces.samplers import SAMPLERS
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.studies import named_config, write_study
from tests.fakes.synthetic_sweeps import BASELINE
from workers.metrics.definition import Direction
from workers.metrics.estimate import Estimate

NAMES = ("speedup", "fid")
DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")
SPACE = """
name: studied
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
search: {sampler: SAMPLER, parallel: 2, seed: 7}
enqueue: [vanilla, {label: chain, drafter: eagle, tree: {policy: chain, length: 3}},
          {label: outside, drafter: eagle, tree: {policy: chain, length: 9}}]
space:
  drafter: eagle
  tree: [{policy: chain, length: {low: 2, high: 6}}, {policy: dynamic, depth: 3, width: {values: [2, 4]}, nodes: 8}]
  acceptance: [exact, {neighbourhood: additive, k: {values: [10, 100]}, delta: DELTA}]
"""


def sweep(folder: Path, sampler: str, changes: Mapping[str, Any] | None = None) -> SweepConfig:
    delta = "{values: [0.1, 0.2]}" if sampler == "grid" else "{low: 0.01, high: 0.5, log: true}"
    path = folder / "studied.yaml"
    path.write_text(SPACE.replace("SAMPLER", sampler).replace("DELTA", delta))
    return SweepConfig.read(path, changes)


def record(proposal: Proposal, **changes: Any) -> TrialRecord:
    """A result of the trial: a trade-off along the numbers of its config."""
    assert proposal.config is not None
    values = {name: Estimate(value, 0.1, 64) for name, value in plausible(proposal.config).items()}
    fields: dict[str, Any] = {"metrics": values, "params": proposal.params} | changes
    state, config = fields.pop("state", "complete"), proposal.config
    return TrialRecord(proposal.number, proposal.label, state, config, **fields)


def pool_of(config: SweepConfig) -> SettingsPool:
    """Settings of the space, described by how much they draft and accept; and those that are
    outside of it.
    """

    def features(setting: DecodingConfig) -> list[float]:
        return [
            float(setting.policy.bounds.depth),
            float(setting.flat().get("acceptance.delta", 0.0)),
        ]

    enqueued = [entry.config for entry in config.enqueue]
    outside = [
        entry for entry in enqueued if config.space.params_of(entry, config.sampling) is None
    ]
    inside = {
        entry: config.space.params_of(entry, config.sampling)
        for entry in enqueued
        if entry not in outside
    }
    known = inside | dict(islice(random_settings(config, lambda entry: entry not in enqueued), 60))
    return SettingsPool(
        [params for params in known.values() if params is not None],
        np.array([features(entry) for entry in known]),
        outside={entry.digest(): np.array(features(entry)) for entry in outside},
        enqueued=len(inside),
    )


def drive(
    config: SweepConfig, trials: int, stored: Sequence[TrialRecord] = (), parallel: int = 2
) -> list[TrialRecord]:
    """Ask and tell with `parallel` trials in flight; `stored`: the finished trials of an earlier
    run.
    """
    pool = (
        partial(pool_of, config)
        if SAMPLERS[config.search.sampler].from_pool
        else SettingsPool.empty
    )
    search, done, pending = Search(config, DIRECTIONS, pool), [], []
    for number in range(trials):
        before = stored[number] if number < len(stored) else None
        proposal = search.propose(number, before.params if before else None)
        pending.append(before or record(proposal))
        if len(pending) == parallel:
            search.tell(pending[0], NAMES)
            done.append(pending.pop(0))
    return [*done, *pending]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_proposes_points_of_the_space_and_resumes_alike(
    sampler: str, tmp_path: Path
) -> None:
    config, trials = sweep(tmp_path, sampler), 12
    whole = drive(config, trials)
    assert [entry.label for entry in whole[:3]] == ["vanilla", "chain", "outside"]
    for entry in whole[3:]:
        assert entry.config is not None
        assert config.space.params_of(entry.config, config.sampling) == dict(entry.params)
    assert len({entry.digest for entry in whole}) > 5
    resumed = drive(config, trials, whole[: trials // 2])
    assert [entry.params for entry in resumed] == [entry.params for entry in whole]


FLAT = {
    "drafter": "eagle",
    "tree": {"policy": "chain", "length": {"low": 2, "high": 6}},
    "acceptance": {
        "neighbourhood": "additive",
        "k": 100,
        "delta": {"low": 0.01, "high": 0.5, "log": True},
    },
}
SMALL: Mapping[str, dict[str, Any]] = {
    "tpe": {"n_startup_trials": 4},
    "nsga2": {"population_size": 4},
    "nsga3": {"population_size": 4},
    "gp": {"n_startup_trials": 4},
    "qmc": {},
}


@pytest.mark.parametrize("sampler", SMALL)
def test_samplers_do_more_than_draw_at_random(
    sampler: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although vanilla and another config outside of the space come first; and a resumed search
    proposes the same.
    """
    config = sweep(tmp_path, sampler, {"space": FLAT, "search.options": SMALL[sampler]})
    related: list[set[str]] = []

    class Observed(type(Search(config, DIRECTIONS)._make_sampler(0))):  # type: ignore[misc]
        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            found: dict[str, Any] = super().sample_relative(study, trial, search_space)
            related.append(set(found))
            return found

    monkeypatch.setattr("orchestrator.run.search.load_object", lambda reference: Observed)
    trials = 9 if sampler == "gp" else 14  # its fits are slow
    whole = drive(config, trials)
    assert set().union(*related) == {"tree.length", "acceptance.delta"}
    assert [entry.params for entry in drive(config, trials, whole[: trials - 4])] == [
        entry.params for entry in whole
    ]


@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"grid"}))
def test_the_seed_changes_the_proposals(sampler: str, tmp_path: Path) -> None:
    first = drive(sweep(tmp_path, sampler), 8)
    other = drive(sweep(tmp_path, sampler, {"search.seed": 8}), 8)
    assert [entry.params for entry in first[:3]] == [entry.params for entry in other[:3]]
    assert [entry.params for entry in first[3:]] != [entry.params for entry in other[3:]]


def test_tpe_concentrates_on_good_configs(tmp_path: Path) -> None:
    """One objective, largest at a large delta: TPE proposes larger ones than random draws."""
    means = {}
    for sampler in ("tpe", "random"):
        search, deltas = Search(sweep(tmp_path, sampler), ["maximize"]), []
        for number in range(50):
            proposal = search.propose(number)
            assert proposal.config is not None
            delta = float(proposal.config.flat().get("acceptance.delta", 0.0))
            search.tell(
                record(proposal, metrics={"speedup": Estimate(delta, math.inf, 1)}), ["speedup"]
            )
            deltas.append(delta)
        means[sampler] = np.mean(deltas[-20:])
    assert means["tpe"] > 2 * means["random"]


def test_enqueued_configs_inside_the_space_are_told_to_the_sampler(tmp_path: Path) -> None:
    search = Search(sweep(tmp_path, "tpe"), DIRECTIONS)
    vanilla, chain, outside = (search.propose(number) for number in range(3))
    assert chain.params == {"tree": "chain", "tree.length": 3, "acceptance": "exact"}
    assert set(chain.distributions) == set(chain.params)
    assert (vanilla.params, outside.params) == ({}, {}), "outside of the space"
    assert outside.config is not None
    assert outside.config.policy.bounds.depth == 9
    for proposal in (vanilla, chain, outside):
        search.tell(record(proposal), NAMES)


@pytest.mark.parametrize(
    ("sampler", "options", "words"),
    [
        ("tpe", {"n_startup": 5}, r"search\.options: the tpe sampler refused.*n_startup"),
        (
            "nsga2",
            {"population_size": 1},
            r"search\.options: the nsga2 sampler refused.*population_size",
        ),
        ("random", {"n_startup_trials": 5}, r"search\.options: the random sampler refused"),
        ("grid", {"search_space": {}}, r"search\.options: the grid sampler refused"),
        ("gp", {"seed": 5}, r"search\.options: the gp sampler refused.*seed"),
        ("replay", {"startup": 0}, r"search\.options: the replay sampler refused.*startup"),
        ("replay", {"samples": "x"}, r"search\.options: the replay sampler refused.*samples"),
        ("replay", {"reference": [1.0]}, r"search\.options\.reference: give 2 numbers"),
        ("replay", {"reference": ["a", 2.0]}, r"search\.options\.reference: give 2 numbers"),
        ("replay", {"reference": 3}, r"search\.options\.reference: give 2 numbers"),
        ("replay", {"pol": 5}, r"search\.options: the replay sampler refused.*pol"),
    ],
)
def test_unknown_options_of_a_sampler_are_refused(
    sampler: str, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(StudyError, match=words):
        Search(sweep(tmp_path, sampler, {"search.options": options}), DIRECTIONS)


def test_a_sampler_with_a_pool_is_told_every_trial(tmp_path: Path) -> None:
    """Also those outside of the space, by their features; with the errors of their values."""
    config = sweep(tmp_path, "replay", {"search.options": {"startup": 3}})
    pool = pool_of(config)
    search = Search(config, DIRECTIONS, lambda: pool)
    proposals = [search.propose(number) for number in range(4)]
    for proposal in proposals:
        search.tell(record(proposal), NAMES)
    trials = search._study.trials
    assert [trial.user_attrs["errors"] for trial in trials] == [[0.1, 0.1]] * 4
    found = [pool.outside.get(trial.user_attrs.get("setting", "")) for trial in trials]
    assert [None if entry is None else entry.tolist() for entry in found] == [
        [0.0, 0.0],
        None,
        [9.0, 0.0],
        None,
    ]
    assert proposals[3].params in pool.params
    size = 3 + len(pool) - 1
    assert [search.is_exhausted(number) for number in (0, size - 1, size)] == [False, False, True]
    assert search.source == "pool"


def test_only_a_sampler_with_a_pool_reads_one(tmp_path: Path) -> None:
    def missing() -> SettingsPool:
        raise FileNotFoundError("predictions.parquet")

    search = Search(sweep(tmp_path, "tpe"), DIRECTIONS, missing)
    assert [search.propose(number).params == {} for number in range(5)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert not search.is_exhausted(99)
    with pytest.raises(FileNotFoundError):
        Search(sweep(tmp_path, "replay"), DIRECTIONS, missing).is_exhausted(99)


def test_options_reach_the_sampler(tmp_path: Path) -> None:
    search = Search(sweep(tmp_path, "tpe", {"search.options": {"n_startup_trials": 3}}), DIRECTIONS)
    assert search._make_sampler(0)._n_startup_trials == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("metrics", "values"),
    [
        ({"speedup": 2.0, "fid": 5.0, "kid": math.nan}, [2.0, 5.0]),
        ({"speedup": 2.0, "fid": math.nan}, None),
        ({"speedup": math.inf, "fid": 5.0}, None),
        ({"fid": 5.0}, None),
    ],
)
def test_only_finite_values_are_told(metrics: dict[str, float], values: list[float] | None) -> None:
    entry = TrialRecord(
        0,
        "",
        "complete",
        None,
        metrics={name: Estimate(v, math.inf, 1) for name, v in metrics.items()},
    )
    assert entry.finite_values(NAMES) == values
    failed = TrialRecord(0, "", "failed", None, metrics=entry.metrics)
    assert failed.finite_values(NAMES) is None


@pytest.mark.parametrize("url", ["study.log", "sqlite:///study.db"])
def test_optunas_front_is_ours(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = sweep(tmp_path, "random")
    records = drive(config, 16)
    failing = {5, 9}
    records = [
        (
            TrialRecord(r.number, r.label, "failed", r.config, params=r.params, cause="no")
            if r.number in failing
            else r
        )
        for r in records
    ]
    write_study(config, url, records)
    write_study(config, url, records)  # once more, as after resuming: nothing doubles
    study = optuna.load_study(study_name="studied", storage=open_storage(url))
    assert [trial.number for trial in study.trials] == list(range(16))
    assert {trial.number for trial in study.trials if trial.state == TrialState.FAIL} == failing
    assert study.metric_names == list(NAMES)
    whole = [r for r in records if r.number not in failing]
    values = np.array([[r.metrics[name].value for name in NAMES] for r in whole])
    ours = {r.number for r, on in zip(whole, nondominated(values, DIRECTIONS), strict=True) if on}
    theirs = {trial.number for trial in study.best_trials}
    assert theirs == ours
    assert 1 < len(ours) < len(whole)
    attrs = study.trials[1].user_attrs
    assert attrs["label"] == "chain"
    assert attrs["digest"] == records[1].digest
    assert attrs["setting"] == SettingNames(BASELINE.sampling).name(records[1].config)
    assert attrs["fid"] == records[1].metrics["fid"].value
    assert attrs["tree.policy"] == "chain"
    assert not any(isinstance(value, dict | list) for value in attrs.values()), (
        "people read them in tables"
    )


def test_constraints_make_optunas_front_smaller_in_the_same_way(tmp_path: Path) -> None:
    config = sweep(tmp_path, "random")
    records = [
        TrialRecord(r.number, r.label, r.state, r.config, params=r.params, metrics=r.metrics,
                    constraints={"fid <= 4.5": r.metrics["fid"].value - 4.5})
        for r in drive(config, 30)
    ]  # fmt: skip
    write_study(config, tmp_path / "study.log", records)
    study = optuna.load_study(
        study_name="studied", storage=open_storage(str(tmp_path / "study.log"))
    )
    inside = [r for r in records if r.feasible]
    assert 0 < len(inside) < len(records)
    values = np.array([[r.metrics[name].value for name in NAMES] for r in inside])
    ours = {r.number for r, on in zip(inside, nondominated(values, DIRECTIONS), strict=True) if on}
    assert {trial.number for trial in study.best_trials} == ours


def test_a_partial_study_is_completed(tmp_path: Path) -> None:
    config, url = sweep(tmp_path, "random"), str(tmp_path / "study.log")
    records = drive(config, 10)
    study = write_study(config, url, records[:6])._study
    assert study is not None
    study.add_trial(create_trial(state=TrialState.RUNNING))  # of somebody else
    write_study(config, url, records)
    opened = optuna.load_study(study_name="studied", storage=open_storage(url))
    assert opened.trials[6].state == TrialState.RUNNING, "it is left alone"
    trials = own_trials(opened.trials)
    assert [trials[number].state for number in range(10)] == [TrialState.COMPLETE] * 10
    names = short_names(config.space.parameters())
    expected = [{names[key]: value for key, value in entry.params.items()} for entry in records]
    assert [trials[number].params for number in range(10)] == expected


def test_trials_of_another_search_are_refused(tmp_path: Path) -> None:
    records = drive(sweep(tmp_path, "nsga2"), 6)
    search = Search(sweep(tmp_path, "nsga2", {"search.seed": 99}), DIRECTIONS)
    for entry in records[:3]:
        search.propose(entry.number, entry.params)
        search.tell(entry, NAMES)
    with pytest.raises(StudyError, match="launch it under a new name"):
        search.propose(3, records[3].params)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("none/study.log", "none/study.log: the study cannot be opened"),
        ("nosuch://me:hunter22@host/db", r"nosuch://\*\*\*@host/db: the study cannot be opened"),
        (
            "sqlite:////none/at/all.db",
            "cannot be opened .*(unable to open database file|No such file)",
        ),
        (".", "cannot be opened .*directory"),
    ],
)
def test_storages_that_cannot_be_opened(
    url: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for opening in (
        lambda url: check_study(url, "studied", DIRECTIONS, None),
        lambda url: write_study(named_config("studied"), url, []),
    ):
        with pytest.raises(StudyError, match=words) as raised:
            opening(url)
        assert "\n" not in str(raised.value)
        assert "hunter22" not in str(raised.value)


@pytest.mark.parametrize("character", ["/", "?", "#", "@", " "])
def test_an_unquoted_character_in_a_password_is_named_but_not_the_password(character: str) -> None:
    with pytest.raises(ValueError, match="password") as raised:
        check_study(
            f"postgresql://me:hunter{character}22@127.0.0.1:1/db", "studied", DIRECTIONS, None
        )
    assert quote(character, safe="") in str(raised.value)
    for secret in ("hunter", "22@"):
        assert secret not in str(raised.value)


def test_a_sqlite_file_whose_name_would_be_cut(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"write \? in the path.* as %3F"):
        check_study(f"sqlite:///{tmp_path}/what?/study.db", "studied", DIRECTIONS, None)
    url = f"sqlite:///{tmp_path}/a#b%3Fc d.db?timeout=5"
    check_study(url, "studied", DIRECTIONS, None)
    assert list(tmp_path.iterdir()) == []
    write_study(named_config("studied"), url, [])
    assert [path.name for path in tmp_path.iterdir()] == ["a#b?c d.db"]


def test_a_check_leaves_no_file(tmp_path: Path) -> None:
    for url in (str(tmp_path / "study.log"), f"sqlite:///{tmp_path}/study.db"):
        check_study(url, "studied", DIRECTIONS, None)
        assert list(tmp_path.iterdir()) == []


def test_an_invalid_proposal_is_told_as_failed(tmp_path: Path) -> None:
    """A proposal without a config keeps its parameters, so that the sampler learns to avoid
    them.
    """
    config = sweep(tmp_path, "random")
    search = Search(config, DIRECTIONS)
    proposals = [search.propose(number) for number in range(4)]
    assert all(proposal.problem is None for proposal in proposals)
    entry = TrialRecord(0, "", "failed", None, cause="the space proposed an invalid config")
    search.tell(entry, NAMES)
    assert DecodingConfig(sampling=Sampling(cfg=1.5)) == proposals[0].config
