"""Addresses without the credentials that may stand in them, for messages, logs and reports."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_SECRET_KEYS = "access_key|secret_key|session_token|password|passwd|token|sig|signature|key|credential[s]?"
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
_QUERY = re.compile(rf"(?i)(?<=[?&])([^=&#\s]*(?:{_SECRET_KEYS})[^=&#\s]*)=[^&#\s]*")


def without_credentials(text: str) -> str:
    """`text` with user names and passwords in URLs replaced by ***, and so the values of secret-looking query keys."""
    return _QUERY.sub(r"\1=***", _USER_INFO.sub("***@", text))


def cleaned(value: Any) -> Any:
    """The same plain data, every text in it without credentials."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {key: cleaned(entry) for key, entry in value.items()}
    return [cleaned(entry) for entry in value] if isinstance(value, list | tuple) else value


def redacted(name: str, data: bytes) -> bytes:
    """The bytes of a .json or .yaml file without credentials; of one that holds none, and of other kinds, as they are.

    Text by text and not the file as one, where a quote or a comma behind an address would pass for a part of it; unless
    the file is broken.
    """
    import yaml

    if not name.endswith((".json", ".yaml")):
        return data
    text = data.decode("utf-8", "replace")
    try:
        known = json.loads(data) if name.endswith(".json") else yaml.safe_load(data)
    except (ValueError, yaml.YAMLError):
        return without_credentials(text).encode()
    clean = cleaned(known)
    if clean == known and without_credentials(text) == text:  # none in a comment either
        return data
    if name.endswith(".json"):
        return json.dumps(clean, indent=1, ensure_ascii=False).encode()
    return yaml.safe_dump(clean, sort_keys=False, allow_unicode=True).encode()
