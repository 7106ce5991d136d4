"""The sections of a sweep's file, each key with its range, description and default."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Any, Literal

from search_spaces.constraints import check_metric
from search_spaces.params import ConfigError, Params, Range, at, expect_mapping
from search_spaces.presets import PRESETS
from search_spaces.samplers import SAMPLERS, PoolOptions
from search_spaces.trial import SECTIONS, DecodingConfig, Sampling

BUILTIN = "builtin"  # the weights that are part of the package
NO_REFERENCE = "none"
CLIP_FOLDER = "model_name_or_path"  # argument of a metric of torchmetrics
_SEEDS = Range(0, 2**63 - 1)  # stored as signed 64-bit integers
_MAX_LABEL_LENGTH = 80
_ERROR_RATE = 0.05  # default error rate of a race
_PATIENCE = 5  # default number of trials of a plateau
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_WORD_STARTS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LABEL = re.compile(r"[a-zA-Z0-9]([a-zA-Z0-9_.-]{0,61}[a-zA-Z0-9])?")  # value of a label in Ray


@dataclass(frozen=True, slots=True)
class SweepHeader(Params):
    """The keys of a sweep outside its sections."""

    name: Annotated[str, "name of the sweep, and of its folder"]
    about: Annotated[str, "purpose in one sentence"] = ""
    seed: Annotated[int, "seed of all random numbers of images", _SEEDS] = 0

    def check(self) -> None:
        if not _NAME.fullmatch(self.name):
            problem = "use up to 64 of a-z, 0-9, dot, dash and underscore, a letter or digit first"
            raise ConfigError(("name",), f"{self.name!r} cannot name a folder; {problem}")


@dataclass(frozen=True, slots=True)
class Models(Params):
    """The target with its drafters, and the device. `models: TEXT` is short for `models: {file:
    TEXT}`.

    A ready space may name only an entry; `launch --models FILE` then gives the file.
    """

    file: Annotated[str, "'builtin', a folder that `specfrontier train` made, or a models.yaml"] = (
        BUILTIN
    )
    name: Annotated[str | None, "entry of the models.yaml"] = None
    device: Annotated[
        Literal["auto", "cpu", "cuda"], "where decoding runs; auto is a GPU if there is one"
    ] = "auto"

    def __str__(self) -> str:
        if self.name is None:
            return self.file
        return f"{self.name} of {self.file}"

    @classmethod
    def from_mapping(cls, mapping: object) -> Models:
        if isinstance(mapping, str):
            mapping = {"file": mapping}
        return super(Models, cls).from_mapping(mapping)


@dataclass(frozen=True, slots=True)
class Captions(Params):
    """Captions of the images: procedural scenes outside the training set, the classes of ImageNet,
    or those of a file or of a folder of captioned images.

    Which captions are chosen from a file, or from the several captions of an image (COCO), does not
    depend on the machine.
    """

    source: Annotated[
        str,
        "'scenes', 'classes' (of ImageNet), a .txt, .csv, .tsv, .jsonl, .json (COCO) or .parquet "
        "file, or a folder of captioned images",
    ] = "scenes"
    count: Annotated[int, "number of captions", Range(1, 1_000_000)] = 192
    seed: Annotated[int, "seed that chooses the scenes or captions", _SEEDS] = 1
    column: Annotated[str | None, "column of the captions in a table"] = None
    choose: Annotated[
        Literal["seeded", "first", "longest"], "choice among the several captions of a COCO image"
    ] = "seeded"


@dataclass(frozen=True, slots=True)
class Reference(Params):
    """The real images of `fid`. `reference: TEXT` is short for `reference: {source: TEXT}`."""

    source: Annotated[
        str, "'scenes', a folder of images, a reference.parquet, or 'none' (then without fid)"
    ] = "scenes"
    count: Annotated[int, "number of images, at most", Range(1, 10_000_000)] = 4096
    seed: Annotated[int, "seed of the scenes", _SEEDS] = 2

    @classmethod
    def from_mapping(cls, mapping: object) -> Reference:
        if isinstance(mapping, str):
            mapping = {"source": mapping}
        return super(Reference, cls).from_mapping(mapping)


@dataclass(frozen=True, slots=True)
class Quality(Params):
    """Shards that measure quality, at the batch size of the best throughput. No image depends on
    it.
    """

    batch: Annotated[
        Literal["auto"] | int,
        "images per batch; auto: 32 on a CPU, on a GPU the largest power of two up to 128 that "
        "fits its memory",
        Range(1, 65_536),
    ] = 48
    shard: Annotated[int, "captions per shard", Range(1)] = 48
    samples: Annotated[int, "images per caption", Range(1, 65_536)] = 1
    lossless: Annotated[
        Literal["check", "measure"],
        "of lossless settings: check draws only as many images as their speed and a check of their "
        "tokens need, because their quality is vanilla's; measure draws all",
    ] = "check"
    nodes: Annotated[
        Mapping[str, Any] | None,
        "Ray's labels of the nodes that generate, such as {gpu: h100}; left out: all that agree",
    ] = None

    def check(self) -> None:
        _check_labels(self.nodes)


@dataclass(frozen=True, slots=True)
class Timing(Params):
    """Sessions that measure what a step costs: vanilla and a setting of each shape in turn, on the
    same captions.

    Trials whose settings differ only in the rule's numbers (not in drafter, tree, sampling or kind
    of neighbourhood) have steps of one cost. A trial's `speedup` is the passes of all of its images
    times the costs of its shape, from all sessions that timed it.
    """

    batch: Annotated[
        int | tuple[int, ...],
        "images per batch, or a list of such: [1, 8] also measures `speedup_batch8` and "
        "`latency_batch8`",
        Range(1, 65_536),
    ] = 1
    images: Annotated[int, "images of each setting in a session, one per caption", Range(1)] = 8
    repetitions: Annotated[int, "how often a session repeats them, at most", Range(1, 10_000)] = 2
    precision: Annotated[
        float,
        "relative standard error of the costs at which no further repetition follows; 0 runs all",
        Range(0, 1),
    ] = 0.01
    nodes: Annotated[
        Mapping[str, Any] | None,
        "Ray's labels of the nodes that time, such as {gpu: a10g}; left out: those with the device "
        "of the first worker",
    ] = None

    def check(self) -> None:
        _check_labels(self.nodes)
        if not self.batches:
            raise ConfigError(("batch",), "must not be empty; give a batch size, or several")
        if repeated := [
            size for index, size in enumerate(self.batches) if size in self.batches[:index]
        ]:
            raise ConfigError(("batch",), f"has {repeated[0]} twice; give each batch size once")

    @property
    def batches(self) -> tuple[int, ...]:
        """The batch sizes at which settings are timed; `speedup` and `latency` are those of the
        first one.
        """
        if isinstance(self.batch, tuple):
            return self.batch
        return (self.batch,)


def _check_labels(nodes: Mapping[str, Any] | None) -> None:
    """Raises ConfigError unless `ray start --labels` accepts all values."""
    for key, value in (nodes or {}).items():
        if not isinstance(value, str) or not _LABEL.fullmatch(value):
            raise ConfigError(
                ("nodes", key),
                f"must be a label's value, such as a10g, got {value!r}; quote numbers",
            )


@dataclass(frozen=True, slots=True)
class Search(Params):
    """How configs are proposed. The sampler `replay` chooses among settings that are predicted
    beside the first trials: its options `pool` and `captions` say how many, and from how many
    recorded images.
    """

    sampler: Annotated[str, "how configs are proposed"] = "tpe"
    parallel: Annotated[int, "trials that run at once", Range(1, 100_000)] = 2
    seed: Annotated[int, "seed of the proposals", _SEEDS] = 0
    options: Annotated[Mapping[str, Any], "arguments of the sampler"] = field(default_factory=dict)

    def check(self) -> None:
        with at("sampler"):
            choice = SAMPLERS.lookup(self.sampler)
        if choice.from_pool:
            with at("options"):
                PoolOptions.split(self.options)


@dataclass(frozen=True, slots=True)
class Racing(Params):
    """Stops trials that another trial beats in all objectives, at the same number of captions
    (docs/racing.md).

    `racing: {rungs: [48, 96], error_rate: 0.05}` measures every trial on the first 48, the first 96
    and all captions. With `stop: dominated` a trial stops if another one dominates it by measured
    values; `error_rate` is then None. Without the section all trials take all captions. The
    baseline and the configs of `enqueue` are never stopped.
    """

    rungs: Annotated[
        tuple[int, ...], "numbers of captions after which trials may stop, rising", Range(2)
    ]
    stop: Annotated[
        Literal["significant", "dominated"],
        "stops trials that another one beats significantly, or that another one dominates by "
        "measured values",
    ] = "significant"
    error_rate: Annotated[
        float | None,
        "of stop 'significant': probability that any trial stops that no other one beats; 0.05 if "
        "left out",
        Range(0, 1),
    ] = None
    revive_above: Annotated[
        float,
        "at the end, stopped trials go on if their probability to be on the front is higher",
        Range(0, 1),
    ] = 0.05

    def check(self) -> None:
        if not self.rungs:
            raise ConfigError(
                ("rungs",), "must not be empty; give numbers of captions, or leave out `racing`"
            )
        for index, (low, high) in enumerate(pairwise(self.rungs)):
            if low >= high:
                problem = (
                    f"must be more than {low}, the rung before it, got {high}; give rising numbers "
                    "of captions"
                )
                raise ConfigError(("rungs", f"[{index + 1}]"), problem)
        if self.error_rate in (0, 1):
            problem = (
                f"must be above 0 and below 1, got {self.error_rate:g}; 0.05 is usual, without "
                "`racing` nothing stops"
            )
            raise ConfigError(("error_rate",), problem)
        if self.stop == "significant":
            object.__setattr__(self, "error_rate", self.error_rate or _ERROR_RATE)
        elif self.error_rate is not None:
            problem = (
                f"stop {self.stop!r} controls no error rate; remove it, or use `stop: significant`"
            )
            raise ConfigError(("error_rate",), problem)

    def check_captions(self, count: int) -> None:
        """Raises ConfigError if a rung is not below the number of captions."""
        for index, rung in enumerate(self.rungs):
            if rung >= count:
                problem = (
                    f"must be below the number of captions, {count}, got {rung}; lower it, or set "
                    "racing: null"
                )
                raise ConfigError(("racing", "rungs", f"[{index}]"), problem)


@dataclass(frozen=True, slots=True)
class Budget(Params):
    """When a sweep ends: at the first limit reached."""

    trials: Annotated[int, "finished trials, enqueued ones included", Range(1)] = 24
    images: Annotated[int | None, "generated images", Range(1)] = None
    hours: Annotated[
        float | None,
        "wall clock of the sweep, without the time between its launches",
        Range(0, open_low=True),
    ] = None
    plateau: Annotated[
        float | None,
        "ends earlier once the last `patience` trials added less than this share of the front's "
        "hypervolume",
        Range(0, 1, open_low=True),
    ] = None
    patience: Annotated[
        int | None, "trials of a plateau, those of enqueue not among them; 5 if left out", Range(1)
    ] = None

    @classmethod
    def from_mapping(cls, mapping: object) -> Budget:
        """`plateau: null` takes off a plateau, with its `patience`."""
        given = expect_mapping(mapping)
        if "plateau" in given and given["plateau"] is None:
            given.pop("patience", None)
        return super(Budget, cls).from_mapping(given)

    def check(self) -> None:
        if self.plateau is not None:
            object.__setattr__(self, "patience", self.patience or _PATIENCE)
        elif self.patience is not None:
            raise ConfigError(
                ("patience",),
                "goes with `plateau`, which is missing; give it, too, or leave this out",
            )


def read_metric(value: object) -> tuple[str, dict[str, Any] | None]:
    """An entry of `metrics`: a metric's name, or a class of torchmetrics with its arguments; as the
    name in the sweep and, for a class, the entry with that name.

        - speedup
        - {torchmetrics: image.TotalVariation}
        - {torchmetrics: image.SpectralAngleMapper, against: vanilla}

    The class and its arguments are checked where torchmetrics is imported
    (`workers.metrics.library`).

    Raises:
        ConfigError: neither of the two, or a name that no metric can have.
    """
    if not isinstance(value, Mapping):
        return check_metric(value), None
    given: dict[str, Any] = {"name": None, **expect_mapping(value)}
    label = given.get("torchmetrics")
    if not isinstance(label, str):
        raise ConfigError(
            ("torchmetrics",), f"must be a class such as image.TotalVariation, got {label!r}"
        )
    with at("name"):
        default = _WORD_STARTS.sub("_", label.rpartition(".")[2]).lower()
        given["name"] = name = check_metric(given["name"] or default)
    return name, given


@dataclass(frozen=True, slots=True)
class Objective(Params):
    """A metric to optimise. Without a direction it has the metric's own."""

    metric: Annotated[str, "name of a metric"]
    direction: Annotated[
        Literal["maximize", "minimize"] | None, "whether more or less is better"
    ] = None
    against: Annotated[
        Literal["vanilla"] | None,
        "`vanilla` for a metric, such as drift, that compares images with vanilla's",
    ] = None

    def check(self) -> None:
        with at("metric"):
            check_metric(self.metric)


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A config to run first, and its label."""

    label: str
    config: DecodingConfig

    @classmethod
    def read(cls, value: object, sampling: Sampling | None) -> Enqueued:
        """The name of a preset, or a mapping with the sections of a config, and optionally `preset`
        and `label`.

            [vanilla, {preset: eagle2, sampling: {temperature: 0, top_k: 0, top_p: 1, cfg: 3}},
             {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]

        `sampling` is the baseline's, used where the entry has none.

        Raises:
            ConfigError: an unknown preset or an invalid config.
        """
        if isinstance(value, str):
            config = PRESETS.lookup(value)
            return cls(value, config.with_sampling(config.sampling or sampling))
        given = expect_mapping(value, ("label", "preset", *SECTIONS))
        label = given.pop("label", None)
        preset = given.pop("preset", None)
        mapping: dict[str, Any] = {}
        if preset is not None:
            with at("preset"):
                mapping = PRESETS.lookup(preset).to_mapping()
        config = DecodingConfig.from_mapping(mapping | given, sampling)
        if label is None:
            label = preset
            if preset is None or given:
                label = _describe(config)
            return cls(label, config)
        if (not isinstance(label, str) or not label.strip() or not label.isprintable()
                or len(label) > _MAX_LABEL_LENGTH):  # fmt: skip
            problem = f"must be a line of 1 to {_MAX_LABEL_LENGTH} characters, got {label!r}"
            raise ConfigError(("label",), problem)
        return cls(label, config)

    def to_mapping(self) -> dict[str, Any]:
        return {"label": self.label, **self.config.to_mapping()}


def _describe(config: DecodingConfig) -> str:
    """A label from the kinds: `eagle chain additive constant`."""
    rule = config.acceptance
    if config.policy.bounds.nodes == 0:
        return "vanilla"
    words = [config.drafter.kind, config.policy.kind]
    if rule.is_relaxed:
        words += [rule.neighbourhood.kind, rule.schedule.kind]
    else:
        words.append("exact")
    return " ".join(words)
