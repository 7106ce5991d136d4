"""A setting in a few words: `eagle chain 4, additive k100 δ0.1`. Two settings never share their words."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.params import ParamField, Params
from search_spaces.trial import DecodingConfig, NoDrafter, Sampling

VANILLA = "vanilla"
SYMBOLS = {
    "delta": "δ",
    "lambda": "λ",
    "nu": "ν",
    "beta": "β",
    "budget": "ω",
    "temperature": "T",
    "k": "k",
    "depth": "d",
    "width": "w",
    "nodes": "n",
    "length": "",
}


def describe(config: DecodingConfig, baseline: Sampling | None = None, digits: int | None = None) -> str:
    """The setting in words: drafter and tree, acceptance, and the sampling where it is not `baseline`'s.

    What stands at its default is left out, but for the numbers of a schedule. digits: significant digits of the
    numbers, for reading; None writes them so that they can be told apart.
    """
    sampling = _sampling(config.sampling, baseline, digits)
    if isinstance(config.drafter, NoDrafter):
        return ", ".join([VANILLA, *sampling])
    drafted = [*_setting(config.drafter, digits), *_setting(config.policy, digits)]
    return ", ".join([" ".join(drafted), acceptance_in_words(config.acceptance, digits), *sampling])


def acceptance_in_words(rule: AcceptanceRule, digits: int | None = None) -> str:
    """The acceptance rule alone; `exact` for the exact one."""
    if rule == EXACT:
        return "exact"
    parts = [] if rule.neighbourhood == EXACT.neighbourhood else _setting(rule.neighbourhood, digits)
    if rule.schedule != EXACT.schedule:
        parts += _setting(rule.schedule, digits, everything=True)
    return " ".join([*parts, *([] if rule.resampling == EXACT.resampling else [f"{rule.resampling} resampling"])])


def family(config: DecodingConfig) -> str:
    """The kinds without their numbers, for colours and legends: `additive`, `exponential`, `exact`, `vanilla`."""
    if isinstance(config.drafter, NoDrafter):
        return VANILLA
    rule = config.acceptance
    kinds = [rule.neighbourhood.kind] if rule.neighbourhood != EXACT.neighbourhood else []
    if rule.schedule != EXACT.schedule:
        kinds.append(rule.schedule.kind)
    return " ".join(kinds) or "exact"


def _setting(setting: Params, digits: int | None, *, everything: bool = False) -> list[str]:
    """The kind, then each knob that is required or not at its default."""
    words = [setting.kind]
    for knob in setting.fields().values():
        value = getattr(setting, knob.name)
        if value is not None and (everything or knob.required or value != knob.default):
            words.append(_knob(knob, value, digits))
    return words


def _knob(knob: ParamField, value: Any, digits: int | None) -> str:
    if isinstance(value, str):
        return value  # the words of a setting's knobs are all different
    if isinstance(value, tuple) and any(isinstance(entry, tuple) for entry in value):
        paths = json.dumps(value, separators=(",", ":")).encode()
        return f"{len(value)} nodes #{hashlib.sha256(paths).hexdigest()[:8]}"
    text = "..".join(_number(entry, digits) for entry in value) if isinstance(value, tuple) else _number(value, digits)
    return f"{SYMBOLS.get(knob.key, knob.key.replace('_', ' ') + ' ')}{text}"


def _number(value: float, digits: int | None) -> str:
    if isinstance(value, int):
        return str(value)
    return repr(value).removesuffix(".0") if digits is None else f"{value:.{digits}g}"


def _sampling(sampling: Sampling | None, baseline: Sampling | None, digits: int | None) -> list[str]:
    """The sampling's knobs where they differ from the baseline's; all of them where there is no baseline."""
    if sampling is None or sampling == baseline:
        return []
    return [
        " ".join(
            _knob(knob, getattr(sampling, knob.name), digits)
            for knob in Sampling.fields().values()
            if baseline is None or getattr(sampling, knob.name) != getattr(baseline, knob.name)
        )
    ]
