"""The speeds of a sweep whose settings were timed on several devices: all of them are of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from orchestrator.cli.timing import Choice, _chosen_records
from orchestrator.errors import QueryError
from orchestrator.front.front import front_of
from orchestrator.shown.status import sweep_notes, timing_notes
from orchestrator.store.identity import write_identity
from orchestrator.store.prices import Machine, violations
from orchestrator.store.records import EarlyStop, TrialRecord, read_trials, write_trial
from orchestrator.store.sweep import Sweep
from search_spaces.constraints import Constraint
from specfrontier import Sweep as NotebookSweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.priced_sweeps import SLOWER, TOLD, TRIALS, time_on, write_untimed_sweep
from workers.data.records import write_shard
from workers.data.storage import Storage
from workers.metrics.costs import batch_passes
from workers.metrics.estimate import Estimate
from workers.metrics.timings import Load


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return write_untimed_sweep(tmp_path / "sweep")


def speeds(sweep: Sweep) -> Mapping[int, float]:
    return {
        record.number: record.metrics["speedup"].value
        for record in sweep.records
        if "speedup" in record.metrics
    }


def on(device: str, passes: float = 60.0) -> float:
    """The speed-up of a trial there: 0.2 seconds of prefill, and 0.03 for each of vanilla's 143
    passes.
    """
    return (0.2 + 143 * 0.03) / (0.2 + passes * 0.03 * SLOWER[device])


def test_a_trial_that_another_device_timed_has_no_speed(storage: Storage) -> None:
    """Not even the one that it was told, which is of that device."""
    time_on(storage, "zen", (1, 2, 3))
    time_on(storage, "xeon", (3, 4), day=2)
    sweep = Sweep.open(storage)
    assert str(sweep.machine) == "zen, 1 thread at batch 1"
    assert speeds(sweep) == pytest.approx(
        {0: 1.0, 1: on("zen"), 2: on("zen"), 3: on("zen")}, rel=1e-3
    )
    front = front_of([sweep], feasible=False)
    assert {trial.number for trial in front.candidates} == {0, 1, 2, 3}
    assert front.left_out == {"not measured": 1}
    assert not next(record for record in sweep.records if record.number == 4).feasible, (
        "a limit on its speed"
    )
    note, _ = timing_notes(sweep)
    assert "zen, 1 thread at batch 1 for 1 of 5 trials (4), not timed there" in note
    again = f"specfrontier time {storage.display_name} --where 'number in 4' --threads 1 --batch 1"
    assert f"`{again}`" in note


def test_each_device_has_its_own_front(storage: Storage) -> None:
    time_on(storage, "zen", (1, 2, 3))
    time_on(storage, "xeon", (3, 4), day=2)
    there = Sweep.open(storage, "xeon")
    assert speeds(there) == pytest.approx({0: 1.0, 3: on("xeon"), 4: on("xeon")}, rel=1e-3)
    assert there.identity.timing_device == "xeon, 1 thread"
    shown = specfrontier("pareto", storage.display_name, "--device", "xeon", "--json").json
    assert list(shown["speeds_on"].values()) == ["xeon, 1 thread at batch 1"]
    assert any("at batch 1 for 2 of 5 trials (1, 2), not" in text for text in shown["warnings"])


def test_a_note_says_how_many_trials_have_no_speed_at_a_batch_size(storage: Storage) -> None:
    """And the command times all of them, those too that have no speed on the sweep's own device."""
    time_on(storage, "zen", (1, 2, 4))
    time_on(storage, "zen", (1, 2), day=2, batch=4)
    write_trial(storage, replace(read_trials(storage)[2], images=7))
    untimed, small, _ = timing_notes(Sweep.open(storage, batch=4))
    there = "no speed on zen, 1 thread at batch 4 for"
    assert untimed.startswith(f"{there} 2 of 5 trials (3, 4), not timed there")
    assert f"{storage.display_name} --where 'number in 3,4' --threads 1 --batch 4`" in untimed
    assert small.startswith(f"{there} 1 of 5 trials (2), with fewer than the 8 images")
    shown = specfrontier("show", storage.display_name, "3", "--batch", "4", "--json").json
    assert len(shown["warnings"]) == 1
    chosen = _chosen_records(Sweep.open(storage), Choice(where=["number in 3,4"]))
    assert [record.number for record in chosen] == [0, 3, 4]


def test_a_metric_of_another_batch_size_has_a_note_of_its_own(storage: Storage) -> None:
    time_on(storage, "zen", (1, 2, 3, 4))
    time_on(storage, "zen", (1, 2, 3), day=2, batch=4)
    identity = Sweep.open(storage).identity
    other = replace(identity.metrics["speedup"], name="speedup_batch4")
    write_identity(
        storage, replace(identity, metrics={**identity.metrics, "speedup_batch4": other})
    )
    notes = [note for note in timing_notes(Sweep.open(storage)) if "not timed there" in note]
    assert len(notes) == 1
    assert "at batch 4 for 1 of 5 trials (4)" in notes[0]
    assert "--batch 4`" in notes[0]


def test_time_does_not_change_which_device_is_the_sweeps_own(storage: Storage) -> None:
    time_on(storage, "zen", (1, 2))
    time_on(storage, "xeon", (1, 2, 3, 4), day=2, is_later=True)
    assert str(Sweep.open(storage).machine) == "zen, 1 thread at batch 1"
    assert speeds(Sweep.open(storage)).keys() == {0, 1, 2}


def test_a_sweep_without_usable_sessions_keeps_what_was_told(storage: Storage) -> None:
    """`specfrontier time` replaces none of these speeds, which are of another device, but has its
    own.
    """
    time_on(storage, "xeon", (1, 2), is_later=True)
    storage.write("timings/damaged.parquet", b"PAR1")
    sweep = Sweep.open(storage)
    assert sweep.machine is None
    assert speeds(sweep) == {0: 1.0} | dict.fromkeys(range(1, TRIALS), TOLD)
    assert [note for note in timing_notes(sweep) if "damaged.parquet" in note]
    assert speeds(Sweep.open(storage, "xeon")).keys() == {0, 1, 2}


def test_a_batch_size_is_one_for_all(storage: Storage) -> None:
    time_on(storage, "zen", (1, 2))
    time_on(storage, "zen", (2, 3), day=2, batch=4)
    assert speeds(Sweep.open(storage)).keys() == {0, 1, 2}
    large = Sweep.open(storage, batch=4)
    assert speeds(large) == pytest.approx(
        {0: 1.0, 2: on("zen", 90.0), 3: on("zen", 90.0)}, rel=1e-3
    )
    assert large.identity.timing_batch == 4
    again = NotebookSweep.open(storage, batch=4).reload()
    assert (again.machine, again.records) == (large.machine, large.records)


def test_a_limit_on_time_is_that_of_vanilla_there(storage: Storage) -> None:
    """Also for a trial that racing stopped, whose images were fewer."""
    told = {"latency": Estimate(1e-3, 1e-4, 4), "speedup": Estimate(1.0, 0.1, 4)}
    vanilla, stopped = read_trials(storage)[0], read_trials(storage)[1]
    write_trial(storage, replace(vanilla, history=((96, told),)))
    write_trial(storage, replace(stopped, state="stopped", images=96, stop=EarlyStop(2, 96, 0.1)))
    for device in ("zen", "arm"):
        time_on(storage, device, (1, 2), day=1 + (device != "zen"))

    def excess(record: TrialRecord) -> float:
        return record.constraints["latency <= 0.8 * vanilla"]

    for device in ("zen", "arm"):
        records = Sweep.open(storage, device).records
        base = records[0].metrics["latency"].value
        assert excess(records[1]) == pytest.approx(records[1].metrics["latency"].value - 0.8 * base)
        assert (excess(records[1]) <= 0) == (device == "zen")


def test_a_limit_on_speed_is_not_met_by_a_speed_on_another_device(storage: Storage) -> None:
    """Vanilla's there is not known."""
    limits = [
        Constraint.parse(text)
        for text in ("latency <= 2 * vanilla", "fid <= 2 * vanilla", "latency <= 99")
    ]
    vanilla, told = read_trials(storage)[:2]
    vanilla = replace(vanilla, timed_on={vanilla.images: "zen"})
    for device, is_met in (("zen", True), ("arm", False), ("", True)):
        record = replace(told, timed_on={told.images: device})
        found = violations(record, limits, [vanilla])
        assert [value <= 0 for value in found.values()] == [is_met, True, True]


def test_a_device_is_found_by_a_part_of_its_name(storage: Storage) -> None:
    time_on(storage, "zen", (1,))
    time_on(storage, "zen", (1,), day=2, batch=8)
    time_on(storage, "xeon", (1,), day=3, is_later=True)
    time_on(storage, "xeon", (1,), day=4, batch=4, is_later=True)
    time_on(storage, "arm", (1,), day=5, batch=4, is_later=True)
    prices = Sweep.open(storage).prices

    def found(device: str | None, batch: int | None = None, own_batch: int = 1) -> str:
        return str(Machine.find(prices, device, batch, own_batch))

    assert found(None) == "zen, 1 thread at batch 1", "the sweep's own"
    assert found("XEON") == "xeon, 1 thread at batch 1"
    assert found("xeon", 4) == "xeon, 1 thread at batch 4"
    assert found("arm") == "arm, 1 thread at batch 4", "the only size there"
    assert found("zen,", own_batch=8) == "zen, 1 thread at batch 8"
    assert found(None, 8) == "zen, 1 thread at batch 8"
    assert found("1 thread", 8) == "zen, 1 thread at batch 8", "the only one of that name and size"
    known = r"zen, 1 thread \(batch 1, 8\); xeon, 1 thread \(batch 1, 4\); arm"
    for device, batch, problem in (
        ("H100", None, "not timed on a device 'H100'"),
        (None, 2, "not timed at batch 2"),
        ("arm", 1, "not timed at batch 1 on 'arm'"),
        ("1 thread", None, "3 devices with '1 thread' in their names timed it"),
    ):
        with pytest.raises(QueryError, match=f"{problem}.*{known}"):
            found(device, batch)
    with pytest.raises(
        QueryError, match=r"on zen, 1 thread, .+ --device: xeon, 1 thread; arm, 1 thread$"
    ):
        found(None, 4)
    assert [str(machine) for machine in Machine.all(prices)][:2] == [
        "zen, 1 thread at batch 1", "zen, 1 thread at batch 8"
    ]  # fmt: skip


def test_a_batch_size_chooses_no_device(storage: Storage) -> None:
    """Not even if only one other device was timed at it."""
    time_on(storage, "zen", (1,), is_later=True)
    time_on(storage, "arm", (1,), day=2, batch=4, is_later=True)
    with pytest.raises(QueryError, match="2 devices timed it; choose one with --device"):
        Sweep.open(storage, batch=4)
    time_on(storage, "zen", (1, 2), day=3)
    said = error_of("pareto", storage.display_name, "--batch", "4", code=2)
    assert (
        f"on zen, 1 thread, the sweep's own device; `specfrontier time {storage.display_name}"
        in said
    )
    assert "--batch 4` times it there, or choose with --device: arm, 1 thread" in said
    assert str(Sweep.open(storage, "arm", 4).machine) == "arm, 1 thread at batch 4"


def test_passes_that_no_record_has_are_those_of_the_images(storage: Storage) -> None:
    """Blocks are of captions in their order, whatever their ids are, and with all of their
    samples.
    """
    rng = np.random.default_rng(0)
    captions, image_passes = np.repeat(24 * rng.permutation(40), 2), rng.integers(20, 60, 80)
    names = ["shards/quality-1.parquet", "shards/quality-2.parquet"]
    for name, part in zip(names, (slice(0, 30), slice(30, 80)), strict=True):
        table = pa.table(
            {"caption_id": captions[part], "passes": image_passes[part].astype(np.int32)}
        )
        write_shard(storage, name, table, {"kind": "quality"})
    time_on(storage, "zen", (1,), batch=8)
    for record in read_trials(storage)[:2]:
        write_trial(storage, replace(record, shards=tuple(names)))
    record = Sweep.open(storage, batch=8).records[1]
    passes = batch_passes(image_passes.astype(np.float64), np.arange(80) // 2 % 24, 8)
    assert record.config is not None
    prices, _ = Sweep.open(storage).prices.of(record.config.shape, 8)
    assert record.metrics["speedup"] == prices.speedup(record.config.shape, passes, record.images)


@pytest.mark.parametrize("command", ["pareto", "report", "compare --by lossless"])
def test_a_device_that_did_not_time_a_sweep_is_refused(command: str, storage: Storage) -> None:
    time_on(storage, "zen", (1,))
    place = storage.display_name
    for words in (("--device", "H100"), ("--batch", "3")):
        name, *options = command.split()
        said = error_of(name, place, *options, *words, code=2)
        assert "it was timed on zen, 1 thread (batch 1); `specfrontier time " in said
    for batch in (0, 3):
        with pytest.raises(QueryError, match=f"not timed at batch {batch}: it was timed on zen"):
            Sweep.open(place, batch=batch)


def test_errors_of_one_session_assume_something(storage: Storage) -> None:
    time_on(storage, "zen", range(1, TRIALS))
    (note,) = timing_notes(Sweep.open(storage))
    assert f"specfrontier time {storage.display_name} --threads 1 --batch 1" in note
    assert note in sweep_notes(Sweep.open(storage))
    assert note not in sweep_notes(Sweep.open(storage), is_running=True), "more sessions follow"
    time_on(storage, "xeon", range(1, TRIALS), day=2, is_later=True)
    assert timing_notes(Sweep.open(storage)) == [note], (
        "one on another device says nothing of this one"
    )
    time_on(storage, "zen", range(1, TRIALS), day=3, is_later=True)
    assert timing_notes(Sweep.open(storage)) == []


def test_what_was_timed_on_a_busy_machine_says_so(storage: Storage) -> None:
    """Beside the speeds: by `pareto`, `status` (also of a running sweep) and the report."""
    time_on(storage, "zen", range(1, TRIALS), load=Load(1.63, 3.0, 2))
    time_on(storage, "zen", range(1, TRIALS), day=2, is_later=True, load=Load(1.0, 1.0, 2))
    time_on(storage, "xeon", range(1, TRIALS), day=3, is_later=True, load=Load(1.0, 1.0, 2))
    sweep = Sweep.open(storage)
    (note,) = timing_notes(sweep)
    assert note == (
        "speeds (1 of 2 timing sessions) on zen, 1 thread at batch 1 were timed on a busy machine "
        "(wall over CPU time 1.63, load per core 1.50 at most), so they may differ more on another "
        f"day; on a quiet machine, `specfrontier time {storage.display_name} --threads 1 --batch 1` "
        "adds others"
    )
    assert note in sweep_notes(sweep, is_running=True)
    shown = specfrontier("pareto", storage.display_name, "--json").json["warnings"]
    assert any(text.endswith(note) for text in shown)
    assert note in specfrontier("status", storage.display_name, "--json").json["warnings"]
    assert not [
        text for text in timing_notes(Sweep.open(storage, "xeon")) if "busy machine" in text
    ]


def test_another_day_narrows_the_errors_of_speeds(storage: Storage) -> None:
    """A session at another batch size does not."""
    time_on(storage, "zen", range(1, TRIALS))
    errors = [_largest_error(storage)]
    time_on(storage, "zen", range(1, TRIALS), batch=4)
    errors.append(_largest_error(storage))
    time_on(storage, "zen", range(1, TRIALS), day=2, is_later=True)
    errors.append(_largest_error(storage))
    assert errors[0] == errors[1] > 1.3 * errors[2]


def _largest_error(storage: Storage) -> float:
    """The relative one of a speed-up, apart from what the captions add, which have none here."""
    metrics = [record.metrics["speedup"] for record in Sweep.open(storage).records]
    return max(entry.noise / entry.value for entry in metrics)


def test_a_batch_is_not_longer_than_the_images_that_say_how_long_it_takes(
    storage: Storage,
) -> None:
    """A trial with fewer images than two batches, and than others, has no speed there."""
    time_on(storage, "zen", (1, 2, 3), batch=4)
    sweep = Sweep.open(storage, batch=4)
    assert set(speeds(sweep)) == {0, 1, 2, 3}
    records = [
        replace(record, images=7) if record.number == 2 else record for record in sweep.records
    ]
    few = replace(sweep, records=tuple(records))
    assert few.machine is not None
    assert set(speeds(few.priced_on(few.machine))) == {0, 1, 3}
