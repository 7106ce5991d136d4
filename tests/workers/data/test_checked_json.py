"""JSON with a checksum: what is read is what was written, or it is refused."""

from __future__ import annotations

import json

import pytest

from workers.data.checked_json import OtherVersionError, dump_checked, load_checked, parse_checked

ENTRIES = {
    "number": 12,
    "name": "“ü”",
    "metrics": {"fid": 4.25, "error": None},
    "shards": ["a", "b"],
}


def test_entries_come_back_and_any_reader_reads_them() -> None:
    data = dump_checked(ENTRIES)
    assert load_checked(data) == load_checked(data + b"\n") == ENTRIES
    assert ENTRIES.items() < json.loads(data).items()
    assert b"\n" not in data


def test_no_changed_bit_and_no_truncation_gives_other_entries() -> None:
    data = dump_checked(ENTRIES)
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            load_checked(data[:length])
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(ValueError, match=r"."):
            load_checked(bytes(changed))


def test_files_of_other_versions_are_no_damaged_ones() -> None:
    with pytest.raises(
        OtherVersionError, match=r"another version of specfrontier \(it has no checksum"
    ):
        load_checked(json.dumps(ENTRIES).encode())
    for error in (KeyError("number"), ValueError("odd"), TypeError("odd"), AttributeError("odd")):

        def refuse(entries: object, error: Exception = error) -> None:
            raise error

        with pytest.raises(OtherVersionError, match=r"another version .*(without 'number'|odd)"):
            parse_checked(dump_checked(ENTRIES), refuse)
    assert parse_checked(dump_checked(ENTRIES), len) == len(ENTRIES)


@pytest.mark.parametrize(
    "data",
    [
        b"[1]",
        b"",
        b"{",
        b'"text"',
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"a": 1, "checksum": "12"}',
        b"\xff",
    ],
)
def test_damaged_objects_are_called_so(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"^damaged \(") as caught:
        load_checked(data)
    assert not isinstance(caught.value, OtherVersionError)
