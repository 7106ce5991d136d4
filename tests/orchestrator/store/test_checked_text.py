"""Texts with a checksum: no flipped bit and no cut is read as the text."""

from __future__ import annotations

import pytest

from orchestrator.store.checked_text import HTML_COMMENT, YAML_COMMENT, dump_text, load_text

TEXT = "name: ä\nbudget: {trials: 3}\n"


@pytest.mark.parametrize("comment", [YAML_COMMENT, HTML_COMMENT])
def test_every_change_is_noticed(comment: tuple[str, str]) -> None:
    data = dump_text(TEXT, comment)
    assert load_text(data, comment) == TEXT
    for byte in range(len(data)):
        for bit in range(8):
            changed = bytearray(data)
            changed[byte] ^= 1 << bit
            with pytest.raises(ValueError, match=r"checksum|utf-8"):
                load_text(bytes(changed), comment)
        with pytest.raises(ValueError, match=r"checksum|utf-8"):
            load_text(data[:byte], comment)


def test_a_text_that_somebody_else_wrote_has_none() -> None:
    assert load_text(TEXT.encode(), YAML_COMMENT) == TEXT
    assert load_text(b"<!DOCTYPE html>\n", HTML_COMMENT) == "<!DOCTYPE html>\n"
