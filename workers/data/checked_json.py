"""JSON objects with a checksum as their last entry, so that a changed digit is never read as a
result.

    {"trial": 3, "run_id": "4f", "checksum": "9d2c61a0b7e35f48"}

The checksum is of the bytes before it. An object that another version of specfrontier wrote is
refused as such, not as a damaged one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, TypeVar

from search_spaces.documents import parse_json

Parsed = TypeVar("Parsed")
_CHECKSUM = "checksum"
_TAIL = re.compile(rb', "checksum": "([0-9a-f]{16})"\}\s*\Z')


def dump_checked(entries: Mapping[str, Any]) -> bytes:
    """A JSON object in UTF-8 with its checksum, on one line. `entries` are not empty.

    Raises:
        ValueError: NaN or infinity.
    """
    body = json.dumps(dict(entries), ensure_ascii=False, allow_nan=False)[:-1].encode()
    return body + f', "{_CHECKSUM}": "{_digest(body)}"}}'.encode()


class OtherVersionError(ValueError):
    """Something that this version of specfrontier would not have written. difference: from what it
    writes, such as the error of its reader.
    """

    def __init__(self, difference: object) -> None:
        if isinstance(difference, KeyError):
            difference = f"without {difference}"
        super().__init__(f"written by another version of specfrontier ({difference})")


def load_checked(data: bytes) -> dict[str, Any]:
    """The entries of a JSON object, without its checksum.

    Raises:
        OtherVersionError: it has no checksum.
        ValueError: damaged: not a JSON object, nested too deeply, or changed since it was written.
    """
    tail = _TAIL.search(data)
    if tail is not None and _digest(data[: tail.start()]) != tail[1].decode():
        raise ValueError("damaged (its checksum differs)")
    try:
        entries = parse_json(data, finite=True)
    except ValueError as error:
        raise ValueError(f"damaged ({error})") from error
    if not isinstance(entries, dict) or (tail is None and _CHECKSUM in entries):
        raise ValueError("damaged (not a JSON object, or its checksum is cut)")
    if tail is None:
        raise OtherVersionError("it has no checksum")
    del entries[_CHECKSUM]
    return entries


def parse_checked(data: bytes, parse: Callable[[dict[str, Any]], Parsed]) -> Parsed:
    """What `parse` makes of the entries of a JSON object.

    Raises:
        OtherVersionError: it has no checksum, or `parse` refuses its entries.
        ValueError: damaged, see `load_checked`.
    """
    entries = load_checked(data)
    try:
        return parse(entries)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OtherVersionError(error) from error


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
