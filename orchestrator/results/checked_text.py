"""Text files whose first line is a comment with a checksum of the rest, so that a changed or cut file is noticed.

    # checksum: 9d2c61a0b7e35f48

Files without such a line are read too: earlier versions wrote none.
"""

from __future__ import annotations

import hashlib
import re

YAML, HTML = ("# ", ""), ("<!-- ", " -->")  # what is before and after a comment
_LINE = re.compile(r"checksum: ([0-9a-f]{16})")


def dump_text(text: str, comment: tuple[str, str]) -> bytes:
    """The text in UTF-8 below its checksum."""
    return f"{comment[0]}checksum: {_digest(text)}{comment[1]}\n{text}".encode()


def load_text(data: bytes, comment: tuple[str, str]) -> str:
    """The text without its checksum.

    Raises:
        ValueError: changed since it was written, or not UTF-8.
    """
    text = data.decode()
    first, _, rest = text.partition("\n")
    is_comment = first.startswith(comment[0]) or comment[0].startswith(first)  # it may be cut
    if not is_comment and "checksum" not in first:
        return text
    found = _LINE.search(first)
    if found is None or f"{comment[0]}{found[0]}{comment[1]}" != first or _digest(rest) != found[1]:
        raise ValueError("changed since it was written: its checksum differs")
    return rest


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
