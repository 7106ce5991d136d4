"""JSON lines: a torn line costs itself alone, and a damaged one is counted and dropped once."""

from __future__ import annotations

from pathlib import Path

from orchestrator.store.checked_text import append_line, drop_damaged_lines, scan_lines
from workers.data.checked_json import OtherVersionError
from workers.data.storage import Storage

NAME = "events.jsonl"


def test_a_torn_last_line_costs_itself_alone(tmp_path: Path) -> None:
    path, storage = tmp_path / NAME, Storage(tmp_path)
    assert list(scan_lines(storage, NAME)) == []
    for number in range(3):
        append_line(path, {"trial": number}, sync=False)
    path.write_bytes(path.read_bytes()[:-7])
    assert list(scan_lines(storage, NAME)) == [{"trial": 0}, {"trial": 1}, None]
    append_line(path, {"trial": 3})
    assert list(scan_lines(storage, NAME)) == [{"trial": 0}, {"trial": 1}, None, {"trial": 3}]


def test_line_breaks_in_texts_are_no_ends_of_lines(tmp_path: Path) -> None:
    entry = {"error": "a\nb\rc\x0bd\x0ce\x1cf\x85g\u2028h\u2029i"}
    append_line(tmp_path / NAME, entry)
    append_line(tmp_path / NAME, entry)
    assert list(scan_lines(Storage(tmp_path), NAME)) == [entry, entry]


def test_a_changed_digit_is_damage(tmp_path: Path) -> None:
    path, storage = tmp_path / NAME, Storage(tmp_path)
    for number in range(3):
        append_line(path, {"trial": number})
    before = path.read_bytes().replace(b'"trial": 1', b'"trial": 7')
    path.write_bytes(before)
    assert list(scan_lines(storage, NAME)) == [{"trial": 0}, None, {"trial": 2}]
    assert drop_damaged_lines(storage, NAME) == 1
    assert (tmp_path / f"{NAME}.damaged").read_bytes() == before
    assert drop_damaged_lines(storage, NAME) == 0
    assert list(scan_lines(storage, NAME)) == [{"trial": 0}, {"trial": 2}]


def test_a_line_of_another_version_is_no_damage(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write(NAME, b'{"trial": 0}\n')
    append_line(tmp_path / NAME, {"trial": 1})
    other, own = scan_lines(storage, NAME)
    assert isinstance(other, OtherVersionError)
    assert own == {"trial": 1}
    assert drop_damaged_lines(storage, NAME) == 0
