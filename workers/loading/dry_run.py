"""Memory and work of decoding, measured on the meta device: the engine's own code on tensors without values.

A round of the real engine runs under a meter, which follows every tensor from allocation to release and counts the
arithmetic. Parameters, caches and peaks are therefore exact for any architecture and any tree, and the measurement
takes milliseconds and no memory. The device's own overhead (context, allocator fragmentation) is not included.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import nn

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import StatisticsRecorder
from workers.loading.meter import Meter, Work, size_of
from workers.loading.models import Models
from workers.models.target import Target
from workers.scenes.images import sample_captions

MAX_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a config at a batch size, in bytes, and the work of its steps.

    parameters: of target, codec, text encoder and drafters. cache: what persists between rounds: keys and values of
    target and drafter, masks, tables. activations: peak of prefill or a round beyond that. pictures: peak of decoding
    tokens to images. prefill, round: work of the whole batch; picture: of one call's images.
    """

    parameters: int
    cache: int
    activations: int
    pictures: int
    prefill: Work
    round: Work
    picture: Work
    graphs: int = 0  # what CUDA graphs keep

    @property
    def bytes(self) -> int:
        """The peak. Caches and graphs are still there while images are decoded."""
        return self.parameters + self.cache + self.graphs + max(self.activations, self.pictures)

    def with_graphs(self) -> Footprint:
        """On a CUDA device, where the graphs of rounds keep as much memory as a round's activations."""
        return replace(self, graphs=self.activations)


def parameter_bytes(models: Models) -> int:
    """Bytes of target, codec, text encoder and drafters, including computed tables; shared tensors count once."""
    modules: list[nn.Module] = [models.target, *models.drafters.values()]
    unique = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return size_of(unique.values()) + int(getattr(models.target.conditioner, "encoder_bytes", 0))


def footprint(models: Models, config: DecodingConfig, batch: int, pictures: int) -> Footprint:
    """Memory and work of a config for `batch` captions at once, and for decoding `pictures` images at once.

    models: on the meta device. The round is the last one, when caches are full.

    Raises:
        ValueError: the models do not support the config.
    """
    stand_ins = config.policy.stand_ins(models.target.vocab_size)
    usual_config, largest_config = (replace(config, policy=policy) for policy in stand_ins)
    usual = _measure_batch(models, usual_config, batch)
    largest = usual if usual_config == largest_config else _measure_batch(models, largest_config, batch, rounds=1)
    decoding = _measure_codec(models.target, pictures)
    return Footprint(
        parameters=parameter_bytes(models),
        cache=largest.kept,
        activations=largest.peak - largest.kept,
        pictures=decoding.peak,
        prefill=usual.prefill,
        round=usual.round,
        picture=decoding.take_work(),
    )


class _BatchCost(NamedTuple):
    """Bytes that persist between rounds, peak bytes, and the work of prefill and of a round."""

    kept: int
    peak: int
    prefill: Work
    round: Work


def _measure_batch(models: Models, config: DecodingConfig, batch: int, rounds: int = 2) -> _BatchCost:
    """Prefill a batch and run a round with existing tables; or, with `rounds` 1, the round that creates them, with
    their bytes added to its peak: an upper bound in half the time.
    """
    target = models.target
    drafter, text = models.drafters.get(config.drafter.kind), sample_caption(target)
    with torch.no_grad(), Meter() as meter:
        engine = Engine(target, config, drafter, batch_size=batch, tables=blank_tables(config, target))
        state = engine.allocate(batch)
        kept = meter.live
        meter.take_work()
        meter.peak = meter.live
        recorder = StatisticsRecorder(batch, engine.timer)
        requests = deque([Request(number, text) for number in range(batch)])
        engine.admit(state, recorder, list(range(batch)), requests)
        prefill, before_tables = meter.take_work(), meter.live
        state.sync_host_counts([engine.image_len])
        engine.step(state)  # the first round creates tables that the next ones share
        first = meter.take_work()
        if rounds == 1:
            return _BatchCost(kept, meter.peak + meter.live - before_tables, prefill, first)
        engine.step(state)
    return _BatchCost(kept, meter.peak, prefill, meter.take_work())


def _measure_codec(target: Target, count: int) -> Meter:
    with torch.no_grad(), Meter() as meter:
        if target.codec is not None:
            tokens = torch.zeros(count, target.grid.tokens, dtype=torch.int64, device=target.device)
            inspect.unwrap(type(target).decode)(target, tokens)  # inference mode would hide the convolutions
    return meter


def blank_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """The acceptance rule's tables, without values."""
    key = config.acceptance.neighbourhood.table_key
    size = (target.vocab_size, key[1]) if key else (0, 0)
    table = torch.empty(size, dtype=torch.int32, device=target.device) if key else None
    return NeighbourTables(table, target.codebook if config.acceptance.neighbourhood.reads_codebook else None)


def sample_caption(target: Target) -> str:
    """A caption that the target can read.

    Raises:
        ValueError: the target reads none of the captions that are tried; the reason is the last one's.
    """
    vocabularies = [getattr(target.conditioner, attribute, None) for attribute in ("names", "words")]
    names = [str(name) for vocabulary in vocabularies if isinstance(vocabulary, Mapping) for name in vocabulary]
    problem = ValueError()
    for text in (*names[:1], "0", "a small dog", *sample_captions(0, 1)):
        try:
            target.encode([text], guided=False)
        except ValueError as error:
            problem = error
        else:
            return text
    raise ValueError(f"{target.name}: cannot read any of the captions that a dry run tries: {problem}") from problem


def largest_batch(one: tuple[int, int], other: tuple[int, int], memory: int) -> int:
    """The largest batch that fits in `memory` bytes (0: none; at most `MAX_BATCH`).

    one, other: two batch sizes with their bytes, which grow linearly with the batch.
    """
    (small, least), (large, more) = sorted((one, other))
    slope = (more - least) / (large - small)
    return min(MAX_BATCH, max(0, int(small + (memory - least) / slope))) if slope > 0 else MAX_BATCH * (least <= memory)
