"""MLflow's shared views as its interface reads them."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

PACKED = "deflate;"


def read_view(text: str) -> dict[str, Any]:
    """The state in the tag of a shared view."""
    assert text.startswith(PACKED)
    view: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(text[len(PACKED) :])))
    return view
