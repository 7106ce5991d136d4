"""Numbers and names as text, and text without the credentials in its URLs."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

from workers.metrics.estimate import measured


def percent(share: float) -> str:
    """`87 %` of draws; `>99 %` at most and `<1 %` at least, because draws make nothing certain.
    Halves are rounded up, as the report's script does.
    """
    if share > 0.99:
        return ">99 %"
    if share < 0.01:
        return "<1 %"
    return f"{math.floor(100 * share + 0.5)} %"


def signed_percent(value: float, error: float) -> str:
    """`+2.3 ± 5.9 %`, from a change in per cent and its standard error."""
    text = f"{measured(value, error)} %"
    return f"+{text}" if value >= 0 else text


def counted(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ranges(numbers: Sequence[int]) -> str:
    """Rising numbers, three or more in a row as a range: `0, 2-5, 9`."""
    rows: list[list[int]] = []
    for number in numbers:
        if rows and number == rows[-1][-1] + 1:
            rows[-1].append(number)
        else:
            rows.append([number])
    parts: list[str] = []
    for row in rows:
        parts += [f"{row[0]}-{row[-1]}"] if len(row) > 2 else map(str, row)
    return ", ".join(parts)


def some_trials(numbers: Sequence[int], total: int) -> str:
    """Some of the trials by their rising numbers: `3 of 9 trials (2, 4, 7)`."""
    return f"{len(numbers)} of {counted(total, 'trial')} ({ranges(numbers)})"


def describe_duration(seconds: float) -> str:
    """A duration in days, hours, minutes or seconds: `5.2 minutes`, `43 seconds`."""
    sizes = (("days", 86400), ("hours", 3600), ("minutes", 60))
    unit, size = next((pair for pair in sizes if seconds >= 2 * pair[1]), ("seconds", 1))
    amount = seconds / size
    decimals = 1 if amount < 9.95 else 0
    return f"{amount:.{decimals}f} {unit}"


def clean(text: str) -> str:
    """Text without control characters: a name in a file must not control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def markdown(text: str) -> str:
    """Text that Markdown shows as it is: also in a table, at the start of a line, and where `$`
    starts mathematics.
    """
    escaped = re.sub(r"([\\`*_\[\]<>|#~$&^])", r"\\\1", clean(text))
    # the first sign of a list, or of the line below a heading
    escaped = re.sub(r"^(\s*)([-+=])(?![.0-9])", r"\1\\\2", escaped)
    return re.sub(r"^(\s*[0-9]+)([.)])(?=\s|$)", r"\1\\\2", escaped)


def markdown_code(text: str) -> str:
    """Text as code inside a line of Markdown, outside of tables."""
    code = clean(text)
    quotes = "`" * (1 + max(map(len, re.findall("`+", code)), default=0))
    gap = " " if code.startswith("`") or code.endswith("`") else ""
    return f"{quotes}{gap}{code}{gap}{quotes}"


def markdown_block(text: str, language: str = "") -> str:
    """Lines as a block of code in Markdown."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return "\n".join([f"{fence}{language}", *map(clean, text.split("\n")), fence])


_FORMULA = re.compile(r"[=+\-@\t\r]")
_PLAIN_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def csv_cell(text: str) -> str:
    """Text for a cell of CSV. A spreadsheet takes one that begins with = + - @ for a formula, which
    an apostrophe prevents. A number stays one.
    """
    if _FORMULA.match(text) and not _PLAIN_NUMBER.fullmatch(text):
        return f"'{text}"
    return text


_LEFT = 'style="text-align: left"'  # notebooks align cells to the right


def html_table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table as a notebook shows it; no heading if `head` is empty."""

    def line(cells: Iterable[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag} {_LEFT}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"

    lines = [line(row, "td") for row in rows]
    if names := list(head):
        lines.insert(0, line(names, "th"))
    return f"<table>{''.join(lines)}</table>"


_SECRET_KEYS = (
    "access_key|secret_key|session_token|password|passwd|token|sig|signature|key|credential[s]?"
)
# The second form is of a password with an unquoted / ? or #; a path with @ behind a port looks
# alike.
_USER_INFO = re.compile(r"""(?<=://)(?:[^/?#\s:@"']*:[^\s"']*@|[^/?#\s]*@)""")
_QUERY = re.compile(rf"(?i)(?<=[?&])([^=&#\s]*(?:{_SECRET_KEYS})[^=&#\s]*)=[^&#\s]*")


def without_credentials(text: str) -> str:
    """The text with *** for user and password in URLs, and for the values of secret query
    parameters.
    """
    return _QUERY.sub(r"\1=***", _USER_INFO.sub("***@", text))


def redact_values(value: Any) -> Any:
    """The same plain data with every text in it redacted."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: redact_values(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [redact_values(entry) for entry in value]
    return value


def redact_file(name: str, data: bytes) -> bytes:
    """The bytes of a .json or .yaml file, redacted; unchanged if there is no credential, or for
    other files.

    Redacts value by value: in the raw text, a quote or comma after an address would look like a
    part of it. A damaged file is redacted as raw text.
    """
    from search_spaces.documents import parse_json, read_document, write_document
    from search_spaces.params import expect_mapping

    if not name.endswith((".json", ".yaml")):
        return data
    text = data.decode("utf-8", "replace")
    try:
        if name.endswith(".json"):
            plain = parse_json(data)
        else:
            plain = expect_mapping(read_document(data, name).data)
    except ValueError:
        return without_credentials(text).encode()
    redacted = redact_values(plain)
    if redacted == plain and without_credentials(text) == text:  # comments have none either
        return data
    if name.endswith(".json"):
        return json.dumps(redacted, indent=1, ensure_ascii=False).encode()
    return write_document(redacted, is_compact=False).encode()
