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


def check_credentials(uri: str, prefix: str = "") -> None:
    """Check that a URI's key or password ends where it should: an unquoted / ? # or @ in it would cut it, and the rest
    would be taken for the host or the path, and displayed.

    Raises:
        ValueError: names the characters and their codes, without the URI. prefix: of the message.
    """
    scheme, _, rest = uri.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    user = host.rpartition("@")[0]
    is_cut = not host.startswith("[") and ":" in host and "@" not in host
    is_cut &= "@" in rest or not host.rpartition(":")[2].isdigit()
    if is_cut or "@" in user or any(character.isspace() for character in user):
        raise ValueError(
            f"{prefix}malformed {scheme}:// URI (not shown, it may hold keys); in a key or password write / as %2F, "
            "? as %3F, # as %23, @ as %40 and a space as %20"
        )
