"""Damaged files of a store: every command that reads one names it and the fix, or says what it did
about it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.store.checked_text import append_line
from orchestrator.store.files import (
    FRONT_TABLE,
    SWEEP,
    read_table,
)
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage

READERS = (
    ("status",),
    ("pareto",),
    ("compare",),
    ("report",),
    ("sync",),
    ("ui",),
)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep", 4, name="demo", failed=())
    return tmp_path / "sweep"


def change_digit(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after, 1))


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_a_changed_digit_in_a_record_or_the_identity_is_refused(
    store: Path, command: tuple[str, ...]
) -> None:
    places = [str(store)] * (2 if command == ("compare",) else 1)
    record = store / "trials" / "00001.json"
    change_digit(record, '"images": 192', '"images": 193')
    message = "".join(specfrontier(*command, *places).err.split())
    assert f"{record}:" in message
    assert "removeit" in message
    identity = store / "identity.json"
    change_digit(identity, '"seed": 0', '"seed": 1')
    result = specfrontier(*command, *places)
    message = "".join(result.err.split())
    assert result.code in (1, 2)
    assert f"{identity}:damaged" in message
    assert "restorethefile" in message


@pytest.mark.parametrize("command", READERS, ids=" ".join)
def test_trials_without_an_identity_are_not_a_sweep_that_prepares(
    store: Path, command: tuple[str, ...]
) -> None:
    """Such as those of a folder that was copied in part."""
    append_line(store / "events.jsonl", {"event": "launch", "at": "2026-01-02T03:00:00+00:00"})
    (store / "identity.json").unlink()
    places = [str(store)] * (2 if command == ("compare",) else 1)
    result = specfrontier(*command, *places)
    assert result.code in (1, 2)
    assert (
        f"{store}/identity.json: missing, though there are trials; restore the file" in result.err
    )


def test_two_records_of_one_trial_are_refused(store: Path) -> None:
    copy = store / "trials" / "00009.json"
    copy.write_bytes((store / "trials" / "00001.json").read_bytes())
    message = "".join(error_of("pareto", str(store), code=1).split())
    assert f"{copy}:holdstherecordoftrial1,whosefileistrials/00001.json;removeit" in message


def test_status_says_that_lines_of_the_events_are_damaged(store: Path) -> None:
    assert specfrontier("status", str(store), "--json").json["warnings"] == []
    events = store / "events.jsonl"
    events.write_bytes(events.read_bytes().replace(b'"event"', b'"ev\xff', 2))
    (warning,) = specfrontier("status", str(store), "--json").json["warnings"]
    assert warning.startswith("events.jsonl: 2 ")


def test_status_says_that_another_version_wrote_lines_of_the_events(store: Path) -> None:
    for entry in ({"event": "teleport", "at": "2026-01-02T03:00:00+00:00"}, {"event": "note"}):
        append_line(store / "events.jsonl", entry)
    (warning,) = specfrontier("status", str(store), "--json").json["warnings"]
    assert warning.startswith("events.jsonl: 2 lines of another version of specfrontier are left ")


def test_status_says_that_the_events_were_cut(store: Path) -> None:
    events = store / "events.jsonl"
    lines = events.read_bytes().splitlines(keepends=True)
    events.write_bytes(b"".join(lines[:-3]) + lines[-3][:20])
    torn, missing = specfrontier("status", str(store), "--json").json["warnings"]
    assert torn.startswith("events.jsonl: 1 damaged line is left out")
    assert missing.startswith("events.jsonl: the end of trial 2, 3 is missing")


def test_a_missing_table_is_named_once(store: Path) -> None:
    with pytest.raises(ValueError, match="no such file; restore the file") as caught:
        read_table(Storage(store), FRONT_TABLE)
    assert str(caught.value).count(str(store)) == 1


@pytest.mark.parametrize("command", [("status",), ("report",), ("sync",)], ids=" ".join)
def test_a_changed_digit_in_sweep_yaml_is_refused(store: Path, command: tuple[str, ...]) -> None:
    change_digit(store / SWEEP, "trials: 4", "trials: 5")
    result = specfrontier(*command, str(store))
    assert result.code == 1
    message = "".join(result.err.split())
    assert f"{store / SWEEP}:damaged" in message
    assert "removeit:`launchSPACE--resume`writesitagain" in message


def test_the_report_names_a_damaged_picture(store: Path) -> None:
    picture = next((store / "pictures").iterdir())
    picture.write_bytes(picture.read_bytes()[:-1])
    result = specfrontier("report", str(store))
    assert result.code == 0
    assert f"{picture}:damaged" in "".join(result.err.split())
