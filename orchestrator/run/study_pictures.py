"""A trial's pictures as artifacts of its study, for Optuna's dashboard: links to the sweep's own files, no copies."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

from optuna.artifacts import ArtifactMeta
from optuna.storages import BaseStorage

from orchestrator.results.store import ARTIFACTS, TRIAL_PICTURES

_PREFIX = "artifacts:"  # of the attributes in which Optuna keeps what it knows of an artifact


def add_pictures(storage: BaseStorage, trial_id: int, digest: str, journal: Path) -> None:
    """Add the pictures of a config to a running trial, if they are beside the study's journal.

    The links are relative, so that the folder can be moved. A file system without links has no artifacts.
    """
    for index, (name, folder) in enumerate(TRIAL_PICTURES.items()):
        picture = journal.parent / folder / f"{digest}.png"
        if not digest or not picture.is_file():
            continue
        link = journal.parent / ARTIFACTS / f"{digest}-{index}"  # the dashboard serves hexadecimal digits and hyphens
        with suppress(OSError):
            link.parent.mkdir(exist_ok=True)
            with suppress(FileExistsError):
                link.symlink_to(Path("..", folder, picture.name))
            meta = ArtifactMeta(link.name, name, "image/png", None)
            storage.set_trial_system_attr(trial_id, _PREFIX + link.name, json.dumps(vars(meta)))
