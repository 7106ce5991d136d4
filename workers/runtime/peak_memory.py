"""The memory that a sweep takes at its peak, by a dry run of its heaviest setting on the meta
device.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import islice

from search_spaces.params import ConfigError
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.loading.models_yaml import Entry, add_drafter, metric_bytes
from workers.metrics.registry import weight_keys
from workers.runtime.memory import format_bytes


def check_peak(sweep: SweepConfig, entry: Entry, shapes: Models, share: float, memory: int) -> None:
    """Check that a worker's share of a GPU holds the sweep's peak.

    Args:
        sweep: the sweep of a file; its sampling may be left to the target.
        entry: the sweep's models.
        shapes: the same models on the meta device, in the dtype of the GPU.
        share: the share of the GPU.
        memory: bytes that the worker's tensors may take.

    Raises:
        ValueError: the share is too small; names the memory needed, the memory there is, and the
            fix.
    """
    resolved = sweep.resolve(shapes.target.sampling)
    try:
        needed = peak_bytes(resolved, shapes) + network_bytes(sweep, entry)
    except ConfigError as error:  # the pool knows a refusal by its type
        raise ValueError(str(error)) from error
    if needed > memory:
        raise ValueError(
            f"--gpus-per-worker {share:g}: the sweep needs {format_bytes(needed)} at its peak, and "
            f"a worker has {format_bytes(memory)}; give it a larger share, or lower quality.batch"
        )


def peak_bytes(sweep: SweepConfig, shapes: Models) -> int:
    """Bytes that the heaviest setting of a resolved sweep takes of a GPU, at least: images are
    decoded to pixels one by one, and `quality.batch: auto` is 1.

    Raises:
        ConfigError: see `heaviest_setting`.
    """
    _, config, shapes, _ = heaviest_setting(sweep, shapes)
    quality = sweep.quality
    batch = 1
    if isinstance(quality.batch, int):
        batch = min(quality.batch, quality.shard * quality.samples)
    return footprint(shapes, config, batch, 1).with_graphs().bytes


def network_bytes(sweep: SweepConfig, entry: Entry) -> int:
    """Size of the networks of the sweep's metrics, as far as their files exist."""
    sizes = metric_bytes(entry)
    return sum(sizes.get(key, 0) for key in weight_keys(sweep.requested_metrics))


def heaviest_setting(
    sweep: SweepConfig, shapes: Models
) -> tuple[str, DecodingConfig, Models, list[str]]:
    """The config with the most nodes in a pass that a resolved sweep may try: its label, the
    config, the models with its drafter, and notes on omitted configs.

    Raises:
        ConfigError: the models support none of the configs.
    """
    notes: dict[str, None] = {}
    for label, config in sorted(_settings(sweep), key=_weight, reverse=True):
        if (found := add_drafter(shapes, config)) is not None:
            return label, config, found, list(notes)
        note = f"the plan omits the {config.drafter.kind} drafter, because its file is missing"
        notes[note] = None
    raise ConfigError(("space",), "no config can be planned: give the drafters' files")


def _weight(setting: tuple[str, DecodingConfig]) -> tuple[int, int, int, bool]:
    """Sort key: nodes and levels of a pass, columns of the neighbour table, and whether each node's
    probs are read once more.
    """
    bounds = setting[1].policy.bounds
    nodes, depth = bounds.nodes, bounds.depth
    rule = setting[1].acceptance
    if rule.verification.implementation:  # an unverified path in front of the tree
        nodes += bounds.depth
        depth += bounds.depth
    columns = 0
    if table := rule.neighbourhood.table_key:
        columns = table[1]
    return nodes, depth, columns, rule.modulation.reads_probs


def _settings(sweep: SweepConfig) -> Iterator[tuple[str, DecodingConfig]]:
    """The enqueued configs, and the largest valid config of each branch of the space."""
    assert sweep.sampling is not None
    yield from ((entry.label, entry.config) for entry in sweep.enqueue)
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        highest = [leaf.domain.corners[-1] for leaf in branch.leaves]
        with suppress(ConfigError):  # the sweep's sampling does not suit all branches
            yield "the largest of the space", branch.config(highest, sweep.sampling)
