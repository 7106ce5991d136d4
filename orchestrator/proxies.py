"""Proxies are for other machines: requests to this one do not go through them."""

from __future__ import annotations

import os

_LOCAL = ("localhost", "127.0.0.1", "::1")
_ALL = "*"


def without_proxy(*hosts: str) -> dict[str, str]:
    """The environment variable that excepts this machine, and `hosts`, from the proxies of
    http_proxy and the like. It keeps the user's own exceptions.
    """
    given = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in given.split(",") if name.strip()]
    if _ALL in names:
        return {}
    # libraries prefer it to NO_PROXY
    return {"no_proxy": ",".join(dict.fromkeys((*names, *_LOCAL, *hosts)))}
