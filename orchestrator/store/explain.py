"""What a setting is, in plain sentences, and the papers that it is from."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from search_spaces.acceptance import EXACT
from search_spaces.params import Params
from search_spaces.trees import TreePolicy
from search_spaces.trial import DecodingConfig

_COOL_SD = "Cool-SD (arXiv:2601.09212)"
_EXACT_RULE = "each draft is tested by the exact rule"


def explain_setting(config: DecodingConfig) -> str:
    """What the setting does, in two or three plain sentences."""
    sentences = [_drafting(config)]
    if config.drafter.has_drafts:
        sentences += _acceptance(config)
    sampling = config.sampling
    if sampling is not None and not sampling.dynamic_temperature.is_constant:
        sentences.append(_clause(sampling.dynamic_temperature))
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def explain_alike(settings: Sequence[Sequence[Params]]) -> str:
    """What some parts of several settings do, in one plain sentence: a clause for each combination
    of kinds. Of numbers that differ, it has the least and the largest, of texts all.
    """
    by_kinds = defaultdict[tuple[type[Params], ...], list[Sequence[Params]]](list)
    for parts in settings:
        by_kinds[tuple(map(type, parts))].append(parts)
    alike = (
        "; ".join(_clause(*parts) for parts in zip(*found, strict=True))
        for found in by_kinds.values()
    )
    return "; or ".join(text or _EXACT_RULE for text in alike)


def _clause(*parts: Params) -> str:
    """What parts of one kind do: their summary with their values, or without a summary the first
    sentence of their docstring.
    """
    first = parts[0]
    if not first.summary:
        return " ".join((first.__doc__ or first.kind).split()).partition(". ")[0].rstrip(".")
    values: dict[str, Any] = {}
    for key in re.findall(r"{(\w+)}", first.summary):
        values[key] = _span([_values(part)[key] for part in parts])
    return first.summary.format_map(values)


def _span(values: Sequence[Any]) -> str:
    """The least and the largest of numbers, or all of the texts."""
    if not all(isinstance(value, int | float) for value in values):
        return " or ".join(dict.fromkeys(map(str, values)))
    ends = dict.fromkeys((min(values), max(values)))
    return " to ".join(f"{end:.4g}" if isinstance(end, float) else str(end) for end in ends)


def _values(part: Params) -> dict[str, Any]:
    """Plain data by key, and the number of nodes of a tree."""
    values = part.to_mapping()
    if isinstance(part, TreePolicy):
        values.setdefault("nodes", part.bounds.nodes)
    return values


def _drafting(config: DecodingConfig) -> str:
    source = _clause(config.drafter)
    if not config.drafter.has_drafts:
        return source
    return f"drafts come from {source}, as {_clause(config.policy)}"


def _acceptance(config: DecodingConfig) -> list[str]:
    """How drafts are accepted, and what replaces a rejected one where that is a choice."""
    parts = [_clause(part) for part in config.acceptance.relaxed_parts]
    if not parts:
        return [_EXACT_RULE]
    if config.acceptance.resampling != EXACT.resampling:
        parts.append("what replaces a rejected draft has the least bias")
    return parts


def papers_of(config: DecodingConfig) -> list[str]:
    """The papers of the setting's parts, each by its method and arXiv number."""
    rule = config.acceptance
    parts: list[Params] = [config.drafter, config.policy, *rule.relaxed_parts]
    if config.sampling is not None:
        parts.append(config.sampling.dynamic_temperature)
    found = [paper for part in parts for paper in part.papers]
    if rule.resampling != EXACT.resampling:
        found.append(_COOL_SD)
    return list(dict.fromkeys(found))
