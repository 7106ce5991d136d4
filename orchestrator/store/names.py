"""Short names of settings: `eagle-chain4 additive(k100,d0.1)`.

A name has the drafter and its tree, the acceptance rule, and the sampling where it differs from the
baseline's. Values at their defaults are omitted. A name that would be longer than 40 characters has
abbreviated words. If that is not enough, or if a number has many digits, values are rounded or
omitted and the name ends in a hash of the setting: `eagle-adj(n30,b0.75) add(k100,d0.14)#8629c1`.

A name depends on the setting and the baseline alone, so equal names mean equal settings, in one
sweep and across sweeps with one baseline. Where names stand in one table, all have abbreviated
words if one must (`SettingNames.alike`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto
from typing import Any, NamedTuple, Self

from search_spaces.acceptance import EXACT
from search_spaces.params import ParamField, Params
from search_spaces.trial import DecodingConfig, Sampling

VANILLA = "vanilla"
MAX_NAME = 40  # characters
NO_SETTING = "invalid setting"  # of a trial for which the search proposed an invalid config
_HASH = 6  # hex digits
_EXACT_DIGITS = 6  # significant digits of a number that is not rounded; those of a search have more
_EXACT = "exact"


def describe(config: DecodingConfig, baseline: Sampling | None = None) -> str:
    """The name of a setting without a limit on its length: with all values, and no words
    abbreviated. Different settings have different names.

    baseline: sampling that is omitted.
    """
    parts = _parts(config, baseline)
    text = _join(parts, _all_values(parts), short=False, digits=_EXACT_DIGITS)
    if all(part.is_exact for part in parts):
        return text
    return f"{text}#{_hash(config)}"


def title(label: str, setting: str) -> str:
    """A setting's name, after the label of its trial if it has one: `gsd: jacobi-chain15
    grouped`.
    """
    return ": ".join(dict.fromkeys(text for text in (label, setting) if text))


def trial_title(name: object, label: str, setting: str = "") -> str:
    """What names a trial in a sentence: `trial 5, gsd: jacobi-chain15 grouped`, or without its
    setting `trial 5, gsd` or `trial 8`.

    name: its number, after its sweep's name if there are several.
    """
    return ", ".join(text for text in (f"trial {name}", title(label, setting)) if text)


def family(config: DecodingConfig, *, short: bool = False) -> str:
    """The kinds without numbers, for colours and legends: `additive`, `exponential`, `exact`,
    `rows`, `vanilla`. short: with the abbreviations of names.
    """
    if config.is_vanilla:
        return VANILLA
    kinds = []
    if config.drafter.row_lag is not None:
        kinds.append("rows")
    parts = config.acceptance.relaxed_parts
    kinds += [part.short if short else part.kind for part in parts]
    return " ".join(kinds) or _EXACT


def format_number(value: float, digits: int) -> str:
    """A number with `digits` significant digits; whole numbers are written in full."""
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


class _Part(NamedTuple):
    """A kind and its values, in one part of a name."""

    glue: str  # what separates it from the part before
    kind: str
    abbreviation: str  # of the kind
    values: tuple[tuple[ParamField, Any], ...]

    def text(self, *, short: bool, digits: int, shown: int) -> str:
        """The part of a name. shown: number of values to write; the others are omitted."""
        kind = self.abbreviation if short else self.kind
        values = [_value(field, value, digits, short=short) for field, value in self.values[:shown]]
        if not kind and not values:
            return ""
        listed = ",".join(values)
        if values and kind and [field.key for field, _ in self.values] != ["length"]:
            listed = f"({listed})"
        return f"{self.glue}{kind}{listed}"

    @property
    def is_exact(self) -> bool:
        """Whether a name can have all values as they are."""
        return all(_is_exact(value) for _, value in self.values)


class Form(Enum):
    """How names are written: each abbreviated if it must be, all with abbreviated words, or in full
    without a limit.
    """

    OWN = auto()
    ABBREVIATED = auto()
    FULL = auto()


class SettingNames:
    """Names of settings, of at most 40 characters; different settings have different names.

    baseline: sampling that names omit; None names every sampling in full. form: the names' form;
    `FULL` has no limit.
    """

    def __init__(self, baseline: Sampling | None, form: Form = Form.OWN) -> None:
        self._baseline = baseline
        self._form = form
        self._names: dict[DecodingConfig, str] = {}

    @classmethod
    def across(cls, baselines: Iterable[Sampling | None], form: Form = Form.OWN) -> Self:
        """The names in several sweeps together. If their baselines differ, plain sampling is
        omitted instead.
        """
        different = set(baselines)
        if len(different) == 1:
            return cls(different.pop(), form)
        return cls(Sampling(), form)

    def alike(self, configs: Iterable[DecodingConfig]) -> SettingNames:
        """Names in which all words are abbreviated if those of one of these settings are."""
        if self._form is not Form.OWN:
            return self
        if any(_new_name(config, self._baseline, Form.OWN)[1] for config in configs):
            return self.abbreviated()
        return self

    def abbreviated(self) -> SettingNames:
        """Names in which all words are abbreviated."""
        return SettingNames(self._baseline, Form.ABBREVIATED)

    def name(self, config: DecodingConfig | None) -> str:
        """The setting's name."""
        if config is None:
            return NO_SETTING
        if self._form is Form.FULL:
            return self.describe(config)
        if config not in self._names:
            self._names[config] = _new_name(config, self._baseline, self._form)[0]
        return self._names[config]

    def describe(self, config: DecodingConfig | None) -> str:
        """The setting's name in full (see `describe`)."""
        return NO_SETTING if config is None else describe(config, self._baseline)


def _new_name(config: DecodingConfig, baseline: Sampling | None, form: Form) -> tuple[str, bool]:
    """The setting's name, and whether its words are abbreviated."""
    parts = _parts(config, baseline)
    words = (False, True) if form is Form.OWN else (True,)
    if all(part.is_exact for part in parts):
        for short in words:
            name = _join(parts, _all_values(parts), short=short, digits=_EXACT_DIGITS)
            if len(name) <= MAX_NAME:
                return name, short
    text, short = _fit(parts, MAX_NAME - _HASH - 1, words)
    return f"{text}#{_hash(config)}", short


def _hash(config: DecodingConfig) -> str:
    return config.digest()[:_HASH]


def _parts(config: DecodingConfig, baseline: Sampling | None) -> list[_Part]:
    if config.is_vanilla:
        parts = [_Part("", VANILLA, VANILLA, ())]
    else:
        parts = [_part("", config.drafter)]
        if config.drafter.has_drafts:
            parts.append(_part("-", config.policy))
        parts += _rule_parts(config)
        rule = config.acceptance
        if rule.resampling != EXACT.resampling:
            resampling = (type(rule).fields()["resampling"], rule.resampling)
            parts[-1] = parts[-1]._replace(values=(*parts[-1].values, resampling))
    if config.sampling is not None and config.sampling != baseline:
        parts += _sampling_parts(config.sampling, baseline)
    return parts


def _rule_parts(config: DecodingConfig) -> list[_Part]:
    kinds = config.acceptance.relaxed_parts
    if not kinds and config.drafter.has_drafts:
        return [_Part(" ", _EXACT, _EXACT, ())]
    return [_part("+" if place else " ", kind) for place, kind in enumerate(kinds)]


def _sampling_parts(sampling: Sampling, baseline: Sampling | None) -> list[_Part]:
    """The parts of the sampling that differ from the baseline's."""
    parts = []
    changed = []
    for field in Sampling.fields().values():
        value = getattr(sampling, field.name)
        if baseline is None or value != getattr(baseline, field.name):
            changed.append((field, value))
    if changed:
        parts.append(_Part(" ", "", "", tuple(changed)))
    dynamic = sampling.dynamic_temperature
    if dynamic != (baseline or Sampling()).dynamic_temperature:
        parts.append(_part(" ", dynamic))
    return parts


def _part(glue: str, params: Params) -> _Part:
    """A part with the values that are required or not at their defaults, the leading ones first."""
    values = []
    for field in params.fields().values():
        value = getattr(params, field.name)
        if value is not None and (field.required or value != field.default):
            values.append((field, value))
    rank = {key: place for place, key in enumerate(params.leading)}
    values.sort(key=lambda entry: rank.get(entry[0].key, len(rank)))
    return _Part(glue, params.kind, params.short, tuple(values))


def _is_exact(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(not isinstance(entry, tuple) and _is_exact(entry) for entry in value)
    return not isinstance(value, float) or float(format_number(value, _EXACT_DIGITS)) == value


def _value(field: ParamField, value: Any, digits: int, *, short: bool) -> str:
    if isinstance(value, str):  # no two fields of a part share a choice
        return field.abbreviations.get(value, value) if short else value
    if not isinstance(value, tuple):
        return field.symbol + format_number(value, digits)
    if any(isinstance(entry, tuple) for entry in value):
        return f"n{len(value)}"  # the paths of a tree's nodes
    return field.symbol + "..".join(format_number(entry, digits) for entry in value)


def _all_values(parts: list[_Part]) -> list[int]:
    """The number of values of each part."""
    return [len(part.values) for part in parts]


def _join(parts: list[_Part], shown: list[int], *, short: bool, digits: int) -> str:
    return "".join(
        part.text(short=short, digits=digits, shown=count)
        for part, count in zip(parts, shown, strict=True)
    )


def _fit(parts: list[_Part], limit: int, words: tuple[bool, ...]) -> tuple[str, bool]:
    """The parts as text of at most `limit` characters, and whether words are abbreviated. Values
    are rounded first, then the last ones of the longest parts are left out. Where no part has more
    than one, those in front go first: the rule's tells most.

    words: whether words may be abbreviated, in the order of preference.
    """
    shown = _all_values(parts)
    for short, digits in (*((short, 3) for short in words), (True, 2)):
        if len(text := _join(parts, shown, short=short, digits=digits)) <= limit:
            return text, short
    while len(text) > limit and any(shown):
        lengths = [
            len(part.text(short=True, digits=2, shown=count)) if count > 1 else 0
            for part, count in zip(parts, shown, strict=True)
        ]
        if any(lengths):
            place = lengths.index(max(lengths))
        else:
            place = shown.index(1)
        shown[place] -= 1
        text = _join(parts, shown, short=True, digits=2)
    return text[:limit], True
