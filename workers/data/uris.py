"""URIs of storage: what must be percent-encoded in them, and which parts of them are secret."""

from __future__ import annotations

import re
from urllib.parse import parse_qsl, quote, unquote, urlencode

_IPV6 = re.compile(r"(://(?:[^/?#]*@)?)\[[0-9A-Fa-f:.]+\]")
# Options of a URI that may be shown; all others may be secrets.
_PUBLIC_OPTIONS = ("region", "scheme", "endpoint_override")
# A character that means itself, or one that a URI can hold only percent-encoded: "%" of no code,
# "#" (a fragment names nothing in storage), a space, a bracket, a letter that is not ASCII.
_CHARACTER = re.compile(r"(%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?@!$&'()*+,;=-])|.", re.DOTALL)


def check_quoting(uri: str) -> None:
    """Check that every character of a URI means itself.

    Raises:
        ValueError: names the character, and gives the URI with it quoted, without credentials.
    """
    base, mark, query = uri.partition("?")
    if mark and query and "=" not in query:  # no options: the folder's name has a question mark
        character = "?"
        uri = f"{base}%3F{query}"
    else:
        host = _IPV6.sub(r"\1", uri, count=1)
        character = next((match[0] for match in _CHARACTER.finditer(host) if not match[1]), "")
    if not character:
        return
    good, _ = without_secrets(
        _CHARACTER.sub(lambda match: match[1] or quote(match[0], safe=""), uri)
    )
    if (code := quote(character, safe="")) not in good:
        raise ValueError(
            f"{good}: {character!r} in a key must be quoted in a URI; write it as {code}"
        )
    raise ValueError(f"storage: {character!r} must be quoted in a URI; write {good}")


def without_secrets(uri: str) -> tuple[str, tuple[str, ...]]:
    """A URI without its credentials, and the parts that were removed, as written and as decoded."""
    check_credentials(uri, "storage: ")
    scheme, _, rest = uri.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    tail = rest[len(host) :]
    account, _, server = host.rpartition("@")
    # a container or an account; only a password is secret
    if account and scheme.startswith("abfs"):
        name, _, account = account.partition(":")
        server = f"{name}@{server}"
    path, _, query = tail.partition("#")[0].partition("?")
    options = parse_qsl(query, keep_blank_values=True)
    public = [(key, value) for key, value in options if key in _PUBLIC_OPTIONS and "@" not in value]
    hidden = [value for key, value in options if (key, value) not in public]
    secrets: set[str] = set()
    for part in (account, *account.split(":", 1), *hidden):
        if part:
            secrets |= {part, unquote(part)}
    public_uri = f"{scheme}://{server}{path.rstrip('/')}"
    if public:
        public_uri += f"?{urlencode(public, safe=':/', quote_via=quote)}"
    return public_uri, tuple(sorted(secrets, key=len, reverse=True))


def check_credentials(uri: str, prefix: str = "") -> None:
    """Check that a URI's key or password ends where it should: an unquoted / ? # or @ in it would
    cut it, and the rest would be taken for the host or the path, and displayed.

    Raises:
        ValueError: names the characters and their codes, without the URI; the message begins with
            `prefix`.
    """
    scheme, _, rest = uri.partition("://")
    host = re.split("[/?#]", rest, maxsplit=1)[0]
    user = host.rpartition("@")[0]
    is_cut = not host.startswith("[") and ":" in host and "@" not in host
    is_cut &= "@" in rest or not host.rpartition(":")[2].isdigit()
    if is_cut or "@" in user or any(character.isspace() for character in user):
        raise ValueError(
            f"{prefix}malformed {scheme}:// URI (not shown, it may hold keys); in a key or "
            "password write / as %2F, ? as %3F, # as %23, @ as %40 and a space as %20"
        )
