"""Sweeps: defaults, overrides, round trips, ready spaces, and refusals with their one line."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from search_spaces.constraints import Constraint
from search_spaces.drafters import Eagle
from search_spaces.params import ConfigError
from search_spaces.presets import PRESETS
from search_spaces.sweep import DEFAULT_OBJECTIVES, KEYS, SweepConfig, find_space, ready_spaces
from search_spaces.sweep_sections import (
    Budget,
    Captions,
    Enqueued,
    Models,
    Objective,
    Quality,
    Racing,
    Reference,
    Search,
    Timing,
)
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.search_spaces.test_space import Trial

ROOT = Path(__file__).parents[2]
SHORT = "name: short\nspace: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}\n"
BASELINE = Sampling(cfg=1.5)
LONG = """\
name: long.one_2
about: a sentence
models: {file: some/folder, device: cpu}
captions: {source: captions.csv, column: text, count: 10}
reference: {source: some/images}
seed: 3
quality: {batch: 8, shard: 16, samples: 2}
timing: {batch: 2, images: 5, repetitions: 1}
metrics: [fid, drift]
objectives: [speedup, {metric: fid, direction: minimize}, {metric: drift}]
constraints: ["clip_score >= 0.9 * vanilla", "drift<=2", fid <= vanilla + 0.5]
search: {sampler: nsga2, parallel: 4, seed: 1, options: {population_size: 20, nested: {a: [1, 2]}}}
racing: {rungs: [3, 6], error_rate: 0.1}
budget: {trials: 5, images: 1000, hours: 0.5}
enqueue:
  - vanilla
  - {preset: lantern, sampling: {cfg: 3}}
  - {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}, sampling: {cfg: {values: [1, 2]}}}
"""


def read(text: str, overrides: dict[str, Any] | None = None) -> SweepConfig:
    return SweepConfig.parse(text, "f", overrides)


def test_a_reference_may_be_a_text() -> None:
    assert read(SHORT + "reference: none\n").reference == Reference(source="none")
    assert read(SHORT + "reference: photos\n", {"reference.count": 9}).reference == Reference(
        source="photos", count=9
    )


def test_what_is_left_out_has_a_default() -> None:
    sweep = read(SHORT)
    assert (sweep.name, sweep.about, sweep.seed) == ("short", "", 0)
    assert (sweep.models, sweep.captions, sweep.reference) == (Models(), Captions(), Reference())
    assert (sweep.quality, sweep.timing, sweep.search, sweep.budget) == (
        Quality(),
        Timing(),
        Search(),
        Budget(),
    )
    assert sweep.objectives == DEFAULT_OBJECTIVES
    assert (sweep.metrics, sweep.constraints, sweep.enqueue, sweep.sampling) == (
        None,
        (),
        (),
        None,
    )
    assert sweep.racing is None
    assert sweep.space.size() == 5


def test_everything_can_be_said() -> None:
    sweep = read(LONG)
    assert sweep.models == Models(file="some/folder", device="cpu")
    assert sweep.captions == Captions("captions.csv", 10, 1, "text")
    assert sweep.metrics == ("fid", "drift")
    assert sweep.racing == Racing(rungs=(3, 6), error_rate=0.1, revive_above=0.05)
    assert sweep.objectives == (
        Objective("speedup"),
        Objective("fid", "minimize"),
        Objective("drift"),
    )
    assert sweep.search.options == {"population_size": 20, "nested": {"a": [1, 2]}}
    assert sweep.budget == Budget(5, 1000, 0.5)
    assert sweep.sampling == BASELINE
    assert [constraint.text for constraint in sweep.constraints] == [
        "clip_score >= 0.9 * vanilla", "drift <= 2", "fid <= vanilla + 0.5",
    ]  # fmt: skip


def test_a_race_has_an_error_rate_unless_dominated_trials_stop() -> None:
    racing = {
        stop: read(SHORT + f"racing: {{rungs: [48], stop: {stop}}}\n").racing
        for stop in ("significant", "dominated")
    }
    rates = {stop: section.error_rate for stop, section in racing.items() if section is not None}
    assert rates == {"significant": 0.05, "dominated": None}
    assert racing["significant"] == Racing(rungs=(48,), error_rate=0.05)
    for section in racing.values():
        assert section is not None
        assert Racing.from_mapping(section.to_mapping()) == section


def test_enqueued_settings_carry_the_baselines_sampling() -> None:
    vanilla, lantern, chain = read(LONG).enqueue
    assert vanilla == Enqueued("vanilla", DecodingConfig(sampling=BASELINE))
    assert lantern == Enqueued(
        "eagle dynamic additive constant", PRESETS["lantern"].with_sampling(Sampling(cfg=3.0))
    )
    assert chain == Enqueued("exact chain", DecodingConfig(Eagle(), Chain(3), sampling=BASELINE))
    bare = read(
        SHORT + "enqueue: [{preset: eagle2}, {drafter: eagle, tree: {policy: chain, length: 2}}]\n"
    ).enqueue
    assert [entry.label for entry in bare] == ["eagle2", "eagle chain exact"]
    assert all(entry.config.sampling is None for entry in bare)


@pytest.mark.parametrize("text", [SHORT, LONG, "name: list\nenqueue: [vanilla, cool]\n"])
def test_what_is_written_reads_back_equal(text: str) -> None:
    sweep = read(text)
    again = read(sweep.to_yaml())
    assert again == sweep
    assert again.to_yaml() == sweep.to_yaml()
    written = yaml.safe_load(sweep.to_yaml())
    assert set(KEYS) - set(written) <= {"metrics", "sampling", "racing"}
    assert written["timing"] == sweep.timing.to_mapping()
    assert "options" in written["search"]


def test_digests_tell_sweeps_apart() -> None:
    texts = {read(SHORT, {key: value}).to_yaml() for key, value in CHANGES.items()}
    assert len(texts | {read(SHORT).to_yaml()}) == len(CHANGES) + 1


CHANGES: dict[str, Any] = {
    "seed": 1,
    "budget.trials": 3,
    "captions.count": 5,
    "space.tree.length.high": 7,
    "models.device": "cpu",
    "search.sampler": "random",
    "sampling": {"temperature": 1, "top_k": 0, "top_p": 1, "cfg": 2},
}


def test_overrides_reach_everything() -> None:
    sweep = read(SHORT, CHANGES | {"captions.source": "1e5", "enqueue": ["lantern"]})
    assert (sweep.seed, sweep.budget.trials, sweep.captions.count, sweep.space.size()) == (
        1,
        3,
        5,
        6,
    )
    assert sweep.sampling == Sampling(cfg=2.0)
    assert sweep.enqueue[0].config.sampling == Sampling(cfg=2.0)
    assert read(sweep.to_yaml()).captions.source == "1e5"


def test_another_file_of_models_in_the_place_of_one_in_short() -> None:
    short = "models: mine\n" + "\n".join(
        line for line in SHORT.splitlines() if not line.startswith("models")
    )
    assert read(short).models.file == "mine"
    changed = read(short, {"models.file": "models.yaml", "models.name": "b"}).models
    assert (changed.file, changed.name) == ("models.yaml", "b")


def test_a_sweep_without_a_space_runs_what_is_enqueued() -> None:
    assert read("name: list\nenqueue: [vanilla, cool]\n").budget.trials == 2
    assert read("name: list\nenqueue: [lantern, cool]\n").budget.trials == 3, "vanilla runs as well"
    assert read("name: list\nenqueue: [vanilla, cool]\nbudget: {trials: 1}\n").budget.trials == 1


BROKEN = [
    ("", "f:1: the file is empty; give at least a name and objectives"),
    ("- 1\n", "f:1: must be a mapping of keys to values, got [1]"),
    ("name: x\n", "f:1: space: missing; give a space to search, or configs to enqueue"),
    ("space: {}\n", "f:1: name: missing; give the name of the sweep, and of its folder"),
    (
        "name: ../x\nspace: {}\n",
        (
            "f:1: name: '../x' cannot name a folder; use up to 64 of a-z, 0-9, dot, dash and "
            "underscore, a letter or digit first"
        ),
    ),
    (
        "space: {}\nname: ..\n",
        (
            "f:2: name: '..' cannot name a folder; use up to 64 of a-z, 0-9, dot, dash and "
            "underscore, a letter or digit first"
        ),
    ),
    (SHORT + "name: y\n", "f:3: name: given twice, first in line 1; remove one of the two"),
    (
        SHORT + "budgte: {trials: 3}\n",
        f"f:3: budgte: unknown key; did you mean 'budget'? known keys: {', '.join(KEYS)}",
    ),
    (SHORT + "budget:\n  trials: 0\n", "f:4: budget.trials: must be at least 1, got 0"),
    (SHORT + "budget: {hours: 0}\n", "f:3: budget.hours: must be greater than 0, got 0"),
    (
        SHORT + "budget: {trails: 3}\n",
        (
            "f:3: budget.trails: unknown key; did you mean 'trials'? known keys: trials, images, "
            "hours, plateau, patience"
        ),
    ),
    (SHORT + "budget: 3\n", "f:3: budget: must be a mapping of keys to values, got 3"),
    (
        SHORT + "models: {device: gpu}\n",
        "f:3: models.device: must be one of auto, cpu, cuda, got 'gpu'; did you mean 'cpu'?",
    ),
    (SHORT + "quality: {batch: 1.5}\n", "f:3: quality.batch: must be a whole number, got 1.5"),
    (SHORT + "quality: {batch: 0}\n", "f:3: quality.batch: must be in [1, 65536], got 0"),
    (
        SHORT + "quality: {batch: best}\n",
        "f:3: quality.batch: must be a number or auto, got 'best'",
    ),
    (SHORT + "quality: {batch: [8]}\n", "f:3: quality.batch: must be a whole number, got [8]"),
    (SHORT + "timing: {batch: auto}\n", "f:3: timing.batch: must be a whole number, got 'auto'"),
    (SHORT + "seed: -1\n", "f:3: seed: must be in [0, 9223372036854775807], got -1"),
    (
        SHORT + "search: {sampler: tpee}\n",
        (
            "f:3: search.sampler: must be one of tpe, nsga2, nsga3, gp, random, qmc, grid, replay, "
            "or a plugin's (--plugin MODULE), got 'tpee'; did you mean 'tpe'?"
        ),
    ),
    (
        SHORT + "search: {options: 3}\n",
        "f:3: search.options: must be a mapping of keys to values, got 3",
    ),
    (
        SHORT + "racing: {}\n",
        (
            "f:3: racing.rungs: missing; give the numbers of captions after which trials may stop, "
            "rising (at least 2)"
        ),
    ),
    (
        SHORT + "racing: {rungs: []}\n",
        "f:3: racing.rungs: must not be empty; give numbers of captions, or leave out `racing`",
    ),
    (SHORT + "racing: {rungs: 48}\n", "f:3: racing.rungs: must be a list, got 48"),
    (
        SHORT + "racing:\n  rungs: [48, 96, 96]\n",
        (
            "f:4: racing.rungs[2]: must be more than 96, the rung before it, got 96; give rising "
            "numbers of captions"
        ),
    ),
    (SHORT + "racing: {rungs: [1, 48]}\n", "f:3: racing.rungs: must be at least 2, got 1"),
    (
        SHORT + "captions: {count: 96}\nracing: {rungs: [48, 96]}\n",
        (
            "f:4: racing.rungs[1]: must be below the number of captions, 96, got 96; lower it, or "
            "set racing: null"
        ),
    ),
    *(
        (
            SHORT + f"racing: {{rungs: [48], error_rate: {rate}}}\n",
            (
                f"f:3: racing.error_rate: must be above 0 and below 1, got {rate}; 0.05 is usual, "
                "without `racing` nothing stops"
            ),
        )
        for rate in (0, 1)
    ),
    (
        SHORT + "racing: {rungs: [48], error_rate: 5}\n",
        "f:3: racing.error_rate: must be in [0, 1], got 5",
    ),
    (
        SHORT + "racing:\n  rungs: [48]\n  stop: dominated\n  error_rate: 0.05\n",
        (
            "f:6: racing.error_rate: stop 'dominated' controls no error rate; remove it, or use "
            "`stop: significant`"
        ),
    ),
    (SHORT + "metrics: []\n", "f:3: metrics: must not be empty; leave it out for the default"),
    (
        SHORT + "metrics: [fid, FID]\n",
        "f:3: metrics[1]: must be a metric's name such as fid or clip_score, got 'FID'",
    ),
    (
        SHORT + "metrics: [fid, fid]\n",
        "f:3: metrics[1]: fid is listed twice; remove or rename one of the two",
    ),
    (
        SHORT + "objectives: [speedup, {metric: speedup}]\n",
        "f:3: objectives[1]: speedup is listed twice; remove or rename one of the two",
    ),
    (
        SHORT + "objectives: [{metric: fid, direction: min}]\n",
        "f:3: objectives[0].direction: must be one of maximize, minimize, got 'min'",
    ),
    (
        SHORT + "objectives: [{direction: minimize}]\n",
        "f:3: objectives[0].metric: missing; give the name of a metric",
    ),
    (
        SHORT + "objectives: []\n",
        "f:3: objectives: must not be empty; leave it out for the default",
    ),
    (
        SHORT + "objectives: [fid]\n",
        "f:3: objectives: must be two or three metrics, got 1; add another one",
    ),
    (
        SHORT + "seed: 1\nobjectives: [speedup, fid, drift, kid]\n",
        (
            "f:4: objectives: must be two or three metrics, got 4; move the others to `metrics` or "
            "`constraints`"
        ),
    ),
    (
        SHORT + "constraints:\n  - drift < 2\n",
        "f:4: constraints[0]: limits are inclusive; write 'drift <= 2'",
    ),
    (
        SHORT + "constraints: [drift <= 2, drift<=2.0]\n",
        "f:3: constraints[1]: 'drift <= 2' is listed twice; remove or rename one of the two",
    ),
    (
        SHORT + "enqueue: [vanilla, lanturn]\n",
        (
            f"f:3: enqueue[1]: must be one of {', '.join(PRESETS)}, or a plugin's (--plugin "
            "MODULE), got 'lanturn'; did you mean 'lantern'?"
        ),
    ),
    (
        SHORT + "enqueue: [adt, peanut]\n",
        "f:3: enqueue[1]: is the same config as 'adt'; remove one of the two",
    ),
    (
        SHORT + "enqueue:\n  - vanilla\n  - {label: vanilla, preset: cool}\n",
        "f:5: enqueue[1]: the label 'vanilla' is listed twice; remove or rename one of the two",
    ),
    (
        SHORT + 'enqueue: [{label: "a\\nb", preset: cool}]\n',
        "f:3: enqueue[0].label: must be a line of 1 to 80 characters, got 'a\\nb'",
    ),
    (
        SHORT + "enqueue: [{drafter: eagle, tree: {policy: chain, length: 0}}]\n",
        "f:3: enqueue[0].tree.length: must be in [1, 256], got 0",
    ),
    (
        SHORT + "enqueue: [{preset: cool, sampling: {cfg: 3}}]\n",
        (
            "f:3: enqueue[0].sampling: give temperature, top_k, top_p as well, or leave the "
            "section out to sample by the target's own defaults"
        ),
    ),
    (
        SHORT + "sampling: {cfg: 3}\n",
        (
            "f:3: sampling: give temperature, top_k, top_p as well, or leave the section out to "
            "sample by the target's own defaults"
        ),
    ),
    (
        SHORT + "sampling: {temperature: 1, top_k: -1, top_p: 1, cfg: 3}\n",
        "f:3: sampling.top_k: must be at least 0, got -1",
    ),
    (
        (
            "name: x\nsearch: {sampler: grid}\nspace: {drafter: none, sampling:\n  {cfg: {low: 1, "
            "high: 2}}}\n"
        ),
        (
            "f:4: space.sampling.cfg: is continuous, and a grid needs a finite space; give a step, "
            "or values"
        ),
    ),
]


@pytest.mark.parametrize(("text", "message"), BROKEN, ids=range(len(BROKEN)))
def test_refusals(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("budget.trials", 0, "--set: budget.trials: must be at least 1, got 0"),
        (
            "space.tree.length.high",
            1,
            "f:2: space.tree.length.low: must be at most high, got 2 and 1; swap the two",
        ),
        (
            "objectives",
            ["fid"],
            "--set: objectives: must be two or three metrics, got 1; add another one",
        ),
        ("budget.trials.more", 0, "--set: budget.trials: must be a whole number, got {'more': 0}"),
        ("trials", 3, "--set: trials: is a key of a section; write budget.trials"),
        (
            "count",
            3,
            "--set: count: is a key of a section; write captions.count or reference.count",
        ),
        (
            "nmae",
            "x",
            f"--set: nmae: unknown key; did you mean 'name'? known keys: {', '.join(KEYS)}",
        ),
    ],
)
def test_overrides_are_blamed(key: str, value: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(SHORT, {key: value})
    assert str(caught.value) == message


# --- constraints ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "constraint", "written", "value", "violation"),
    [
        ("drift <= 2", Constraint("drift", "<=", 0.0, 2.0), "drift <= 2", 2.5, 0.5),
        ("drift≤2e0", Constraint("drift", "<=", 0.0, 2.0), "drift <= 2", 1.0, -1.0),
        (
            "clip_score >= 0.9 * vanilla",
            Constraint("clip_score", ">=", 0.9, 0.0),
            "clip_score >= 0.9 * vanilla",
            8,
            1,
        ),
        (
            "clip_score>=vanilla*0.9",
            Constraint("clip_score", ">=", 0.9, 0.0),
            "clip_score >= 0.9 * vanilla",
            10,
            -1,
        ),
        (
            "fid <= vanilla + 0.5",
            Constraint("fid", "<=", 1.0, 0.5),
            "fid <= vanilla + 0.5",
            11,
            0.5,
        ),
        (
            "fid <= 2*vanilla - 1",
            Constraint("fid", "<=", 2.0, -1.0),
            "fid <= 2 * vanilla - 1",
            19,
            0,
        ),
        ("fid <= vanilla", Constraint("fid", "<=", 1.0, 0.0), "fid <= vanilla", 12, 2),
    ],
)
def test_constraints(
    text: str, constraint: Constraint, written: str, value: float, violation: float
) -> None:
    found = Constraint.parse(text)
    assert found == constraint
    assert found.text == written
    assert found.relative_to_vanilla == ("vanilla" in text)
    assert found.violation(value, 10.0) == pytest.approx(violation)
    assert found.violation(math.nan, 10.0) == math.inf
    if found.relative_to_vanilla:
        with pytest.raises(ValueError, match="needs vanilla's"):
            found.violation(value)
    else:
        assert found.violation(value) == found.violation(value, 10.0)


numbers = st.floats(-1e6, 1e6, allow_nan=False)


@given(
    metric=st.sampled_from(["fid", "clip_score"]),
    op=st.sampled_from(["<=", ">="]),
    factor=st.sampled_from([0.0, 1.0]) | numbers,
    offset=numbers,
)
@settings(deadline=None)
def test_constraints_read_back(metric: str, op: Any, factor: float, offset: float) -> None:
    constraint = Constraint(metric, op, factor, offset)
    assert Constraint.parse(constraint.text) == constraint


FORMS = "write it like 'drift <= 2', 'clip_score >= 0.9 * vanilla' or 'fid <= vanilla + 0.5'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (3, f"must be a string, got 3; {FORMS}"),
        ("drift", f"'drift' is not a constraint; {FORMS}"),
        ("drift <= two", f"cannot read the bound 'two'; {FORMS}"),
        ("drift <= 2 vanilla", f"cannot read the bound '2 vanilla'; {FORMS}"),
        ("drift <= 2 * vanilla * 2", f"cannot read the bound '2 * vanilla * 2'; {FORMS}"),
        ("drift == 2", "'drift == 2' compares by ==; use <= or >="),
        (
            "fid <= 0 * vanilla",
            "'fid <= 0 * vanilla' multiplies vanilla by 0; write a plain number",
        ),
        ("FID <= 3", "must be a metric's name such as fid or clip_score, got 'FID'"),
    ],
)
def test_what_is_no_constraint(text: object, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Constraint.parse(text)
    assert str(caught.value) == message


# --- ready spaces -----------------------------------------------------------------------------------------------------


def medusa_heads() -> int:
    """How many heads the built-in model has, from the header of their file."""
    data = (ROOT / "workers/models/builtin/scenes/medusa.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    return sum(
        name.endswith(".weight") and name.startswith("residuals.")
        for name in json.loads(data[8 : 8 + size])
    )


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    drafters: dict[str, int | None]
    drafters = dict.fromkeys(("eagle", "eagle3", "independent", "vertical"))
    drafters["medusa"] = medusa_heads()
    return {"codebook_size": 1024, "image_tokens": 144, "drafters": drafters}


METHODS = (
    "speculative",
    "medusa",
    "eagle1",
    "eagle2",
    "lantern",
    "lantern_pp",
    "uniform",
    "cool",
    "adt",
    "sjd",
    "gsd",
)


def test_there_is_a_ready_space_per_method() -> None:
    assert {"quickstart", "joint", "vanilla_sampling", *METHODS} <= set(ready_spaces())


# other models'
@pytest.mark.parametrize(
    "name", [name for name in ready_spaces() if not name.startswith("papers/")]
)
def test_ready_spaces_load_and_suggest_what_the_built_in_model_serves(
    name: str, limits: dict[str, Any]
) -> None:
    sweep = SweepConfig.read(name)
    assert sweep.name == name.rpartition("/")[2].replace("_", "-")
    assert sweep.about
    assert read(sweep.to_yaml()) == sweep
    assert sweep.enqueue[0].config == DecodingConfig(sampling=sweep.sampling)
    assert sweep.budget.trials >= len(sweep.enqueue)
    assert sweep.sampling is not None
    for entry in sweep.enqueue:
        entry.config.check_model(**limits)
    for seed in range(200):
        trial = Trial(seed)
        config = sweep.space.suggest(trial, sweep.sampling)
        config.check_model(**limits)
        if seed < 5:  # other parameters may stand for one setting
            params = sweep.space.params_of(config, sweep.sampling)
            assert params is not None
            assert sweep.space.suggest(Trial(answers=params), sweep.sampling) == config


LARGEST = 2**63 - 1


def test_what_is_asked_for_is_the_metrics_and_the_goals() -> None:
    assert read(SHORT).requested_metrics == frozenset()
    asked = read(
        SHORT,
        {
            "metrics": ["drift"],
            "objectives": ["fid", "step_compression"],
            "constraints": ["kid <= 1"],
        },
    )
    assert asked.requested_metrics == {"drift", "fid", "step_compression", "kid"}


def test_settings_are_timed_at_one_batch_size_or_at_several() -> None:
    one, several = (read(SHORT, {"timing.batch": batch}) for batch in (4, [1, 8]))
    assert (one.timing.batches, one.batch_metrics) == ((4,), ())
    assert (several.timing.batches, several.requested_metrics) == ((1, 8), frozenset())
    assert several.batch_metrics == ("speedup_batch8", "latency_batch8")
    for sweep in (one, several):
        assert read(sweep.to_yaml()) == sweep
    asked = read(
        SHORT, {"timing.batch": [1, 8], "metrics": ["fid"], "objectives": ["speedup", "fid"]}
    )
    assert asked.requested_metrics == {"fid", "speedup", "speedup_batch8"}


@pytest.mark.parametrize(
    ("batch", "problem"),
    [
        ([1, 0], r"must be in \[1, 65536\], got 0"),
        ([8, 1, 8], "has 8 twice"),
        ([], "must not be empty"),
        (0, "got 0"),
    ],
)
def test_batch_sizes_are_positive_and_differ(batch: object, problem: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"timing\.batch: {problem}|timing\.batch: must .*{problem}"
    ):
        read(SHORT, {"timing.batch": batch})


@pytest.mark.parametrize("key", ["seed", "captions.seed", "reference.seed", "search.seed"])
def test_seeds_are_what_64_bits_hold(key: str) -> None:
    sweep = read(SHORT, {key: LARGEST})
    assert read(sweep.to_yaml()) == sweep
    with pytest.raises(
        ConfigError, match=r"seed: must be in \[0, 9223372036854775807\], got 9223372036854775808"
    ):
        read(SHORT, {key: LARGEST + 1})


def test_the_quick_start_drafts_little_by_every_method() -> None:
    sweep = SweepConfig.read("quickstart")
    enqueued = [entry.config for entry in sweep.enqueue]
    configs = [*enqueued, *(sweep.space.suggest(Trial(seed), BASELINE) for seed in range(200))]
    largest = {config.drafter.kind: 0 for config in configs}
    for config in configs:
        largest[config.drafter.kind] = max(largest[config.drafter.kind], config.policy.bounds.nodes)
    assert largest == {"none": 0, "eagle": 6, "jacobi": 15}
    methods = {
        (c.drafter.kind, c.policy.kind, c.acceptance.neighbourhood.kind, c.acceptance.is_relaxed)
        for c in enqueued
    }
    assert methods == {
        ("none", "none", "none", False),
        ("eagle", "chain", "none", False),
        ("eagle", "chain", "additive", True),
        ("eagle", "chain", "multiplicative", True),
        ("eagle", "adjacency", "additive", True),
        ("jacobi", "chain", "none", False),
        ("jacobi", "chain", "none", True),
        ("jacobi", "chain", "grouped", True),
    }
    assert sweep.search.options["pool"] + len(enqueued) >= 40


def test_a_methods_own_preset_lies_in_its_space() -> None:
    for name in METHODS:
        sweep = SweepConfig.read(name)
        assert sweep.space.params_of(PRESETS[name], sweep.sampling) is not None, name
        assert name in [entry.label for entry in sweep.enqueue]


def test_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").mkdir()
    (tmp_path / "own.yaml").write_text(SHORT)
    assert find_space("quickstart").name == "quickstart.yaml"
    assert SweepConfig.read("own.yaml") == SweepConfig.read(tmp_path / "own.yaml") == read(SHORT)
    tables = [name for name in ready_spaces() if name.startswith("papers/")]
    known = ", ".join(
        [
            *(name for name in ready_spaces() if name not in tables),
            "papers/... (the papers' tables)",
        ]
    )
    for name, message in (
        ("quikstart", f"quikstart: no such file, and no ready space; did you mean 'quickstart'? available: {known}"),
        ("xyz", f"xyz: no such file, and no ready space; available: {known}"),
        ("papers", f"papers: no such file, and no ready space; available: {', '.join(tables)}"),
        ("lantern-table2", "lantern-table2: no such file, and no ready space; did you mean 'papers/lantern-table2'? "
                           f"available: {', '.join(tables)}"),
        ("other.yaml", f"other.yaml: no such file; ready spaces are {known}"),
        (".", ".: is a folder; give the YAML file of a sweep"),
    ):  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            SweepConfig.read(name)
        assert str(caught.value) == message
    (tmp_path / "broken.yaml").write_text(SHORT + "seed: x\n")
    with pytest.raises(
        ConfigError, match=r"^broken.yaml:3: seed: must be a whole number, got 'x'$"
    ):
        SweepConfig.read("broken.yaml")
