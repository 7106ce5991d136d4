"""Images that earlier sweeps of the same models have generated: a new sweep takes their rows
over.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa

from workers.data.records import ShardError, read_shard
from workers.data.shards import QualityShard
from workers.data.storage import Storage
from workers.decoding.state import Request

_logger = logging.getLogger(__name__)

_Image = tuple[int, int]  # a caption's id, and the sample
_IDENTIFYING = ("caption_id", "sample", "caption")


@dataclass(frozen=True, slots=True)
class EarlierImages:
    """The images of one earlier sweep, whose results depend on the same weights, seed and
    extractors.
    """

    storage: Storage
    shards: Mapping[str, Sequence[str]]  # names of their files, by digest of the config
    # File and caption's text of each image, by digest of the config.
    _files: dict[str, dict[_Image, tuple[str, str]]] = field(default_factory=dict)

    @classmethod
    def open(cls, plain: Mapping[str, Any]) -> Self | None:
        """The images of a sweep in plain data: {"store": a folder or URI, "shards": {digest:
        [name]}}; None if the store cannot be reached.
        """
        try:
            return cls(Storage(plain["store"]), plain["shards"])
        except ValueError as error:
            _logger.warning("%s; its images are generated again", error)
            return None

    def find(self, shard: QualityShard, requests: Sequence[Request]) -> pa.Table | None:
        """The rows of a shard's images, in the order of `requests`; None unless this sweep has them
        all, readable.

        An image depends on its config, its caption and its sample alone, so it may be in a shard of
        any size.
        """
        known = self._places(shard.config.digest())
        if not known:
            return None
        names = set[str]()
        for request in requests:
            place = known.get((request.caption_id, request.sample))
            if place is None or place[1] != request.caption:
                return None
            names.add(place[0])
        try:
            tables = [
                read_shard(self.storage, name, kind=QualityShard.kind)[0] for name in sorted(names)
            ]
        except (OSError, ShardError):
            return None
        # shards of earlier versions lack columns
        table = pa.concat_tables(tables, promote_options="default")
        images = zip(table["caption_id"].to_pylist(), table["sample"].to_pylist(), strict=True)
        rows = {image: row for row, image in enumerate(images)}
        return table.take([rows[request.caption_id, request.sample] for request in requests])

    def captions(self, digest: str) -> list[tuple[int, str]]:
        """Id and text of each caption of a setting's images, in their order."""
        places = self._places(digest).items()
        return list(dict.fromkeys((caption, text) for (caption, _), (_, text) in places))

    def _places(self, digest: str) -> dict[_Image, tuple[str, str]]:
        if digest not in self._files:
            self._files[digest] = self._index(self.shards.get(digest, ()))
        return self._files[digest]

    def _index(self, names: Sequence[str]) -> dict[_Image, tuple[str, str]]:
        """The file and the caption's text of each image; those in files that cannot be read are
        left out.
        """
        found: dict[_Image, tuple[str, str]] = {}
        for name in names:
            try:
                table, _ = read_shard(self.storage, name, _IDENTIFYING, kind=QualityShard.kind)
            except (OSError, ShardError):
                continue
            for caption, sample, text in zip(
                *(table[column].to_pylist() for column in _IDENTIFYING), strict=True
            ):
                found[caption, sample] = (name, text)
        return found
