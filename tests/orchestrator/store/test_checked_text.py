"""YAML with a checksum: no flipped bit and no cut is read as the text."""

from __future__ import annotations

import pytest

from orchestrator.store.checked_text import dump_yaml, load_yaml
from workers.data.checked_json import OtherVersionError

TEXT = "name: ä\nbudget: {trials: 3}\n"


def test_every_change_is_noticed() -> None:
    data = dump_yaml(TEXT)
    assert load_yaml(data) == TEXT
    for byte in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[byte] ^= 1 << bit
            with pytest.raises(ValueError, match=r"checksum|utf-8"):
                load_yaml(bytes(changed))
        with pytest.raises(ValueError, match=r"checksum|utf-8"):
            load_yaml(data[:byte])


def test_a_text_without_a_checksum_is_of_another_version() -> None:
    with pytest.raises(OtherVersionError, match="another version of specfrontier"):
        load_yaml(TEXT.encode())
