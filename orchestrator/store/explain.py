"""What a setting is, in plain sentences, and the papers that it is from."""

from __future__ import annotations

from typing import Any

from search_spaces.acceptance import EXACT
from search_spaces.params import Params
from search_spaces.trial import DecodingConfig

_COOL_SD = "Cool-SD (arXiv:2601.09212)"


def explain(config: DecodingConfig) -> str:
    """What the setting does, in two or three plain sentences."""
    sentences = [_drafting(config)]
    if config.drafter.has_drafts:
        sentences += _acceptance(config)
    sampling = config.sampling
    if sampling is not None and not sampling.dynamic_temperature.is_constant:
        sentences.append(_clause(sampling.dynamic_temperature))
    return " ".join(f"{text[0].upper()}{text[1:]}." for text in sentences)


def _clause(part: Params, **more: Any) -> str:
    """What a part of a setting does: its summary with its values, or without a summary the first
    sentence of its docstring. more: other values that the summary names.
    """
    if not part.summary:
        return " ".join((part.__doc__ or part.kind).split()).partition(". ")[0].rstrip(".")
    values = more | part.to_mapping()
    for key, value in values.items():
        if isinstance(value, float):
            values[key] = f"{value:.4g}"
    return part.summary.format_map(values)


def _drafting(config: DecodingConfig) -> str:
    source = _clause(config.drafter)
    if not config.drafter.has_drafts:
        return source
    return (
        f"drafts come from {source}, as {_clause(config.policy, nodes=config.policy.bounds.nodes)}"
    )


def _acceptance(config: DecodingConfig) -> list[str]:
    """How drafts are accepted, and what replaces a rejected one where that is a choice."""
    parts = [_clause(part) for part in config.acceptance.relaxed_parts]
    if not parts:
        return ["each draft is tested by the exact rule"]
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
