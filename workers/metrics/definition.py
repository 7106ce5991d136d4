"""What a metric is: its better direction, its unit, and what it is computed from.

This module does without torch, so that the results of a sweep can be read without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, Self, get_args

from search_spaces.constraints import check_metric
from search_spaces.params import ConfigError, at, expect_mapping, unknown_choice
from search_spaces.plain_data import fit_entries

Direction = Literal["maximize", "minimize"]
REFERENCE = "reference"
BASELINE = "baseline"
TIMINGS = "timings"
CLASSIFIER = "classifier"
FEATURES: Final = "features"  # column of the sweep's feature extractor
MANIFOLD: Final = "manifold"  # column that precision and recall read instead, where it exists
ATTRIBUTES = "attributes"  # attributes of scenes, which the feature extractor reads
IMAGES = "images"  # decoded from their tokens, with their captions
TOKENS: Final = "tokens"  # column of the images' tokens, where a metric needs them
SCORE_PREFIX = "score."  # prefix of columns with a score for each image
# Inputs that need no neural network.
COUNTS = frozenset({TIMINGS, "emitted", "passes", "depth", "caption_id", "sample"})
# Inputs that a target without pixels provides.
OF_CODES = COUNTS | {TOKENS, BASELINE}
_NO_FEATURES = OF_CODES | {REFERENCE, CLASSIFIER, ATTRIBUTES, IMAGES}
# of the counts, what depends on how images were decoded
_OF_WORK = COUNTS - {"caption_id", "sample"}
_STORED: Mapping[str, Any] = {
    "direction": str,
    "unit": str,
    "about": str,
    "needs": tuple[str, ...],
    "definition": str,
    "is_gain": bool,
    "unbiased": bool,
}
_OPTIONAL = {"definition", "is_gain", "unbiased"}  # of these
_TIME_UNITS = {"s", "ms", "min", "h"}
_RATIO_UNIT = "x"


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a trial."""

    name: str
    direction: Direction  # whether more or less is better
    unit: str = ""
    about: str = ""  # what it measures, in one line
    # Columns of the images, or any of REFERENCE, BASELINE, TIMINGS, CLASSIFIER, ATTRIBUTES, IMAGES.
    needs: tuple[str, ...] = ()
    vanilla: float | None = None  # vanilla's value, where the definition fixes it
    # What a sweep's own metric computes: another sweep may give its name to another metric.
    definition: str = ""
    # Whether it is a value of the images minus vanilla's, such as fid_gain. Another metric of
    # vanilla's images compares them one by one, or is not known.
    is_gain: bool = False
    # Whether its mean does not depend on the number of images, though it is of their features.
    unbiased: bool = False

    def __post_init__(self) -> None:
        if self.direction not in get_args(Direction):
            raise ConfigError(
                ("metrics", self.name, "direction"),
                unknown_choice(self.direction, get_args(Direction)),
            )

    def to_mapping(self) -> dict[str, Any]:
        """All that the results of a sweep depend on, as plain data, without the name."""
        own: dict[str, Any] = {"definition": self.definition} if self.definition else {}
        for key in ("is_gain", "unbiased"):
            if getattr(self, key):
                own[key] = True
        return {
            "direction": self.direction,
            "unit": self.unit,
            "about": self.about,
            "needs": list(self.needs),
        } | own

    @classmethod
    def from_mapping(cls, name: str, given: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote. Raises ConfigError if a part is missing or has the wrong
        type.
        """
        with at(name):
            parts = fit_entries(_STORED, expect_mapping(given))
            if missing := _STORED.keys() - parts.keys() - _OPTIONAL:
                raise ConfigError((), f"lacks {', '.join(sorted(missing))}")
            for key in ("unit", "about", "definition"):
                if not parts.get(key, "").isprintable():
                    raise ConfigError(
                        (key,), f"must have no control characters, got {parts[key]!r}"
                    )
            return cls(check_metric(name), **parts)

    @property
    def meaning(self) -> dict[str, Any]:
        """What decides whether two metrics of one name are one, as plain data: what it is computed
        from, whether vanilla's value is taken off, and of a sweep's own metric its definition.
        """
        return {
            "needs": sorted(self.needs),
            "is_gain": self.is_gain,
            "definition": self.definition,
        }

    @property
    def is_of_counts(self) -> bool:
        """Whether it is computed from counts and times alone, and so says nothing about the images'
        quality.
        """
        return COUNTS.issuperset(self.needs)

    @property
    def is_statistic(self) -> bool:
        """Whether it is of the features of all images together, and its mean depends on their
        number.
        """
        features = {
            need
            for need in self.needs
            if need not in _NO_FEATURES and not need.startswith(SCORE_PREFIX)
        }
        return bool(features) and not self.unbiased and ATTRIBUTES not in self.needs

    @property
    def is_of_vanilla(self) -> bool:
        """Whether it compares a trial's images with vanilla's, so that vanilla's own value follows
        from the definition.
        """
        return BASELINE in self.needs

    @property
    def is_of_distribution(self) -> bool:
        """Whether settings whose images have one distribution have one value: it is of the images'
        quality alone, and compares them with vanilla's, if at all, as a gain.
        """
        if self.is_of_counts or not _OF_WORK.isdisjoint(self.needs):
            return False
        return self.is_gain or not self.is_of_vanilla

    @property
    def is_time(self) -> bool:
        """Whether its values are times or rates, such as s/image, which hold for one machine
        only.
        """
        return TIMINGS in self.needs and not _TIME_UNITS.isdisjoint(self.unit.split("/"))

    @property
    def is_speed(self) -> bool:
        """Whether a better value is faster."""
        return self.is_time or (TIMINGS in self.needs and self.unit == _RATIO_UNIT)

    @property
    def no_worse(self) -> str:
        """The operator of a limit: `<=` where less is better."""
        if self.direction == "minimize":
            return "<="
        return ">="

    @property
    def better(self) -> str:
        """What to call a better trial: `faster` for a speed, else `better fid`."""
        if self.is_speed:
            return "faster"
        return f"better {self.name}"

    @property
    def best(self) -> str:
        """What to call the best trial: `fastest` for a speed, else `best fid`."""
        if self.is_speed:
            return "fastest"
        return f"best {self.name}"

    @property
    def best_lossless(self) -> str:
        """What to call the best lossless trial: `fastest lossless`, else `lossless with the best
        target_passes`.
        """
        if self.is_speed:
            return "fastest lossless"
        return f"lossless with the {self.best}"
