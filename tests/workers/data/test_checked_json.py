"""JSON with a checksum: what is read is what was written, or it is refused."""

from __future__ import annotations

import json

import pytest

from workers.data.checked_json import dump_checked, has_intact_checksum, load_checked

ENTRIES = {
    "number": 12,
    "name": "“ü”",
    "metrics": {"fid": 4.25, "error": None},
    "shards": ["a", "b"],
}


@pytest.mark.parametrize("indent", [None, 1])
def test_entries_come_back_and_any_reader_reads_them(indent: int | None) -> None:
    data = dump_checked(ENTRIES, indent=indent)
    assert load_checked(data) == load_checked(data + b"\n") == ENTRIES
    assert has_intact_checksum(data)
    assert ENTRIES.items() < json.loads(data).items()
    assert (b"\n" in data) == (indent is not None)


@pytest.mark.parametrize("indent", [None, 1])
def test_no_changed_bit_and_no_truncation_gives_other_entries(indent: int | None) -> None:
    data, refused = dump_checked(ENTRIES, indent=indent), 0
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"."):
            load_checked(data[:length])
    for place in range(8 * len(data)):
        changed = bytearray(data)
        changed[place // 8] ^= 1 << place % 8
        try:
            found = load_checked(bytes(changed))
        except ValueError:
            refused += 1
            assert not has_intact_checksum(bytes(changed))
        else:  # in the name of the checksum
            assert ENTRIES.items() <= found.items()
    assert refused > 7 * len(data)


def test_files_of_earlier_versions_are_read() -> None:
    assert load_checked(json.dumps(ENTRIES).encode()) == ENTRIES
    assert not has_intact_checksum(json.dumps(ENTRIES).encode())
    for damaged in (
        b"[1]",
        b"",
        b"{",
        b'"text"',
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        b'{"a": 1, "checksum": "12"}',
    ):
        with pytest.raises(ValueError, match=r"."):
            load_checked(damaged)
