"""Short names of settings: `eagle-chain4 additive(k100,d0.1)`. `describe` is the long form.

A name has the drafter and its tree, the acceptance rule, and the sampling if it is not the baseline's. Values at their
defaults are omitted. A name that would be longer than 40 characters has abbreviated words, then fewer digits, then an
ellipsis for the last values of its longest parts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from orchestrator.results.describe import VANILLA, describe, format_number, shown_values
from search_spaces.acceptance import EXACT
from search_spaces.params import ParamField, Params
from search_spaces.trial import DecodingConfig, NoDrafter, Sampling

if TYPE_CHECKING:
    from orchestrator.results.trials import TrialRecord

MAX_NAME = 40  # characters
NO_SETTING = "invalid setting"  # of a trial for which the search proposed an invalid config
_HASH = 4  # hex digits, at least
_DIGITS = 4  # significant digits of the numbers in a description
_SYMBOLS = {
    "delta": "d", "lambda": "l", "nu": "n", "budget": "b", "slope": "s", "below": "b", "above": "a", "tolerance": "t",
    "radius": "r", "temperature": "T", "depth": "d", "width": "w", "nodes": "n", "length": "",
}  # fmt: skip
_ABBREVIATIONS = {
    "independent": "indep", "dynamic": "dyn", "adjacency": "adj", "static": "stat", "additive": "add",
    "multiplicative": "mul", "grouped": "grp", "constant": "const", "linear": "lin", "exponential": "exp",
    "sampling": "at", "optimal": "opt", "cosine": "cos", "coupled": "cpl",
}  # fmt: skip


class _Part(NamedTuple):
    """A kind and its values, in one part of a name. glue: what separates it from the part before."""

    glue: str
    kind: str
    values: tuple[tuple[ParamField, Any], ...]

    def text(self, *, short: bool, digits: int, shown: int) -> str:
        """shown: number of values to write; an ellipsis stands for the others."""
        kind = _ABBREVIATIONS.get(self.kind, self.kind) if short else self.kind
        values = [_value(field, value, digits, short=short) for field, value in self.values[:shown]]
        values += ["…"] if shown < len(self.values) else []
        if [field.key for field, _ in self.values] == ["length"]:
            return f"{self.glue}{kind}{values[0]}"
        return f"{self.glue}{kind}({','.join(values)})" if values else f"{self.glue}{kind}"


class SettingNames:
    """The names of a sweep's settings, of at most 40 characters; different settings have different names.

    A setting whose name is taken by an earlier one gets a hash: name the settings in the order of their trials.
    baseline: sampling that names omit; None names every sampling in full.
    """

    def __init__(self, baseline: Sampling | None) -> None:
        self._baseline = baseline
        self._names: dict[DecodingConfig, str] = {}
        self._taken: set[str] = set()

    @classmethod
    def of(cls, records: Iterable[TrialRecord], baseline: Sampling | None) -> Self:
        """The names of the settings of a sweep's finished trials."""
        names = cls(baseline)
        for record in sorted(records, key=lambda record: record.number):
            names.name(record.config)
        return names

    def name(self, config: DecodingConfig | None) -> str:
        """The setting's name."""
        if config is None:
            return NO_SETTING
        if config not in self._names:
            self._names[config] = self._new_name(config)
            self._taken.add(self._names[config])
        return self._names[config]

    def describe(self, config: DecodingConfig | None) -> str:
        """The setting in words."""
        return NO_SETTING if config is None else describe(config, self._baseline, _DIGITS)

    def _new_name(self, config: DecodingConfig) -> str:
        parts = _parts(config, self._baseline)
        name, digest, length = _fit(parts, MAX_NAME), config.digest(), _HASH
        while name in self._taken:
            name = f"{_fit(parts, MAX_NAME - length - 1)}#{digest[:length]}"
            length += 1
        return name


def _parts(config: DecodingConfig, baseline: Sampling | None) -> list[_Part]:
    rule = config.acceptance
    if isinstance(config.drafter, NoDrafter):
        parts = [_Part("", VANILLA, ())]
    else:
        parts = [_part("", config.drafter), _part("-", config.policy)]
        if rule.neighbourhood != EXACT.neighbourhood:
            parts.append(_part(" ", rule.neighbourhood))
        if rule.schedule != EXACT.schedule:
            parts.append(_part(" " if len(parts) == 2 else "+", rule.schedule, with_defaults=True))
        if len(parts) == 2:
            parts.append(_Part(" ", "exact", ()))
        if rule.resampling != EXACT.resampling:
            resampling = (type(rule).fields()["resampling"], rule.resampling)
            parts[-1] = parts[-1]._replace(values=(*parts[-1].values, resampling))
    if config.sampling is not None and config.sampling != baseline:
        fields = Sampling.fields().values()
        values = ((field, getattr(config.sampling, field.name)) for field in fields)
        changed = [(f, v) for f, v in values if baseline is None or v != getattr(baseline, f.name)]
        parts.append(_Part(" ", "sampling", tuple(changed)))
    return parts


def _part(glue: str, params: Params, *, with_defaults: bool = False) -> _Part:
    return _Part(glue, params.kind, tuple(shown_values(params, with_defaults=with_defaults)))


def _value(field: ParamField, value: Any, digits: int, *, short: bool) -> str:
    if isinstance(value, str):  # no two fields share a choice
        return _ABBREVIATIONS.get(value, value) if short else value
    if isinstance(value, tuple) and any(isinstance(entry, tuple) for entry in value):
        return f"n{len(value)}"  # the paths of a tree's nodes
    entries = value if isinstance(value, tuple) else (value,)
    return _SYMBOLS.get(field.key, field.key) + "..".join(format_number(entry, digits) for entry in entries)


def _fit(parts: list[_Part], limit: int) -> str:
    """The parts as text of at most `limit` characters: in full, abbreviated, or without last values of the longest."""
    for short, digits in ((False, 3), (True, 3), (True, 2)):
        text = "".join(part.text(short=short, digits=digits, shown=len(part.values)) for part in parts)
        if len(text) <= limit:
            return text
    shown = [len(part.values) for part in parts]
    while any(shown):
        texts = [part.text(short=True, digits=2, shown=count) for part, count in zip(parts, shown, strict=True)]
        longest = max((i for i, count in enumerate(shown) if count), key=lambda i: len(texts[i]))
        shown[longest] -= 1
        texts[longest] = parts[longest].text(short=True, digits=2, shown=shown[longest])
        text = "".join(texts)
        if len(text) <= limit:
            return text
    return f"{text[: limit - 1]}…"
