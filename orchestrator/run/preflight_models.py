"""Preflight checks that need the headers of the model's files: captions, reference, and the configs of the sweep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch

from orchestrator.errors import explain
from search_spaces.params import ConfigError, at
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from workers.data import reference
from workers.data.captions import Caption, read_captions
from workers.data.text_files import and_more
from workers.loading.models import Capabilities, unreadable_captions
from workers.loading.models_yaml import BUILTIN_NAME, Entry, find_entry, load_on_meta
from workers.metrics.extractors import check_weights, load_extractors
from workers.metrics.networks import Extractor
from workers.metrics.registry import weight_keys
from workers.models.checkpoint_files import WeightsError
from workers.models.target import Target


@contextmanager
def prefix_errors(key: str) -> Iterator[None]:
    """Prefix the message of a ValueError raised inside with an option."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


@contextmanager
def in_section(*path: str) -> Iterator[None]:
    """Turn a ValueError or OSError raised inside into a ConfigError about a key of the sweep's file."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise ConfigError(path, explain(error)) from error


@dataclass(frozen=True, slots=True)
class CheckedModels:
    """A sweep's models as far as the headers of their files determine them.

    extractors: the feature extractors by role, without their weights; all distances use "features".
    """

    entry: Entry
    target: Target
    capabilities: Capabilities
    extractors: Mapping[str, Extractor]

    @property
    def features(self) -> Extractor:
        """The network for distances."""
        return self.extractors["features"]

    @property
    def has_features(self) -> bool:
        """Whether the feature network takes images of the model's size."""
        return self.features.image_size in (None, self.capabilities.image_size)


def models_entry(sweep: SweepConfig) -> Entry:
    """The entry of a models.yaml, or of a folder, that the sweep names.

    Raises:
        ConfigError: the sweep names an entry but no file; no such file, folder or entry; the file is invalid.
    """
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        problem = f"{models.name} is an entry of a models.yaml; add --models models.yaml"
        raise ConfigError(("models", "name"), problem)
    with in_section("models"):
        return find_entry(models.file, models.name)


def read_models(sweep: SweepConfig) -> CheckedModels:
    """The headers of the models' files, checked against the architecture.

    Raises:
        ConfigError: files are missing, truncated or of another family, or their sizes do not match.
    """
    entry = models_entry(sweep)
    with in_section("models"):
        entry.check_files(weight_keys(sweep.requested_metrics))
        models = load_on_meta(entry)
        problems = check_weights(entry.folder, entry.metrics, sweep.requested_metrics)
        if problems:
            texts = [f"{entry.name}.metrics.{key}: {problem}" for key, problem in problems.items()]
            raise WeightsError(f"{entry.where}: {'; '.join(texts)}")
        extractors = load_extractors(entry.folder, entry.metrics, torch.device("meta"))
    return CheckedModels(entry, models.target, Capabilities.of(models), extractors)


def read_sweep_captions(sweep: SweepConfig, model: CheckedModels) -> list[Caption]:
    """The captions, checked against the target's vocabulary.

    Raises:
        ConfigError: see `read_captions`; or the first caption that the target cannot encode, and the number of others.
    """
    with in_section("captions"):
        captions = read_captions(**sweep.captions.to_mapping())
    problems = unreadable_captions(model.target, [caption.text for caption in captions])
    if problems:
        index, problem = min(problems, key=lambda entry: captions[entry[0]].id)
        more = and_more(len(problems) - 1, "caption")
        raise ConfigError(("captions",), f"{captions[index].location}: {problem}{more}")
    return captions


def check_reference(sweep: SweepConfig, model: CheckedModels) -> None:
    """Check that the reference suits the feature extractor, if the extractor takes the model's images at all.

    Raises:
        ConfigError: see `workers.data.reference.check_reference`.
    """
    if not model.has_features or sweep.reference.source == NO_REFERENCE:
        return
    with in_section("reference"):
        reference.check_reference(
            **sweep.reference.to_mapping(),
            extractors=tuple(model.extractors.values()),
            size=model.capabilities.image_size,
        )


def check_configs(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Check that the models support the enqueued configs and every branch of the space, at the ends of its ranges.

    Raises:
        ConfigError: names the label or the branch, and the key.
    """
    check_enqueued(sweep, capabilities)
    assert sweep.sampling is not None
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        kinds = ", ".join(branch.params.values())
        with at(*(("space", f"({kinds})") if kinds else ("space",))):
            corners = [leaf.domain.corners for leaf in branch.leaves]
            lowest = [ends[0] for ends in corners]
            # all fields at their lowest, then each in turn at its highest
            for values in (lowest, *([*lowest[:i], ends[-1], *lowest[i + 1 :]] for i, ends in enumerate(corners))):
                try:
                    config = branch.config(values, sweep.sampling)
                except ConfigError:
                    continue  # the space itself reported invalid corners when it was read
                capabilities.check(config)


def check_enqueued(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Raise ConfigError, with the label, if the models do not support an enqueued config."""
    for entry in sweep.enqueue:
        with at("enqueue", entry.label):
            capabilities.check(entry.config)
