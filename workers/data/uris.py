"""Characters of URIs that must be percent-encoded."""

from __future__ import annotations

import re
from urllib.parse import quote

SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_PLAIN = r"%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?@!$&'()*+,;=-]"
_QUOTED = re.compile(f"({_PLAIN})|.", re.DOTALL)


def unquoted_character(uri: str) -> str:
    """The first character that a URI can hold only percent-encoded: "%" of no code, "#" (a fragment names nothing in
    storage), a space, a bracket, a letter that is not ASCII. "" if there is none.
    """
    return next((match[0] for match in _QUOTED.finditer(uri) if not match[1]), "")


def quoted(uri: str) -> str:
    """The URI with these characters encoded."""
    return _QUOTED.sub(lambda match: match[1] or quote(match[0], safe=""), uri)
