"""Settings that a sweep runs first: presets by name, or settings written out, each with a label.

enqueue: [vanilla, lantern, {preset: eagle2, sampling: {temperature: 0, top_k: 0, top_p: 1, cfg: 3}},
          {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from search_spaces.documents import Node
from search_spaces.params import not_one_of
from search_spaces.presets import PRESETS
from search_spaces.sections import SECTIONS
from search_spaces.trial import DecodingConfig, Sampling

LONGEST_LABEL = 80


@dataclass(frozen=True, slots=True)
class Enqueued:
    """A setting to run first, and what it is called."""

    label: str
    config: DecodingConfig

    def to_mapping(self) -> dict[str, Any]:
        return {"label": self.label, **self.config.to_mapping()}


def read_enqueue(node: Node, sampling: Sampling | None) -> tuple[Enqueued, ...]:
    """The list of settings; those without a sampling take the baseline's. ConfigError names line, key and mend."""
    found: list[Enqueued] = []
    for entry in node.entries():
        label, config = _entry(entry, sampling)
        twin = next((other for other in found if other.config == config), None)
        if twin is not None:
            raise entry.error(f"is the same setting as {twin.label!r}; remove one of the two")
        if label in [other.label for other in found]:
            raise entry.error(f"the label {label!r} is taken; give each setting a label of its own")
        found.append(Enqueued(label, config))
    return tuple(found)


def _entry(node: Node, sampling: Sampling | None) -> tuple[str, DecodingConfig]:
    if isinstance(node.value, str):
        return node.value, _with(_preset(node), sampling)
    given = dict(node.mapping(("label", "preset", *SECTIONS)))
    label, base = given.pop("label", None), given.pop("preset", None)
    mapping = {} if base is None else _preset(base).to_mapping()
    with node.with_location():
        written = {key: child.plain() for key, child in given.items()}
        config = _with(DecodingConfig.from_mapping(mapping | written, defaults=sampling), sampling)
    if label is None:
        return _described(config) if base is None or given else str(base.value), config
    text = label.value
    if not isinstance(text, str) or not text.strip() or not text.isprintable() or len(text) > LONGEST_LABEL:
        raise label.error(f"must be a line of 1 to {LONGEST_LABEL} characters, got {label.plain()!r}")
    return text, config


def _preset(node: Node) -> DecodingConfig:
    if not isinstance(node.value, str) or node.value not in PRESETS:
        raise node.error(not_one_of(node.plain(), PRESETS))
    return PRESETS[node.value]


def _with(config: DecodingConfig, sampling: Sampling | None) -> DecodingConfig:
    return config.with_sampling(sampling) if config.sampling is None else config


def _described(config: DecodingConfig) -> str:
    """A label from the kinds: `eagle chain additive`."""
    rule = config.acceptance
    words = [config.drafter.kind, config.policy.kind, rule.neighbourhood.kind, rule.schedule.kind]
    if config.policy.max_nodes == 0:
        return "vanilla"
    return " ".join(words if rule.is_relaxed else [*words[:2], "exact"])
