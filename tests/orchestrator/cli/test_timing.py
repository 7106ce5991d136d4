"""`specfrontier time`, and the commands that show its speeds."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import specfrontier as api
from orchestrator.cli import session_timer
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE
from orchestrator.front.choice import recommend
from orchestrator.front.front import front_of
from orchestrator.store import prices
from orchestrator.store.files import DRIVER_LOCK, FRONT_TABLE, TRIAL_TABLE, read_table
from orchestrator.store.identity import write_identity
from orchestrator.store.launches import load_identity
from orchestrator.store.locks import exclusive
from orchestrator.store.records import trial_file
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_models import tiny_scored
from workers.data.captions import Caption
from workers.data.records import read_shard
from workers.data.shards import TIMINGS, TimingSession
from workers.data.storage import Storage
from workers.metrics.timings import EAGER, Device
from workers.runtime import process
from workers.runtime.device import this_device
from workers.runtime.engines import CancellableEngine, Engines
from workers.runtime.sessions import run_session

SPACE = """
name: timed
models: WEIGHTS
captions: {count: 8}
reference: {source: none}
quality: {batch: 6, shard: 3, samples: 2}
timing: {batch: 1, images: 2, repetitions: 1}
metrics: [speedup, latency, mean_accepted_length, caption_accuracy]
objectives: [mean_accepted_length, caption_accuracy]
enqueue:
  - vanilla
  - {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}
  - {label: short chain, drafter: eagle, tree: {policy: chain, length: 1}}
budget: {trials: 3}
space: {drafter: eagle, tree: {policy: chain, length: 2}}
"""
QUICK = ("--minutes", "0", "--images", "2")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of a tiny model, and the model."""
    run = SweepRun(tmp_path_factory.mktemp("sweep"), SPACE, models=tiny_scored)
    run.run_locally("--no-mlflow")
    return run.store


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Iterator[str]:
    """A copy of the sweep. Threads are set back: `--threads` sets those of this process."""
    shutil.copytree(made, tmp_path / "timed")
    threads = torch.get_num_threads()
    yield str(tmp_path / "timed")
    torch.set_num_threads(threads)


def sessions(place: str) -> set[str]:
    return set(Storage(place).names(TIMINGS))


def speeds(place: str, *words: str) -> dict[int, tuple[float, float]]:
    """Speed-up and latency by trial, as `pareto` shows them."""
    rows = specfrontier("pareto", place, "--x", "speedup", "--all", *words, "--json").json["rows"]
    return {
        row["number"]: tuple(row["metrics"][name]["value"] for name in ("speedup", "latency"))
        for row in rows
    }


def test_all_matching_trials_are_timed_beside_the_sweeps_own_speeds(place: str) -> None:
    before, own = sessions(place), speeds(place)
    ran = specfrontier(
        "time", place, "--where", "number>=0", "--batch", "2", "--minutes", "0", "--json"
    )
    assert ran.code == 0, ran.err
    (new,) = sessions(place) - before
    table, metadata = read_shard(Storage(place), f"{TIMINGS}/{new}", fix="")
    assert set(table.column("batch").to_pylist()) == {2}
    assert len(set(table.column("setting").to_pylist())) == 3
    assert metadata["experiment"] == Sweep.open(place).identity.experiment, (
        "a session like those of workers"
    )
    assert {caption for row in table.column("caption_ids").to_pylist() for caption in row} <= {
        caption.id for caption in Sweep.open(place).captions()
    }
    printed = ran.json
    assert printed["sessions"] == 1
    assert {row["number"] for row in printed["rows"]} == {0, 1, 2}
    there = speeds(place, "--batch", "2")
    for row in printed["rows"]:
        here, before = (price["value"] for price in row["speedup"])
        assert here == there[row["number"]][0]
        assert before == own[row["number"]][0], "costs at batch 2 do not change those at batch 1"
    assert [machine.partition(" at ")[2] for machine in printed["machines"]] == [
        "batch 2",
        "batch 1",
    ]
    assert speeds(place) == own
    assert there[1] != own[1]


def test_more_threads_are_another_device(place: str) -> None:
    own = speeds(place)
    ran = specfrontier("time", place, "--trial", "1", "--threads", "3", *QUICK)
    assert ran.code == 0, ran.err
    assert "3 threads at batch 1, 1 new session" in ran.out
    assert "[1], beside those of the sweep itself [2]" in ran.out
    assert f"compare {place} --by device" in ran.out
    assert speeds(place) == own
    shown = specfrontier("pareto", place, "--device", "3 threads", "--x", "speedup")
    assert "1 not measured" in shown.out
    assert "for 1 of 3 trials (2), not timed there" in shown.out
    assert "3 threads at batch 1" in shown.out
    assert str(api.Sweep.open(place, device="3 threads").machine) in repr(
        api.Sweep.open(place, device="3 threads")
    )
    ambiguous = error_of("pareto", place, "--device", "thread", code=WRONG_USAGE)
    assert "2 devices" in ambiguous
    assert "3 threads (batch 1)" in ambiguous


def test_new_sessions_of_the_sweeps_own_device_update_its_tables(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = Sweep.open(place).machine
    assert own is not None
    storage, before = Storage(place), (Path(place, TRIAL_TABLE).read_bytes(), speeds(place))
    ran = specfrontier("time", place, "--threads", str(own.device.threads + 1), *QUICK)
    assert Path(place, TRIAL_TABLE).read_bytes() == before[0], "of another device"
    assert f"report {place}" not in ran.out
    monkeypatch.setattr(process, "_user_threads", None)
    # with the sweep's own threads, whatever other work is running
    ran = specfrontier("time", place, *QUICK)
    assert ran.code == 0, ran.err
    assert str(own) in ran.out.splitlines()[0]
    assert f"the report page: specfrontier report {place}" in ran.out
    assert "sync" not in ran.out, "the sweep was not logged"
    rows = read_table(storage, TRIAL_TABLE, ["number", "speedup", "latency"], fix="").to_pylist()
    assert (
        {row["number"]: (row["speedup"], row["latency"]) for row in rows}
        == speeds(place)
        != before[1]
    )
    front = read_table(storage, FRONT_TABLE, ["number", "latency"], fix="").to_pylist()
    assert all(row["latency"] == speeds(place)[row["number"]][1] for row in front)


def test_sessions_go_on_until_the_costs_are_precise(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = iter([0.05, 0.03, 0.01])
    monkeypatch.setattr(session_timer.SessionTimer, "largest_error", lambda *_: next(errors))
    ran = specfrontier(
        "time", place, "--images", "2", "--error", "0.015", "--minutes", "9", "--json"
    )
    assert ran.code == 0, ran.err
    assert (ran.json["sessions"], ran.json["error"]) == (3, 0.01)
    decisive = {trial.number for trial in recommend(front_of([Sweep.open(place)])).decisive}
    assert 1 in decisive, "the longest accepted drafts are on the front"
    assert {row["number"] for row in ran.json["rows"]} == {0, *decisive}


def test_settings_timed_before_graphs_were_given_up_are_timed_again(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No time is left after the second of two groups, but the first was timed on the device as it
    was before.
    """
    numbers, own = list[int](), this_device

    def counted(
        engines: Engines, captions: Sequence[Caption], session: TimingSession, *rest: Any
    ) -> object:
        numbers.append(session.number)
        table, facts = run_session(engines, captions, session, *rest)
        return table, facts | ({"timed_on": facts["timed_on"] + EAGER} if len(numbers) > 1 else {})

    def given_up(device: torch.device) -> Device:
        return own(device)._replace(name=own(device).name + EAGER * (len(numbers) > 1))

    monkeypatch.setattr(session_timer, "run_session", counted)
    monkeypatch.setattr(session_timer, "this_device", given_up)
    monkeypatch.setattr(
        session_timer, "session_groups", lambda settings: [[setting] for setting in settings]
    )
    ran = specfrontier("time", place, *QUICK, "--trial", "1", "--trial", "2", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["sessions"] == 3


def test_an_interrupt_keeps_finished_sessions(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before, numbers = sessions(place), list[int]()

    def interrupted(
        engines: Engines, captions: Sequence[Caption], session: TimingSession, *rest: Any
    ) -> object:
        numbers.append(session.number)
        if len(numbers) == 3:
            raise KeyboardInterrupt
        return run_session(engines, captions, session, *rest)

    monkeypatch.setattr(session_timer, "run_session", interrupted)
    said = error_of(
        "time", place, "--images", "2", "--error", "0", "--minutes", "9", code=INTERRUPTED
    )
    assert "2 sessions are stored" in said
    assert len(sessions(place) - before) == 2
    assert min(numbers) >= 10**6, "none that the sweep itself may plan when it is resumed"


def test_what_cannot_be_timed_is_refused_before_any_timing(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sessions(place)
    assert "--batch" in specfrontier("time", place, "--batch", "0").err
    assert "16 captions" in error_of("time", place, "--batch", "8", code=WRONG_USAGE)
    assert "no finished trial 9" in error_of("time", place, "--trial", "9", code=FAILED)
    assert "nothing to time but vanilla" in error_of(
        "time", place, "--trial", "0", code=WRONG_USAGE
    )
    assert "no complete trial matches --where state=foo and number>0" in error_of(
        "time", place, "--where", "state=foo", "--where", "number>0", code=WRONG_USAGE
    )
    with monkeypatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 2)
        assert "--threads 4: torch uses 2 on this machine" in error_of(
            "time", place, "--threads", "4", code=WRONG_USAGE
        )
    assert "--trial and --where" in error_of(
        "time", place, "--trial", "1", "--where", "lossless", code=WRONG_USAGE
    )
    assert "no such file" in error_of(
        "time", place, "--models", str(tmp_path / "none"), code=WRONG_USAGE
    )
    with exclusive(Storage(place), DRIVER_LOCK):
        assert "running" in error_of("time", place, code=FAILED)
    models = Path(Sweep.open(place).models)
    other = shutil.copytree(models, tmp_path / "other")
    (other / "eagle.safetensors").unlink()
    assert "drafters.eagle (missing) differs from the sweep's" in error_of(
        "time", place, "--models", str(other), code=FAILED
    )
    (other / "target.safetensors").unlink()
    assert "target.safetensors" in error_of("time", place, "--models", str(other), code=FAILED)

    def out_of_memory(*_: object) -> None:
        raise torch.OutOfMemoryError("out of memory")

    monkeypatch.setattr(CancellableEngine, "step", out_of_memory)
    assert "out of memory at batch 2; try --batch 1" in error_of(
        "time", place, "--batch", "2", code=FAILED
    )
    assert sessions(place) == before


def test_other_weights_are_refused(place: str, tmp_path: Path) -> None:
    """A target of another training, with all files and shapes of the sweep's."""
    other = shutil.copytree(Sweep.open(place).models, tmp_path / "other")
    file = other / "target.safetensors"
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file, metadata)
    before = sessions(place)
    assert "target differs from the sweep's" in error_of(
        "time", place, "--models", str(other), code=FAILED
    )
    assert sessions(place) == before


def test_weights_that_were_moved_are_named_with_an_option(place: str, tmp_path: Path) -> None:
    moved = shutil.move(Sweep.open(place).models, tmp_path / "moved")
    try:
        said = error_of("time", place, code=WRONG_USAGE)
        assert "weights: no such file or folder" in said
        assert "--models names the weights where they are now" in said
        for word in ("time", "generate"):
            os.makedirs(Sweep.open(place).models)
            words = (
                ("time", place)
                if word == "time"
                else ("generate", "a red circle", "--from", place, "--trial", "1")
            )
            said = error_of(*words, code=FAILED)
            assert "target.safetensors); check the path" in said
            assert "--models names the weights where they are now" in said
            os.rmdir(Sweep.open(place).models)
        ran = specfrontier("time", place, "--models", str(moved), *QUICK)
        assert ran.code == 0, ran.err
    finally:
        shutil.move(moved, Sweep.open(place).models)


def test_a_sweep_that_cannot_be_timed_is_refused(place: str) -> None:
    """It measures no speed; its vanilla has not finished; its captions are lost with vanilla's
    images.
    """
    storage, sweep = Storage(place), Sweep.open(place)
    file = Path(place, sweep.records[0].image_shards[0])
    content = file.read_bytes()
    file.write_bytes(content[:-9])
    assert f"{file}: damaged" in error_of("time", place, code=FAILED)
    file.write_bytes(content)
    metrics = {name: metric for name, metric in sweep.identity.metrics.items() if name != "speedup"}
    stored = load_identity(storage)
    write_identity(storage, replace(stored, metrics=metrics))
    assert "does not measure speedup" in error_of("time", place, code=WRONG_USAGE)
    write_identity(storage, stored)
    Path(place, trial_file(0)).unlink()
    assert "vanilla has not finished" in error_of("time", place, code=FAILED)


def test_passes_of_other_batches_come_from_the_images(place: str) -> None:
    """As the worker computed them, for the sizes that it knew."""
    sweep = Sweep.open(place)
    for record in sweep.records:
        assert prices._stored_passes(sweep.storage, record, 1) == pytest.approx(record.passes[1])
    unknown = replace(sweep.records[1], passes={})
    assert sweep.machine is not None
    (found,) = prices.price_on(
        sweep.machine, [unknown], sweep.prices, sweep.identity, sweep.storage
    )
    assert found.metrics["speedup"].value == pytest.approx(
        sweep.records[1].metrics["speedup"].value
    )


def test_python_report_and_compare_take_the_device(place: str, tmp_path: Path) -> None:
    assert specfrontier("time", place, "--where", "number>=0", "--batch", "2", *QUICK).code == 0
    sweep = api.Sweep.open(place, batch=2)
    assert sweep.trial(1).batch == 2
    assert sweep.trial(1)["speedup"] == speeds(place, "--batch", "2")[1][0]
    assert sweep.reload().records == sweep.records
    assert "at batch 2 on" in sweep.trial(1).header
    with pytest.raises(
        api.QueryError, match=r"not timed on a device 'A10G': it was timed on .*batch 1, 2"
    ):
        api.Sweep.open(place, device="A10G")
    page = tmp_path / "page.html"
    assert specfrontier("report", place, "--batch", "2", "--out", str(page)).code == 0
    assert "at batch 2" in page.read_text()
    assert "not timed at batch 3" in error_of("report", place, "--batch", "3", code=WRONG_USAGE)
    compared = specfrontier(
        "compare", place, "--by", "tree", "--x", "speedup", "--batch", "2", "--json"
    )
    assert compared.code == 0, compared.err
    assert "not timed at batch 3" in error_of(
        "compare", place, "--by", "tree", "--x", "speedup", "--batch", "3", code=WRONG_USAGE
    )
