"""The flat sections of a sweep's file, each key with its range, sentence and default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from search_spaces.params import ConfigError, Params, Range, not_one_of
from search_spaces.samplers import SAMPLERS

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
BUILTIN = "builtin"  # the weights that come with the package
NO_REFERENCE = "none"
SEEDS = Range(0, 2**63 - 1)  # they are kept as 64-bit integers with sign


@dataclass(frozen=True, slots=True)
class SweepHeader(Params):
    """The keys of a sweep that stand in no section."""

    name: Annotated[str, "name of the sweep, which becomes a folder's"]
    about: Annotated[str, "what it is for, in a sentence"] = ""
    seed: Annotated[int, "seed of all random numbers of images", SEEDS] = 0

    def check(self) -> None:
        if not NAME.fullmatch(self.name):
            problem = "use up to 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first"
            raise ConfigError(("name",), f"{self.name!r} cannot be a folder; {problem}")


@dataclass(frozen=True, slots=True)
class Models(Params):
    """The target with its drafters, and the device. `models: TEXT` is short for `models: {file: TEXT}`.

    A ready sweep names an entry only; `launch --models FILE` gives the file.
    """

    file: Annotated[str, "'builtin', a folder that `specfrontier train` made, or a models.yaml"] = BUILTIN
    name: Annotated[str | None, "entry of the models.yaml"] = None
    device: Annotated[Literal["auto", "cpu", "cuda"], "where decoding runs; auto is a GPU if there is one"] = "auto"

    def __str__(self) -> str:
        return self.file if self.name is None else f"{self.name} of {self.file}"


@dataclass(frozen=True, slots=True)
class Captions(Params):
    """What is drawn: procedural scenes that nothing was trained on, the classes of ImageNet, or captions of a file.

    Which of a file's captions, and of an image's several ones (COCO) which, does not depend on the machine.
    """

    source: Annotated[
        str, "'scenes', 'classes' (of ImageNet), or a .txt, .csv, .tsv, .jsonl, .json (COCO) or .parquet file"
    ] = "scenes"
    count: Annotated[int, "number of captions", Range(1)] = 192
    seed: Annotated[int, "which scenes, or which captions of a file", SEEDS] = 1
    column: Annotated[str | None, "column of the captions in a table"] = None
    choose: Annotated[
        Literal["seeded", "first", "longest"], "which of the several captions that COCO has of an image"
    ] = "seeded"


@dataclass(frozen=True, slots=True)
class Reference(Params):
    """The real images of `fid`."""

    source: Annotated[str, "'scenes', a folder of images, a reference.parquet, or 'none' (then there is no fid)"] = (
        "scenes"
    )
    count: Annotated[int, "number of images, at most", Range(1)] = 4096
    seed: Annotated[int, "which scenes", SEEDS] = 2


@dataclass(frozen=True, slots=True)
class Quality(Params):
    """Shards that measure quality, at the batch size of the best throughput."""

    batch: Annotated[int, "images drawn at once", Range(1)] = 48
    shard: Annotated[int, "captions per shard", Range(1)] = 48
    samples: Annotated[int, "images per caption", Range(1)] = 1


@dataclass(frozen=True, slots=True)
class Timing(Params):
    """Shards that measure speed: vanilla and the setting take turns on the same captions."""

    batch: Annotated[int, "images drawn at once", Range(1)] = 1
    images: Annotated[int, "captions", Range(1)] = 8
    repetitions: Annotated[int, "turns", Range(1)] = 2


@dataclass(frozen=True, slots=True)
class Search(Params):
    """How settings are proposed. `options` are what the sampler itself may be told."""

    sampler: Annotated[str, "how settings are proposed"] = "tpe"
    parallel: Annotated[int, "trials under way at once", Range(1)] = 2
    seed: Annotated[int, "seed of the proposals", SEEDS] = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    def check(self) -> None:
        if self.sampler not in SAMPLERS:
            raise ConfigError(("sampler",), not_one_of(self.sampler, SAMPLERS))


@dataclass(frozen=True, slots=True)
class Budget(Params):
    """When a sweep ends: at the first limit reached."""

    trials: Annotated[int, "finished trials, enqueued ones included", Range(1)] = 24
    images: Annotated[int | None, "images drawn", Range(1)] = None
    hours: Annotated[float | None, "wall clock of one run (a resumed sweep has them anew)", Range(0, open_low=True)] = (
        None
    )
