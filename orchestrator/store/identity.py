"""What a resumed sweep's results depend on must be what it was when the sweep started."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from orchestrator.store.files import Identity
from search_spaces.documents import describe_differences, differences
from workers.data.storage import Storage
from workers.loading.hub import SCHEME


class IdentityError(ValueError):
    """The store's results depend on other weights, captions or settings; the message names them,
    and the fix.
    """


def check_unchanged(
    storage: Storage, stored: Identity, now: Mapping[str, Any], keys: Collection[str]
) -> None:
    """Check that these keys of the stored identity have the values of now.

    Raises:
        IdentityError: some have changed.
    """
    before = stored.to_mapping()
    changes = differences({key: before[key] for key in keys}, {key: now[key] for key in keys})
    if not changes:
        return
    changes.pop("experiment", None)  # a digest of others, and of the models' dtype
    changed = describe_differences(changes) or "the experiment, by the models' dtype"
    moved = [
        stored.files.get(key.removeprefix("models."), "")
        for key in changes
        if key.startswith("models.")
    ]
    pinned = ", ".join(reference for reference in moved if reference.startswith(SCHEME))
    changed += f" (the sweep has {pinned})" if pinned else ""
    raise IdentityError(
        f"{storage.display_name}: changed since this sweep started: {changed}; launch under "
        "another --name, or restore the originals"
    )
