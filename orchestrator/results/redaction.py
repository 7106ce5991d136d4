"""Removes credentials in URLs from messages, logs and reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from search_spaces.documents import parse_json

_SECRET_KEYS = "access_key|secret_key|session_token|password|passwd|token|sig|signature|key|credential[s]?"
# The second form is of a password with an unquoted / ? or #; a path with @ behind a port looks alike.
_USER_INFO = re.compile(r"""(?<=://)(?:[^/?#\s:@"']*:[^\s"']*@|[^/?#\s]*@)""")
_QUERY = re.compile(rf"(?i)(?<=[?&])([^=&#\s]*(?:{_SECRET_KEYS})[^=&#\s]*)=[^&#\s]*")


def without_credentials(text: str) -> str:
    """The text with *** for user and password in URLs, and for the values of secret query parameters."""
    return _QUERY.sub(r"\1=***", _USER_INFO.sub("***@", text))


def redact_values(value: Any) -> Any:
    """The same plain data with every text in it redacted."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: redact_values(entry) for key, entry in value.items()}
    return [redact_values(entry) for entry in value] if isinstance(value, list | tuple) else value


def redact_file(name: str, data: bytes) -> bytes:
    """The bytes of a .json or .yaml file, redacted; unchanged if there is no credential, or for other files.

    Redacts value by value: in the raw text, a quote or comma after an address would look like a part of it. A damaged
    file is redacted as raw text.
    """
    import yaml

    if not name.endswith((".json", ".yaml")):
        return data
    text = data.decode("utf-8", "replace")
    try:
        plain = parse_json(data) if name.endswith(".json") else yaml.safe_load(data)
    except (ValueError, yaml.YAMLError):
        return without_credentials(text).encode()
    redacted = redact_values(plain)
    if redacted == plain and without_credentials(text) == text:  # comments have none either
        return data
    if name.endswith(".json"):
        return json.dumps(redacted, indent=1, ensure_ascii=False).encode()
    return yaml.safe_dump(redacted, sort_keys=False, allow_unicode=True).encode()
