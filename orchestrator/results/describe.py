"""Configs in words, and durations: `eagle chain 4, additive k100 δ0.1`. Different configs are described differently."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import Any

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.params import ParamField, Params
from search_spaces.trial import DecodingConfig, Sampling

VANILLA = "vanilla"


def describe(config: DecodingConfig, baseline: Sampling | None = None, digits: int | None = None) -> str:
    """Drafter and tree, acceptance rule, and the sampling if it differs from `baseline`.

    Default values are omitted, except in a schedule. digits: significant digits, for reading; None writes every number
    in full.
    """
    sampling = _sampling(config.sampling, baseline, digits)
    if config.is_vanilla:
        return ", ".join([VANILLA, *sampling])
    draft = [*_params(config.drafter, digits), *_params(config.policy, digits)]
    return ", ".join([" ".join(draft), describe_acceptance(config.acceptance, digits), *sampling])


def describe_acceptance(rule: AcceptanceRule, digits: int | None = None) -> str:
    """The acceptance rule; `exact` for the exact one."""
    if rule == EXACT:
        return "exact"
    parts = [] if rule.neighbourhood == EXACT.neighbourhood else _params(rule.neighbourhood, digits)
    if rule.schedule != EXACT.schedule:
        parts += _params(rule.schedule, digits, with_defaults=True)
    return " ".join([*parts, *([] if rule.resampling == EXACT.resampling else [f"{rule.resampling} resampling"])])


def family(config: DecodingConfig) -> str:
    """The kinds without numbers, for colours and legends: `additive`, `exponential`, `exact`, `vanilla`."""
    if config.is_vanilla:
        return VANILLA
    rule = config.acceptance
    kinds = [rule.neighbourhood.kind] if rule.neighbourhood != EXACT.neighbourhood else []
    if rule.schedule != EXACT.schedule:
        kinds.append(rule.schedule.kind)
    return " ".join(kinds) or "exact"


def _params(params: Params, digits: int | None, *, with_defaults: bool = False) -> list[str]:
    values = shown_values(params, with_defaults=with_defaults)
    return [params.kind, *(_field(field, value, digits) for field, value in values)]


def shown_values(params: Params, *, with_defaults: bool = False) -> Iterator[tuple[ParamField, Any]]:
    """Each field that is required or not at its default, with its value; all fields `with_defaults`."""
    for field in params.fields().values():
        value = getattr(params, field.name)
        if value is not None and (with_defaults or field.required or value != field.default):
            yield field, value


def _field(field: ParamField, value: Any, digits: int | None) -> str:
    if isinstance(value, str):
        return value  # no two fields share a choice
    if isinstance(value, tuple) and any(isinstance(entry, tuple) for entry in value):
        paths = json.dumps(value, separators=(",", ":")).encode()
        return f"{len(value)} nodes #{hashlib.sha256(paths).hexdigest()[:8]}"
    text = (
        "..".join(format_number(entry, digits) for entry in value)
        if isinstance(value, tuple)
        else format_number(value, digits)
    )
    words = field.symbol.words
    return f"{field.key.replace('_', ' ')} {text}" if words is None else f"{words}{text}"


def format_number(value: float, digits: int | None) -> str:
    """With `digits` significant digits; None writes it in full."""
    if isinstance(value, int):
        return str(value)
    return repr(value).removesuffix(".0") if digits is None else f"{value:.{digits}g}"


def _sampling(sampling: Sampling | None, baseline: Sampling | None, digits: int | None) -> list[str]:
    """The fields that differ from the baseline's; all of them without a baseline."""
    if sampling is None or sampling == baseline:
        return []
    return [
        " ".join(
            _field(field, getattr(sampling, field.name), digits)
            for field in Sampling.fields().values()
            if baseline is None or getattr(sampling, field.name) != getattr(baseline, field.name)
        )
    ]


def describe_range(low: float, high: float) -> str:
    """A range of durations, from seconds: `10 to 14 seconds`, `41 seconds to 2.7 minutes`; equal ends once."""
    first, last = describe_duration(low), describe_duration(high)
    amount, _, unit = first.partition(" ")
    return last if first == last else f"{amount if last.endswith(f' {unit}') else first} to {last}"


def describe_duration(seconds: float) -> str:
    """In days, hours, minutes or seconds: `5.2 minutes`, `43 seconds`."""
    sizes = (("days", 86400), ("hours", 3600), ("minutes", 60))
    unit, size = next((pair for pair in sizes if seconds >= 2 * pair[1]), ("seconds", 1))
    amount = seconds / size
    return f"{amount:.{1 if amount < 9.95 else 0}f} {unit}"
