"""One process at a time: a lock beside a sweep's files, which the system takes back from whoever dies."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager

from workers.data.storage import Storage


@contextmanager
def held(storage: Storage, name: str) -> Iterator[bool]:
    """Hold a lock while the block runs; False if another process holds it. A storage that is not on this machine has
    no locks: True.
    """
    path = storage.path(name)
    if path is None:
        yield True
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
