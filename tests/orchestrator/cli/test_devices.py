"""One sweep with its speeds on several devices, side by side; and sessions that cannot be used."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from orchestrator.cli.generate import Source, _read_setting
from orchestrator.cli.query_options import TrialOptions
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.priced_sweeps import TRIALS, time_on, write_untimed_sweep
from workers.data.storage import Storage

ZEN, XEON = "zen, 1 thread at batch 1", "xeon, 1 thread at batch 4"


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A sweep whose trial 1 is fast where it ran, and trial 2 where `specfrontier time` was called;
    trial 4 is slow.
    """
    storage = write_untimed_sweep(tmp_path / "sweep")
    time_on(storage, "zen", range(1, TRIALS), slower={1: 0.5, 2: 4.0, 3: 1.0, 4: 9.0})
    time_on(storage, "zen", range(1, TRIALS), day=2, slower={1: 0.51, 2: 4.1, 3: 1.0, 4: 9.0})
    time_on(
        storage, "xeon", (1, 2, 3), day=3, batch=4, slower={1: 4.0, 2: 0.5, 3: 1.0}, is_later=True
    )
    return storage


def speeds(place: str, *words: str) -> dict[int, float]:
    """By trial, as `pareto` has them."""
    shown = specfrontier("pareto", place, "--all", "--infeasible", *words, "--json").json
    return {row["number"]: row["metrics"]["speedup"]["value"] for row in shown["rows"]}


def members(place: str, *words: str) -> set[int]:
    return {
        row["number"]
        for row in specfrontier("pareto", place, "--infeasible", *words, "--json").json["rows"]
    }


def test_speeds_on_all_devices_stand_side_by_side(storage: Storage) -> None:
    """Each as `pareto` has it there, with the trials that are on the front of any of them."""
    place = storage.display_name
    ran = specfrontier("compare", place, "--by", "device", "--infeasible", "--json")
    assert ran.code == 0, ran.err
    (found,) = ran.json["by_device"].values()
    assert found["machines"] == [ZEN, XEON], "the sweep's own first"
    here, there = speeds(place), speeds(place, "--device", "xeon")
    fronts = members(place), members(place, "--device", "xeon")
    assert fronts[0] != fronts[1]
    assert {row["number"] for row in found["rows"]} == {0} | fronts[0] | fronts[1]
    for row in found["rows"]:
        number = row["number"]
        prices = [None if price is None else price["value"] for price in row["speedup"]]
        assert prices == [here.get(number), there.get(number)]
        assert row["on_front"] == [number in front for front in fronts]
        assert row["fid"]["value"] > 0
    assert ran.json["hypervolumes"].keys() == {f"synthetic on {ZEN}", f"synthetic on {XEON}"}
    assert any(f"no speed on {XEON} for 1 of 5 trials (4)" in text for text in ran.json["warnings"])


def test_the_table_says_which_column_is_of_which_device(storage: Storage) -> None:
    lines = specfrontier(
        "compare", storage.display_name, "--by", "device", "--infeasible"
    ).out.splitlines()
    assert lines[0].split() == [
        "trial",
        "setting",
        "fid",
        "speedup",
        "[1]",
        "speedup",
        "[2]",
        "on",
        "front",
    ]
    assert {f"[1] {ZEN}", f"[2] {XEON}"} <= set(lines)
    assert any(line.split()[0] == "2" and line.endswith("[2]") for line in lines[1:6])


def test_two_sweeps_are_compared_on_all_devices(storage: Storage, tmp_path: Path) -> None:
    shutil.copytree(tmp_path / "sweep", tmp_path / "copy")
    places = [str(tmp_path / name) for name in ("sweep", "copy")]
    ran = specfrontier("compare", *places, "--by", "device", "--infeasible", "--json")
    assert ran.json["hypervolumes"].keys() == {
        f"{place} on {machine}" for place in places for machine in (ZEN, XEON)
    }
    assert list(ran.json["by_device"]) == places
    assert "is given twice" in error_of("compare", places[0], places[0], "--by", "device", code=2)


def test_what_cannot_stand_side_by_side_is_refused(storage: Storage, tmp_path: Path) -> None:
    place = storage.display_name
    assert (
        "unknown column; did you mean 'device'? known columns: acceptance, tree, drafter, device, "
        "sweep" in error_of("compare", place, "--by", "devices", code=2)
    )
    assert "leave out --device" in error_of(
        "compare", place, "--by", "device", "--batch", "4", code=2
    )
    assert "latency cannot be compared" in error_of(
        "compare", place, "--by", "device", "--x", "latency", code=2
    )
    one = write_untimed_sweep(tmp_path / "one")
    assert "timed on no device; `specfrontier time " in error_of(
        "compare", one.display_name, "--by", "device", code=2
    )
    time_on(one, "zen", (1,))
    assert f"timed on {ZEN} only" in error_of("compare", one.display_name, "--by", "device", code=2)


@pytest.mark.parametrize(
    "words",
    [
        ("pareto",),
        ("status",),
        ("report",),
        ("compare", "--by", "lossless", "--infeasible"),
        ("compare", "--by", "device", "--infeasible"),
        ("sync",),
        ("time", "--models", "none"),
    ],
    ids=" ".join,
)
def test_a_session_that_cannot_be_used_is_named(
    words: tuple[str, ...], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the output of commands that show notes, else on standard error; once."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{storage.display_name}.db")
    damaged = time_on(storage, "zen", (1,), day=9)
    storage.write(damaged, storage.read(damaged)[:-9])
    command, *options = words
    ran = specfrontier(command, storage.display_name, *options)
    said = [line for line in (ran.out + ran.err).splitlines() if damaged in line]
    assert len(said) == 1
    assert "the speeds are those of the other timing sessions" in said[0]


@pytest.mark.parametrize(
    "words",
    [
        ("pareto", "SWEEP"),
        ("compare", "SWEEP", "--by", "lossless", "--infeasible"),
        ("compare", "SWEEP", "papers/lantern-table2", "--published"),
        ("sync", "SWEEP"),
    ],
    ids=" ".join,
)
def test_a_session_that_cannot_be_used_is_in_the_json(
    words: tuple[str, ...], storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that reads standard output sees it too."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{storage.display_name}.db")
    damaged = time_on(storage, "zen", (1,), day=9)
    storage.write(damaged, storage.read(damaged)[:-9])
    ran = specfrontier(
        *(storage.display_name if word == "SWEEP" else word for word in words), "--json"
    )
    assert ran.code == 0, ran.err
    assert damaged in json.dumps(ran.json)


def test_a_setting_brings_the_notes_on_its_sweep(storage: Storage) -> None:
    """Those that `generate --from SWEEP` writes into statistics.json."""
    damaged = time_on(storage, "zen", (1,), day=9)
    storage.write(damaged, storage.read(damaged)[:-9])
    (note,) = _read_setting(Source(sweep=storage.display_name), TrialOptions(trial=0)).notes
    assert damaged in note
