"""The real images of a sweep: described up front, their features computed once into the store and
read for metrics.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.data.captions import SCENES
from workers.data.records import ShardError
from workers.data.reference import (
    FILE,
    build_reference,
    read_reference,
    reference_facts,
    write_reference,
)
from workers.data.storage import Storage
from workers.metrics.definition import FEATURES
from workers.metrics.extractors import Extractors
from workers.metrics.metric import ReferenceFeatures

_FIX = "delete it; --resume computes it again"


class SweepReference:
    """The section `reference` of a sweep, as its feature extractors read it.

    `facts` says what the reference is, before it is computed; None if the sweep has no reference,
    or no extractor for it.

    Raises:
        ValueError: see `reference_facts`.
    """

    def __init__(
        self,
        storage: Storage,
        section: Mapping[str, Any] | None,
        extractors: Extractors,
        image_size: int,
    ) -> None:
        self._storage = storage
        self._by_role = extractors.by_role
        self._loaded: dict[str, ReferenceFeatures] = {}
        self.facts: dict[str, Any] | None = None
        if section is not None and FEATURES in self._by_role:
            # they have one size, which must be that of the target's images
            scenes = section.get("source") == SCENES
            side = image_size if scenes else self._by_role[FEATURES].side
            self._source = {**section, "size": side, "extractors": tuple(self._by_role.values())}
            facts = dict(reference_facts(**self._source))
            extractor = facts.pop("identity")
            identity = f"{facts['source']}, {facts['count']} images, by {extractor}"
            self.facts = {"identity": identity, **facts, "extractor": extractor}

    def prepare(self) -> bool:
        """Write the features of the real images to the store; False if they exist.

        Raises:
            ValueError: an image cannot be read, there are too few, or the store has those of
                another reference.
        """
        missing = not self._storage.exists(FILE)
        if missing:
            write_reference(self._storage, FILE, build_reference(**self._source))
        self.load()
        return missing

    def load(self) -> dict[str, ReferenceFeatures]:
        """The store's reference by the column of its features, read once.

        Raises:
            ShardError: it is missing or damaged.
            ValueError: it is of other images or extractors than the sweep's.
        """
        assert self.facts is not None, "metrics that need a reference are not selected without one"
        if not self._loaded and not self._storage.exists(FILE):
            raise ShardError({FILE: f"{self._storage.locate(FILE)}: missing"})
        if not self._loaded:
            facts = self.facts
            extractors = tuple(self._by_role.values())
            stored = read_reference(self._storage, FILE, extractors=extractors, fix=_FIX)
            if any(stored.facts[key] != facts[key] for key in ("source", "count", "resize")):
                raise ValueError(
                    f"{self._storage.locate(FILE)}: computed from {stored.facts['count']} images "
                    f"of {stored.facts['source']}, but the sweep has {facts['count']} of "
                    f"{facts['source']}; launch with another --name, or delete the file"
                )
            columns = zip(self._by_role, stored.features, strict=True)
            self._loaded = {role: ReferenceFeatures(features) for role, features in columns}
        return self._loaded
