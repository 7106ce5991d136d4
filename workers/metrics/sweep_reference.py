"""The real images of a sweep: what they are, their features made once in its store, and read back for its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workers.data.reference import FILE, SCENES, build_reference, read_reference, reference_facts, write_reference
from workers.data.storage import Storage
from workers.metrics.extractors import Extractors
from workers.metrics.metric import Reference


class SweepReference:
    """The section `reference` of a sweep, seen through its instruments.

    facts: what the reference is, before it is made; None: the sweep has none, or no net reads it.

    Raises:
        ValueError: see `reference_facts`.
    """

    def __init__(
        self, storage: Storage, section: Mapping[str, Any] | None, instruments: Extractors, image_size: int
    ) -> None:
        self._storage, self._nets = storage, instruments.roles
        self._loaded: dict[str, Reference] = {}
        self._source: dict[str, Any] = {}
        self.facts: dict[str, Any] | None = None
        if section is not None and instruments.features is not None:
            scenes = section.get("source") == SCENES  # they are what they are, and so must the target's images be
            self._source = {**section, "size": image_size if scenes else instruments.features.side}
            self.facts = self._told()

    def prepare(self) -> bool:
        """Write the features of the real images to the store; False if they were there.

        Raises:
            ValueError: an image cannot be read, there are too few, or the store's are those of another reference.
        """
        missing = not self._storage.exists(FILE)
        if missing:
            first, *more = self._nets.values()
            write_reference(self._storage, FILE, build_reference(**self._source, extractor=first, also=more))
        self.load()
        return missing

    def load(self) -> dict[str, Reference]:
        """The store's reference by the column that metrics know its features by, read once.

        Raises:
            ValueError: it is not there, damaged, or of other images or nets than the sweep's.
        """
        assert self.facts is not None, "metrics that need a reference are left out without one"
        if not self._loaded:
            wanted = self.facts
            found = read_reference(self._storage, FILE, identity=wanted["extractor"], also=wanted.get("also"))
            if any(found.facts[key] != wanted[key] for key in ("source", "count", "resize")):
                raise ValueError(
                    f"{self._storage.shown}/{FILE}: made of {found.count} images of {found.source}, but the sweep "
                    f"names {wanted['count']} of {wanted['source']}; launch under another --name, or delete it"
                )
            first, *more = self._nets
            self._loaded = {first: Reference(found.features)}
            self._loaded |= {role: Reference(found.also[self._nets[role].name].features) for role in more}
        return self._loaded

    def _told(self) -> dict[str, Any]:
        first, *more = self._nets.values()
        facts = reference_facts(**self._source, identity=first.identity, also={net.name: net.identity for net in more})
        extractor = facts.pop("identity")
        identity = f"{facts['source']}, {facts['count']} images, by {extractor}"
        return {"identity": identity, **facts, "extractor": extractor}
