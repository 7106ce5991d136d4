"""What a new sweep takes over from earlier ones, as it is stored and as its search is told."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from dataclasses import replace
from operator import ge
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import FixedTrial

from orchestrator.front.questions import front_records
from orchestrator.launch.earlier import Earlier
from orchestrator.launch.earlier_source import EarlierSweepError, Source
from orchestrator.launch.read import _read_earlier as read_earlier
from orchestrator.launch.start import _take_over as take_over
from orchestrator.run.search import Search
from orchestrator.store.files import EARLIER, NoSweepError
from orchestrator.store.identity import write_identity
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.records import TrialRecord, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.text import ranges
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.synthetic_sweeps import IMAGES, SAMPLING, write_sweep
from workers.data.shards import FORMAT, Experiment
from workers.data.storage import Storage
from workers.metrics.definition import Direction
from workers.metrics.estimate import Estimate

SPACE: dict[str, Any] = {
    "name": "wider",
    "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.5},
    "objectives": ["step_compression", "fid"],
    "enqueue": ["vanilla"],
    "search": {"sampler": "replay"},  # which can use settings outside of the space
    "space": {
        "drafter": "eagle",
        "tree": [
            {"policy": "dynamic", "depth": 5, "width": {"values": [8, 10]}, "nodes": 58},
            {"policy": "chain", "length": {"low": 1, "high": 9}},
        ],
        "acceptance": [
            "exact",
            {"neighbourhood": "additive", "k": {"low": 2, "high": 1000}, "delta": 0.2},
        ],
    },
}


BASELINE = DecodingConfig(sampling=SAMPLING)


def facts(sweep: Sweep, **changed: Any) -> dict[str, Any]:
    """What a worker of the new sweep reports."""
    identity = sweep.identity
    return {
        "models": identity.models,
        "extractors": identity.extractors,
        "captions": dict(identity.captions),
        "reference": dict(identity.reference or {}),
        "timing_device": "",
        "device": identity.device,
        "numerics": identity.numerics,
        "precision": "float32",
        **changed,
    }


def told_by(source: Source, config: SweepConfig, known: dict[str, Any]) -> tuple[TrialRecord, ...]:
    """The trials of an earlier sweep that the search of a new one is told."""
    return source.decide(config, known, {}).records


@pytest.fixture
def earlier(tmp_path: Path) -> Sweep:
    write_sweep(
        tmp_path / "mine",
        name="mine",
        shards=True,
        failed=(7,),
        stopped={9: 2},
        repeated={8: 5},
        samples=1,
    )
    return Sweep.open(tmp_path / "mine")


def test_the_front_runs_and_the_other_trials_are_told(earlier: Sweep) -> None:
    config = SweepConfig.from_mapping(SPACE)
    taken = Earlier.read([earlier.storage.uri], config)
    front = front_of(earlier, "step_compression", "fid")
    assert front != {record.config for record in front_records(earlier)}, "it has other goals"
    assert {entry.config for entry in taken.front} == front - {BASELINE}
    extended = taken.extend(config)
    assert extended.enqueue[1:] == taken.front
    assert extended.budget.trials == config.budget.trials + len(taken.front)
    limited = replace(config, budget=replace(config.budget, images=1000))
    assert taken.extend(limited).budget.images == 1000 + len(taken.front) * config.captions.count
    (source,) = taken.sources
    told = {record.number: record for record in told_by(source, config, facts(earlier))}
    others = {r.number for r in earlier.records if r.config not in front | {BASELINE}}
    assert told.keys() == others - {8}
    assert told[7].state == "failed"
    first = earlier.records[0].measured  # as the search was told it
    whole, vanilla = dict(first.metrics), dict(first.history)[IMAGES // 2]
    stopped = earlier.records[9].metrics["fid"].value
    assert told[9].metrics["fid"].value == pytest.approx(
        stopped - vanilla["fid"].value + whole["fid"].value
    )


def front_of(sweep: Sweep, more: str, less: str) -> set[DecodingConfig | None]:
    """The configs of the complete trials that no other one beats."""
    values = {
        r.number: (r.metrics[more].value, -r.metrics[less].value)
        for r in sweep.records
        if r.state == "complete"
    }
    beaten = {
        n
        for n in values
        if any(o != values[n] and all(map(ge, o, values[n])) for o in values.values())
    }
    return {record.config for record in sweep.records if record.number in values.keys() - beaten}


def test_vanilla_with_other_sampling_is_a_setting_as_any_other(earlier: Sweep) -> None:
    cooler = next(
        r for r in earlier.records if r.config and r.config.is_vanilla and r.config != BASELINE
    )
    taken = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE))
    told = {record.config for source in taken.sources for record in source.records}
    assert cooler.config in told | {entry.config for entry in taken.front}
    assert BASELINE not in told
    assert cooler.config is not None
    swapped = {**SPACE, "sampling": cooler.config.to_mapping()["sampling"]}
    front = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(swapped)).front
    assert cooler.config not in {entry.config for entry in front}
    assert "vanilla" not in {entry.label for entry in front}, "which is the baseline's"


def test_a_stored_file_has_the_earlier_fronts_already(earlier: Sweep) -> None:
    config = SweepConfig.from_mapping(SPACE)
    taken = Earlier.read([earlier.storage.uri], config)
    once = taken.extend(config)
    assert (
        taken.extend(SweepConfig.parse(once.to_yaml(), "sweep.yaml")).to_mapping()
        == once.to_mapping()
    )


def test_constraints_are_the_new_sweeps(earlier: Sweep) -> None:
    limit = sorted(r.metrics["fid"].value for r in earlier.records if r.state == "complete")[10]
    config = SweepConfig.from_mapping({**SPACE, "constraints": [f"fid <= {limit}"]})
    taken = Earlier.read([earlier.storage.uri], config)
    values = {
        record.config: record.metrics["fid"].value for record in earlier.records if record.metrics
    }
    assert all(values[entry.config] <= limit for entry in taken.front)
    for record in taken.sources[0].records:
        if record.state == "complete":
            assert [violation > 0 for violation in record.constraints.values()] == [
                values[record.config] > limit
            ]


def test_trials_without_a_metric_of_the_goals_are_not_told(earlier: Sweep) -> None:
    for more in ({"objectives": ["step_compression", "kid"]}, {"constraints": ["kid <= 3"]}):
        config = SweepConfig.from_mapping({**SPACE, **more})
        source = Earlier.read([earlier.storage.uri], config).sources[0]
        assert {record.state for record in source.records} > {"failed"}
        assert {record.state for record in told_by(source, config, facts(earlier))} == {"failed"}


def copied(
    earlier: Sweep, captions: dict[str, Any] | None = None, **changes: Any
) -> dict[int, int]:
    """The images of each of the first trials that are expected to be copied."""
    config = SweepConfig.from_mapping({**SPACE, **changes})
    images: Counter[int] = Counter()
    taken = Earlier.read([earlier.storage.uri], config)
    known = captions or {"hash": earlier.identity.captions["hash"], "count": IMAGES}
    for number, _, count in taken.copies(taken.extend(config), known):
        images[number] += count
    return images


def test_the_images_that_will_be_copied(earlier: Sweep) -> None:
    config = SweepConfig.from_mapping(SPACE)
    front = Earlier.read([earlier.storage.uri], config).front
    digests = {record.digest: record.images for record in earlier.records}
    expected = [IMAGES] + [digests[entry.config.digest()] for entry in front]
    assert copied(earlier) == dict(enumerate(expected))
    taken = Earlier.read([earlier.storage.uri], config)
    stopped = replace(taken.sources[0], images=dict.fromkeys(digests, IMAGES // 2 + 1))
    captions = {"hash": earlier.identity.captions["hash"], "count": IMAGES}
    halves = replace(taken, sources=(stopped,)).copies(taken.extend(config), captions)
    assert {sum(count for number, _, count in halves if number == trial) for trial in range(3)} == {
        IMAGES // 2
    }
    cooler = {**SPACE["sampling"], "temperature": 0.77}
    assert copied(earlier, sampling=cooler).keys() == {*range(1, len(front) + 1)}, (
        "vanilla is another"
    )
    assert copied(earlier, quality={"samples": 2}) == {}
    assert copied(earlier, {"hash": "other", "count": IMAGES}) == {}
    shutil.rmtree(earlier.storage.uri)
    assert taken.copies(taken.extend(config), captions) == [], "they cannot be reached"


def test_the_shards_of_a_trial_end_at_its_rungs(earlier: Sweep) -> None:
    """So more of them are copied, with the same images in all."""
    racing = {
        "racing": {"rungs": [4, 10]},
        "captions": {"source": "scenes", "count": IMAGES},
    }
    images = set()
    for more in ({}, racing):
        config = SweepConfig.from_mapping({**SPACE, "quality": {"shard": IMAGES}, **more})
        taken = Earlier.read([earlier.storage.uri], config)
        captions = facts(earlier)["captions"]
        copies = taken.copies(taken.extend(config), captions)
        numbers = [number for number, _, _ in copies]
        assert {numbers.count(number) for number in numbers} == {3 if more else 1}
        images.add(sum(count for *_, count in copies))
    assert len(images) == 1


def test_all_trials_that_a_front_was_chosen_from_are_counted(
    earlier: Sweep, tmp_path: Path
) -> None:
    """Those of a sweep that the earlier one took over too, and so on."""
    config, count = SweepConfig.from_mapping(SPACE), len(earlier.records)
    taken = Earlier.read([earlier.storage.uri], config)
    assert taken.trials == count > len(taken.front)
    write_sweep(tmp_path / "second", name="second", seed=1, samples=1)
    second = Sweep.open(tmp_path / "second")
    second.storage.write(EARLIER, taken.to_json())
    third = Earlier.read([second.storage.uri], config)
    assert third.trials == len(second.records) + count
    storage = Storage(tmp_path / "third")
    storage.write(EARLIER, third.to_json())
    stored = Earlier.stored(storage)
    assert stored is not None
    assert stored.trials == third.trials, "a resumed sweep counts the same ones"
    both = Earlier.read([second.storage.uri, earlier.storage.uri], config)
    assert both.trials == third.trials + count
    second.storage.write(EARLIER, taken.to_json()[:-20])
    with pytest.raises(
        EarlierSweepError, match=rf"--from second: .*{EARLIER}.*leave this sweep out"
    ):
        Earlier.read([second.storage.uri], config)


def test_two_sweeps_of_one_name(earlier: Sweep, tmp_path: Path) -> None:
    """What is on one's front is not told by the other; a trial of both is told once; labels
    differ.
    """
    write_sweep(tmp_path / "elsewhere" / "mine", name="mine", seed=1, samples=1)
    shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    places = [str(tmp_path / place) for place in ("mine", "elsewhere/mine", "copy")]
    config = SweepConfig.from_mapping(SPACE)
    taken = Earlier.read(places, config)
    labels = [entry.label for entry in taken.front]
    assert len(set(labels)) == len(labels)
    assert (
        SweepConfig.parse(taken.extend(config).to_yaml(), "sweep.yaml").enqueue[1:] == taken.front
    )
    running = {entry.config for entry in taken.front}
    assert all(
        record.config not in running for source in taken.sources for record in source.records
    )
    known = facts(earlier)
    experiment = Experiment(
        known["models"], known["captions"]["hash"], 0, known["extractors"], "float32"
    )
    own = replace(
        taken, sources=tuple(_with_experiment(source, experiment) for source in taken.sources)
    )
    storage, known = Storage(tmp_path / "new"), known | {"precision": "float32"}
    told = [record.config for record in take_over(config, known, own, storage, print)]
    assert len(set(told)) == len(told)
    assert {*told} == {
        record.config for source in taken.sources for record in told_by(source, config, known)
    }
    # a resumed sweep's search is told the same, whatever its machine
    write_identity(storage, earlier.identity)
    stored = Earlier.stored(storage)
    assert stored is not None
    other = known | {"timing_device": "another", "reference": None}
    assert [record.config for record in take_over(config, other, stored, storage, print)] == told


def _with_experiment(source: Source, experiment: Experiment) -> Source:
    return replace(source, facts={**source.facts, "experiment": experiment.digest()})


def test_places_have_their_credentials_back(earlier: Sweep) -> None:
    taken = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE))
    hidden = replace(taken, sources=(replace(taken.sources[0], store="s3://bucket/mine"),))
    assert (
        hidden.at({"s3://bucket/mine": "s3://key:secret@bucket/mine"})
        .worker_arguments()[0]["store"]
        .count("secret")
    )
    assert hidden.at({}) == hidden


def test_images_of_another_device_are_refused(earlier: Sweep) -> None:
    new = Experiment(
        earlier.identity.models, "new captions", 0, earlier.identity.extractors, "bfloat16"
    )
    (source,) = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE)).sources
    source = _with_experiment(source, replace(new, captions=source.facts["captions"]["hash"]))
    source = replace(source, facts={**source.facts, "device": "a processor"})
    source.check_loaded(new, facts(earlier, device="a processor", precision="bfloat16"))
    with pytest.raises(EarlierSweepError, match="another processor"):
        source.check_loaded(new, facts(earlier, device="another processor", precision="bfloat16"))
    replace(source, shards={}).check_loaded(
        new, facts(earlier, device="another processor", precision="bfloat16")
    )


def test_what_was_taken_over_is_stored(earlier: Sweep, tmp_path: Path) -> None:
    storage = Storage(tmp_path / "wider")
    assert Earlier.stored(storage) is None
    taken = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE))
    storage.write(EARLIER, taken.to_json())
    assert Earlier.stored(storage) == taken
    storage.write(EARLIER, taken.to_json()[:-20])
    with pytest.raises(ValueError, match=EARLIER):
        Earlier.stored(storage)


@pytest.mark.parametrize(
    "changed",
    [{"captions": {"count": IMAGES, "hash": "other"}}, {"reference": None}],
    ids=["captions", "reference"],
)
def test_values_that_cannot_be_compared_are_not_told(
    earlier: Sweep, changed: dict[str, Any]
) -> None:
    config = SweepConfig.from_mapping(SPACE)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    assert told_by(source, config, facts(earlier))
    assert told_by(source, config, facts(earlier, **changed)) == ()
    (key,) = changed
    assert source.incomparable(config, facts(earlier, **changed)).keys() >= {key}
    more = SweepConfig.from_mapping({**SPACE, "quality": {"samples": 2}})
    assert told_by(source, more, facts(earlier)) == ()
    cooler = SweepConfig.from_mapping(
        {**SPACE, "sampling": {**SPACE["sampling"], "temperature": 0.9}}
    )
    assert told_by(source, cooler, facts(earlier)) == ()


def test_values_of_another_metric_of_the_name_are_not_told(earlier: Sweep) -> None:
    """A sweep's own metric, whose library has another version now."""
    config = SweepConfig.from_mapping(SPACE)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    known = earlier.identity.to_mapping()["metrics"]
    assert told_by(source, config, facts(earlier, metrics=known))
    other = {**known, "fid": {**known["fid"], "definition": "torchmetrics 9: FID()"}}
    assert told_by(source, config, facts(earlier, metrics=other)) == ()
    assert "metrics.fid.definition" in source.incomparable(config, facts(earlier, metrics=other))
    drift = {**known, "drift": {**known["drift"], "definition": "another"}}
    assert told_by(source, config, facts(earlier, metrics=drift)), "it is no objective"


def test_speeds_are_told_on_the_same_device_and_batch_alone(earlier: Sweep) -> None:
    timed = {**SPACE, "objectives": ["speedup", "fid"]}
    config = SweepConfig.from_mapping(timed)
    (source,) = Earlier.read([earlier.storage.uri], config).sources
    source = replace(source, hardware="a processor", facts={**source.facts, "timing": {"batch": 1}})
    assert told_by(source, config, facts(earlier, timing_device="a processor"))
    assert not told_by(source, config, facts(earlier, timing_device="another"))
    other = SweepConfig.from_mapping({**timed, "timing": {"batch": 8}})
    assert not told_by(source, other, facts(earlier, timing_device="a processor"))
    elsewhere = SweepConfig.from_mapping(
        {**timed, "timing": {"batch": 1, "nodes": {"gpu": "a10g"}}}
    )
    known = facts(earlier, timing_device="a processor")
    assert not told_by(source, elsewhere, known)
    source = replace(
        source, facts={**source.facts, "timing": {"batch": 1, "nodes": {"gpu": "a10g"}}}
    )
    assert told_by(source, elsewhere, known)


def test_only_a_sweep_that_has_started_has_taken_over(earlier: Sweep, tmp_path: Path) -> None:
    """A launch may be killed before it writes the identity: the next one decides anew."""
    storage, config = Storage(tmp_path / "wider"), SweepConfig.from_mapping(SPACE)
    storage.write(EARLIER, Earlier.read([earlier.storage.uri], config).to_json())
    write_sweep(tmp_path / "other", name="other", samples=1)
    for locations in ([], [str(tmp_path / "other")]):
        taken = read_earlier(config, storage, locations)
        assert [source.store for source in getattr(taken, "sources", ())] == locations
    take_over(config, facts(earlier), Earlier(), storage, print)
    assert not storage.exists(EARLIER)
    storage.write(EARLIER, Earlier.read([earlier.storage.uri], config).to_json())
    write_identity(storage, earlier.identity)
    taken = read_earlier(config, storage, [])
    assert taken is not None
    assert taken.sources[0].name == "mine"
    with pytest.raises(ValueError, match=r"--from: this sweep took over .*mine when it started"):
        read_earlier(config, storage, [str(tmp_path / "other")])


def test_a_sweep_that_is_not_there_is_named_though_this_one_has_started(
    earlier: Sweep, tmp_path: Path
) -> None:
    """`--from` with a typing error, and without `--name`: the sweep exists, and took over others or
    nothing.
    """
    storage, config = Storage(tmp_path / "wider"), SweepConfig.from_mapping(SPACE)
    write_identity(storage, earlier.identity)
    missing = str(tmp_path / "mien")
    with pytest.raises(NoSweepError, match=r"^--from .*mien: no sweep here"):
        read_earlier(config, storage, [missing])
    with pytest.raises(ValueError, match=r"wider exists in .*, and took over nothing"):
        read_earlier(config, storage, [earlier.storage.uri])
    storage.write(EARLIER, Earlier.read([earlier.storage.uri], config).to_json())
    with pytest.raises(NoSweepError, match=r"^--from .*mien: no sweep here"):
        read_earlier(config, storage, [missing])
    shutil.rmtree(earlier.storage.uri)
    assert read_earlier(config, storage, [earlier.storage.uri]) is not None, "it needs none of it"


@pytest.mark.parametrize("part", ["models", "extractors", "seed", "format", "precision"])
def test_other_images_are_refused_by_what_differs(earlier: Sweep, part: str) -> None:
    """With the key, and both values; before any worker has loaded, but for the dtype."""
    identity = earlier.identity
    new = Experiment(identity.models, "new captions", 0, identity.extractors, "float32")
    (source,) = Earlier.read([earlier.storage.uri], SweepConfig.from_mapping(SPACE)).sources
    source = _with_experiment(source, replace(new, captions=source.facts["captions"]["hash"]))
    source = replace(source, facts={**source.facts, "format": FORMAT})
    known = facts(earlier)
    source.check_loaded(new, known)
    if part == "precision":
        with pytest.raises(EarlierSweepError, match="dtype of the models than bfloat16"):
            source.check_loaded(replace(new, precision="bfloat16"), known)
        return
    own = {"format": FORMAT, "seed": 0, **known}
    source.check(own)
    text, changed = {
        "seed": ("seed was 0, is 3", 3),
        "format": (f"format was {FORMAT}, is {FORMAT + 1}", FORMAT + 1),
        "models": (
            'models.target was not given, is "other"',
            {**identity.models, "target": "other"},
        ),
        "extractors": (
            'extractors.other was not given, is "new"',
            {**identity.extractors, "other": "new"},
        ),
    }[part]
    with pytest.raises(EarlierSweepError, match=re.escape(text)):
        source.check(own | {part: changed})


def test_a_sweep_is_taken_once(earlier: Sweep) -> None:
    with pytest.raises(EarlierSweepError, match="twice"):
        Earlier.read([earlier.storage.uri] * 2, SweepConfig.from_mapping(SPACE))


DIRECTIONS: tuple[Direction, ...] = ("maximize", "minimize")


def told_of(earlier: Sweep, config: SweepConfig) -> list[tuple[TrialRecord, dict[str, Any] | None]]:
    """The trials that the search is told, with their parameters in the new space."""
    told = (
        Earlier.read([earlier.storage.uri], config).decide(config, facts(earlier)).reported_trials
    )
    configs = [(record, record.config) for record in told if record.config is not None]
    return [(record, config.space.params_of(setting, SAMPLING)) for record, setting in configs]


def test_a_launch_says_which_trials_the_search_is_told_and_why_not_the_others(
    earlier: Sweep, tmp_path: Path
) -> None:
    """So does its --check, and that of a resumed sweep, which knows what was decided."""
    config = SweepConfig.from_mapping(
        {**SPACE, "search": {"sampler": "tpe"}, "constraints": ["drift <= 90"]}
    ).resolve(SAMPLING)
    lacking = earlier.records[9]
    partly = {name: entry for name, entry in lacking.metrics.items() if name != "drift"}
    write_trial(earlier.storage, replace(lacking, metrics=partly, history=()))
    copied = earlier.records[8]
    write_trial(earlier.storage, replace(copied, taken=copied.images - 1))
    copy = shutil.copytree(tmp_path / "mine", tmp_path / "copy")
    taken = Earlier.read([earlier.storage.uri, str(copy)], config)
    known = facts(earlier)
    captions = known["captions"]
    first, second = taken.describe(config, captions, known)
    seconds = sum(record.seconds for record in earlier.records)
    drawn = sum(record.images for record in earlier.records if record.seconds)
    drawn -= copied.images - 1
    assert taken.seconds_per_image == pytest.approx(seconds / drawn)
    decided = taken.decide(config, known)
    (told,) = [source for source in decided.sources if source.records]
    numbers = [record.number for record in told.records]
    reasons = {number: reason for reason, found in told.left_out.items() for number in found}
    assert sorted([*numbers, *reasons]) == [record.number for record in earlier.records]
    assert (reasons[0], reasons[8]) == ("run again", "repeats of other trials")
    assert reasons[9] == "without drift"
    front = {entry.config for entry in taken.front}
    for record in earlier.records:
        if reasons.get(record.number) == "run again":
            assert record.config in front | {BASELINE}
        elif record.number in numbers:
            assert record.config is not None
            assert config.space.params_of(record.config, SAMPLING) is not None
    assert f"the search is told {len(numbers)} trials: {ranges(numbers)}; not told: 0-" in first
    assert "9 (without drift)" in first
    assert "the search is told no trial; not told: " in second
    assert f"{ranges(numbers)} (told from mine)" in second
    storage = Storage(tmp_path / "wider")
    storage.write(EARLIER, decided.to_json())
    stored = Earlier.stored(storage)
    assert stored is not None
    assert stored.describe(config, captions) == [first, second]
    other = facts(earlier, captions={"count": IMAGES, "hash": "other"})
    (refused, _) = taken.describe(config, other["captions"], other)
    assert "told no trial; not told: " in refused
    assert 'captions was "' in refused


def test_numbers_in_a_row_are_a_range() -> None:
    assert ranges([]) == ""
    assert ranges([0, 2, 3, 4, 5, 9, 10]) == "0, 2-5, 9, 10"


@pytest.mark.parametrize("sampler", ["tpe", "nsga2", "random"])
def test_the_search_knows_what_it_was_told(earlier: Sweep, sampler: str) -> None:
    """It proposes as one that ran these trials itself; those outside of the space are left out."""
    config = SweepConfig.from_mapping({**SPACE, "search": {"sampler": sampler}}).resolve(SAMPLING)
    told = told_of(earlier, config)
    inside = [(record, params) for record, params in told if params is not None]
    search = Search(config, DIRECTIONS, earlier=[record for record, _ in told])
    trials = search._study.trials
    assert 0 < len(inside) == len(told)
    (source,) = Earlier.read([earlier.storage.uri], config).decide(config, facts(earlier)).sources
    assert source.left_out["outside the new space"]
    assert [trial.state.name for trial in trials] == [
        "FAIL" if r.state == "failed" else "COMPLETE" for r, _ in inside
    ]
    for trial, (record, params) in zip(trials, inside, strict=True):
        assert trial.params == params
        if record.state != "failed":
            assert trial.values == [
                record.metrics[name].value for name in ("step_compression", "fid")
            ]
    assert search.propose(0).label == "vanilla"


FINITE = {
    "drafter": "eagle",
    "tree": {"policy": "chain", "length": {"low": 2, "high": 5}},
    "acceptance": [
        "exact",
        {"neighbourhood": "additive", "k": {"values": [10, 100]}, "delta": 0.2},
    ],
}


def points_of(config: SweepConfig) -> list[TrialRecord]:
    """A result of each point of a finite space."""
    values = {name: Estimate(2.0, 0.1, 64) for name in ("step_compression", "fid")}
    points = [
        (params, config.space.suggest(FixedTrial(params), SAMPLING))
        for params in config.space.grid()
    ]
    return [
        TrialRecord(n, "", "complete", c, params=p, metrics=values)
        for n, (p, c) in enumerate(points)
    ]


@pytest.mark.parametrize("sampler", ["grid", "random", "nsga2", "tpe"])
def test_what_was_told_is_not_run_again(sampler: str) -> None:
    """A grid has the other points; a sampler is asked again. A resumed search proposes the same."""
    config = SweepConfig.from_mapping(
        {**SPACE, "space": FINITE, "search": {"sampler": sampler}}
    ).resolve(SAMPLING)
    points = points_of(config)
    failed = replace(points[3], state="failed", metrics={})
    told, new = [*points[:3], failed, *points[6:9]], [*points[3:6], *points[9:]]
    search, resumed = (Search(config, DIRECTIONS, earlier=told) for _ in range(2))
    search.propose(0)
    resumed.propose(0, {})
    for number in range(1, len(new) + 1):
        proposal = search.propose(number)
        assert proposal.params in [record.params for record in new]
        if sampler == "grid":
            assert proposal.params == new[number - 1].params
        stored = proposal.params if number < 4 else None
        assert resumed.propose(number, stored).params == proposal.params
    ends = [search.is_exhausted(number) for number in (len(new), len(new) + 1)]
    assert ends == [False, sampler == "grid"]


def test_a_sampler_that_finds_nothing_new_repeats() -> None:
    config = SweepConfig.from_mapping(
        {**SPACE, "space": FINITE, "search": {"sampler": "random"}}
    ).resolve(SAMPLING)
    points = points_of(config)
    search = Search(config, DIRECTIONS, earlier=points)
    search.propose(0)
    assert search.propose(1).params in [record.params for record in points]


@pytest.mark.parametrize("sampler", ["nsga2", "nsga3"])
def test_genetic_samplers_breed_from_told_trials(sampler: str) -> None:
    """Without mutation a child has its parents' numbers, so it repeats one of them, although others
    are new.
    """
    space = {"drafter": "eagle", "tree": {"policy": "chain", "length": {"low": 1, "high": 9}}}
    options = {"population_size": 4, "mutation_prob": 0.0}
    changes = {"space": space, "search": {"sampler": sampler, "options": options}}
    config = SweepConfig.from_mapping({**SPACE, **changes}).resolve(SAMPLING)
    told = points_of(config)[2:6]
    bred, other = Search(config, DIRECTIONS, earlier=told), Search(config, DIRECTIONS)
    for search in (bred, other):
        search.propose(0)
    known = [record.params for record in told]
    assert all(bred.propose(number).params in known for number in range(1, 6))
    assert not all(other.propose(number).params in known for number in range(1, 6))


def test_lossless_settings_of_all_earlier_sweeps_are_told_one_quality(
    earlier: Sweep, tmp_path: Path
) -> None:
    """The first one's own value, which its vanilla has when it runs again; not the mean."""
    write_sweep(tmp_path / "second", name="second", seed=1, samples=1, failed=())
    places = [str(tmp_path / name) for name in ("mine", "second")]
    config = SweepConfig.from_mapping(SPACE).resolve(SAMPLING)
    taken = Earlier.read(places, config).decide(config, facts(earlier))
    groups = QualityGroups.of(earlier.identity)
    own = earlier.records[0].measured.metrics["fid"].value
    assert own != earlier.records[0].metrics["fid"].value
    told = [
        [record.metrics["fid"].value for record in source.records if groups.group(record)]
        for source in taken.sources
    ]
    assert all(told)
    assert {value for values in told for value in values} == {own}
    # its vanilla and the others of the group are told the same
    new = QualityGroups.of(earlier.identity, taken.reported_trials)
    again = new.all_as_told([record.measured for record in Sweep.open(places[1]).records])
    values = {record.metrics["fid"].value for record in again if new.group(record) == SAMPLING}
    assert values == {own}
