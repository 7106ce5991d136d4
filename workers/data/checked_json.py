"""JSON objects with a checksum as their last entry, so that a changed digit is never read as a
result.

    {"trial": 3, "run_id": "4f", "checksum": "9d2c61a0b7e35f48"}

The checksum is of the bytes before it. Objects without one are read too: earlier versions wrote
none.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from search_spaces.documents import parse_json

_CHECKSUM = "checksum"
_TAIL = re.compile(rb', "checksum": "([0-9a-f]{16})"\}\s*\Z')


def dump_checked(entries: Mapping[str, Any], *, indent: int | None = None) -> bytes:
    """A JSON object in UTF-8 with its checksum. `entries` are not empty.

    Raises:
        ValueError: NaN or infinity.
    """
    body = (
        json.dumps(dict(entries), indent=indent, ensure_ascii=False, allow_nan=False)[:-1]
        .rstrip()
        .encode()
    )
    return body + f', "{_CHECKSUM}": "{_digest(body)}"}}'.encode()


def load_checked(data: bytes) -> dict[str, Any]:
    """The entries of a JSON object, without its checksum.

    Raises:
        ValueError: not a JSON object, nested too deeply, or changed since it was written.
    """
    tail = _TAIL.search(data)
    if tail is not None and _digest(data[: tail.start()]) != tail[1].decode():
        raise ValueError("changed since it was written: its checksum differs")
    entries = parse_json(data, finite=True)
    if not isinstance(entries, dict) or (tail is None and _CHECKSUM in entries):
        raise ValueError("not a JSON object, or its checksum is damaged")
    entries.pop(_CHECKSUM, None)
    return entries


def has_intact_checksum(data: bytes) -> bool:
    """Whether these bytes have a checksum, and have not changed since it was written."""
    tail = _TAIL.search(data)
    return tail is not None and _digest(data[: tail.start()]) == tail[1].decode()


def check_time(text: str) -> str:
    """The text of a moment, if it is ISO 8601 with a time zone.

    Raises:
        ValueError: the text is something else.
    """
    if not text.isprintable() or datetime.fromisoformat(text).tzinfo is None:
        raise ValueError(f"{text!r} is not a moment such as 2026-01-02T03:04:05+00:00")
    return text


def _digest(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:16]
