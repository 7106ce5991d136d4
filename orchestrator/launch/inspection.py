"""What a sweep is checked against before any worker starts, each part read once, when it is first
asked for: the stored sweep, the cluster's address, the models' files as far as their headers tell,
the captions. `--check`, preflight and `doctor --plan` take it from here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import torch

from orchestrator.cluster.cluster import ClusterAddress, resolve_address
from orchestrator.errors import explain
from orchestrator.launch.read import LaunchRequest
from orchestrator.store.identity import Identity, read_identity
from orchestrator.views.mlflow_place import TrackingPlace
from search_spaces.params import ConfigError
from search_spaces.params import Path as ConfigPath
from search_spaces.sweep import SweepConfig
from workers.data.captions import Caption, read_captions
from workers.data.text_files import and_more
from workers.loading.models import Capabilities, Models, unreadable_captions
from workers.loading.models_yaml import (
    BUILTIN_NAME,
    Entry,
    find_entry,
    load_on_meta,
    published_entry,
)
from workers.metrics.definition import Direction
from workers.metrics.extractors import check_weights, load_extractors
from workers.metrics.library import library_metrics
from workers.metrics.metric import METRICS, ComputedMetric, MetricRegistry
from workers.metrics.networks import Extractor
from workers.metrics.registry import weight_keys
from workers.models.checkpoint_files import WeightsError


@dataclass(frozen=True)
class Inspection:
    """A launch, and what its files and surroundings say. A property raises ValueError or OSError if
    its part cannot be read; the message names the key, the file and the fix.
    """

    request: LaunchRequest
    # fetches what the models take from the Hub (see `orchestrator.cli.models.pull_models`)
    fetch: Callable[..., Sequence[str]] = lambda *_, **__: ()
    # on the models' files; complete after the checks
    notes: list[str] = field(default_factory=list)

    def fetch_files(self) -> Sequence[str]:
        """Fetch the models' files that are missing, once, if --pull is given; with --check fetches
        nothing, and returns the files that a launch would fetch.
        """
        return self._unfetched_files

    @cached_property
    def _unfetched_files(self) -> Sequence[str]:
        options = self.request.options
        if not options.pull:
            return ()
        return self.fetch(self.request.sweep, options.address, dry_run=options.check)

    @cached_property
    def tracking_uri(self) -> str:
        """MLflow's tracking URI; "" without MLflow."""
        options = self.request.options
        if not options.mlflow:
            return ""
        return TrackingPlace.resolve(self.request.storage, options.tracking_uri).uri

    @cached_property
    def metrics(self) -> MetricRegistry:
        """All metrics that the sweep may name, its own included. ConfigError, with the entry's path
        and key, for an invalid one.
        """
        sweep = self.request.sweep
        try:
            return METRICS.including(library_metrics(sweep.torchmetrics))
        except ConfigError as error:
            name, *key = error.path
            index = (sweep.metrics or ()).index(name)
            raise ConfigError(("metrics", f"[{index}]", *key), error.problem) from None

    @property
    def directions(self) -> list[Direction]:
        """Whether more or less is better, of each objective."""
        return [
            objective.direction or self.metrics[objective.metric].direction
            for objective in self.request.sweep.objectives
        ]

    @property
    def decisive(self) -> Iterator[tuple[ConfigPath, ComputedMetric]]:
        """The metrics of objectives and constraints, by their keys. A trial without one of them
        fails.
        """
        for path, name in self.request.sweep.named_metrics:
            if path[0] != "metrics":
                yield path, self.metrics[name]

    @cached_property
    def cluster(self) -> ClusterAddress | None:
        """The Ray cluster of --address; None without one. PoolError: see `resolve_address`."""
        address = self.request.options.address
        return None if address is None else resolve_address(address)

    @cached_property
    def identity(self) -> Identity | None:
        """The identity of the sweep that is stored there; None if it has not started."""
        return read_identity(self.request.storage)

    @property
    def has_files(self) -> bool:
        """Whether the files that workers will read are on this machine: not if they are still to be
        fetched, and not if a Ray client launches on a cluster.
        """
        is_client = self.cluster is not None and self.cluster.is_client
        return not self.fetch_files() and not is_client

    @cached_property
    def entry(self) -> Entry:
        """The sweep's entry of a models.yaml, or its folder."""
        return models_entry(self.request.sweep)

    @cached_property
    def models(self) -> Models:
        """The models on the meta device, by the headers of their files.

        Raises:
            ConfigError, WeightsError: files of the models or metrics are missing, truncated or of
                another family, or their sizes do not match.
        """
        metrics = self.request.sweep.requested_metrics
        with self._in_models():
            self.entry.check_files(weight_keys(metrics))
            models = load_on_meta(self.entry)
            if problems := check_weights(self.entry.folder, self.entry.metrics, metrics):
                raise WeightsError(
                    "; ".join(f"metrics.{key}: {problem}" for key, problem in problems.items())
                )
        return models

    @cached_property
    def extractors(self) -> Mapping[str, Extractor]:
        """The feature extractors by role, without their weights."""
        with self._in_models():
            return load_extractors(self.entry.folder, self.entry.metrics, torch.device("meta"))

    @cached_property
    def capabilities(self) -> Capabilities:
        """What the models support."""
        return Capabilities.of(self.models)

    @cached_property
    def captions(self) -> Sequence[Caption]:
        """The sweep's captions. ConfigError: see `read_captions`; or the target cannot encode some
        of them.
        """
        with in_section("captions"):
            captions = read_captions(**self.request.sweep.captions.to_mapping())
            if not self.has_files:
                return captions
            texts = [caption.text for caption in captions]
            if unreadable := unreadable_captions(self.models.target, texts):
                index, problem = min(unreadable, key=lambda entry: captions[entry[0]].id)
                more = and_more(len(unreadable) - 1, "caption")
                raise ValueError(f"{captions[index].location}: {problem}{more}")
        return captions

    @cached_property
    def sweep(self) -> SweepConfig:
        """The sweep with sampling settings for all configs. Without the models' files, whose target
        has the default, a sweep that gives no sampling stays as it is.
        """
        sweep = self.request.sweep
        if self.has_files:
            return sweep.resolve(self.capabilities.sampling)
        return sweep if sweep.sampling is None else sweep.resolve(sweep.sampling)

    @contextmanager
    def _in_models(self) -> Iterator[None]:
        """Errors are about the models' entry, or the section `models` where the sweep names a
        folder.
        """
        entry = self.entry
        where = f"{entry.where}: {entry.name}: " if entry.where else ""
        with in_section("models", where=where):
            yield


def models_entry(sweep: SweepConfig, *, published: bool = False) -> Entry:
    """The entry of a models.yaml, or of a folder, that the sweep names.

    published: a name without a file is that of a published model, whose files need not exist.

    Raises:
        ConfigError: the sweep names an entry but no file; no such file, folder or entry; the file
            is invalid.
    """
    models = sweep.models
    if models.name is not None and models.file == BUILTIN_NAME:
        if published:
            return published_entry(models.name)
        problem = f"{models.name} is an entry of a models.yaml; add --models models.yaml"
        raise ConfigError(("models", "name"), problem)
    with in_section("models", "file"):
        return find_entry(models.file, models.name)


@contextmanager
def in_section(*path: str, where: str = "") -> Iterator[None]:
    """Turn a ValueError or OSError raised inside into a ConfigError about a key of the sweep's
    file, unless it is about another file: it has a location, or `where` is the place in that file
    with which messages begin.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if isinstance(error, ConfigError) and error.location:
            raise
        problem = explain(error)
        if where:
            raise WeightsError(where + problem.removeprefix(where)) from error
        raise ConfigError(path, problem) from error
