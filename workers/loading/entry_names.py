"""How a command line names an entry of a models.yaml: "models.yaml#entry"."""

from __future__ import annotations

from pathlib import Path

SIGN = "#"


def split_entry(text: str | None) -> tuple[str | None, str | None]:
    """File and entry, either None if not said. A file of that whole name counts as one."""
    if text is None or Path(text).expanduser().is_file():
        return text, None
    file, sign, entry = text.rpartition(SIGN)
    return (file, entry) if sign and file else (text, None)
