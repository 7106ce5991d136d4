"""What decoding would take, found out without taking it: the engine's own code on tensors that have shapes only.

A round of the real engine runs on the meta device under a meter, which follows every tensor from its making to its end
and counts the arithmetic. So parameters, caches and peaks are those of the code as it is, for any architecture and any
tree, and cost milliseconds and no memory. What a device adds of its own (its context, its allocator's fragments) is not
in them.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from search_spaces.acceptance import NeighbourTables, neighbour_key
from search_spaces.trees import Adjacency, Dynamic
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import StatisticsRecorder
from workers.loading.models import Models
from workers.models.target import Target
from workers.scenes.captions import caption
from workers.scenes.images import sample_attributes

MOST = 4096  # images at once; beyond, nobody asks


@dataclass(frozen=True, slots=True)
class Work:
    """flops: multiplications and additions of matrices. moved: bytes that kernels read and write. kernels: how many."""

    flops: int = 0
    moved: int = 0
    kernels: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(self.flops + other.flops, self.moved + other.moved, self.kernels + other.kernels)

    def __sub__(self, other: Work) -> Work:
        return Work(self.flops - other.flops, self.moved - other.moved, self.kernels - other.kernels)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a setting takes at a batch size, in bytes, and the work of its steps.

    parameters: of target, codec, text encoder and drafters. cache: all that stays from round to round: keys and values
    of target and drafter, masks, tables. activations: the most that prefill or a round hold beyond that. pictures: the
    most that turning tokens into images holds. prefill, round: work for the whole batch; picture: for one go's images.
    """

    parameters: int
    cache: int
    activations: int
    pictures: int
    prefill: Work
    round: Work
    picture: Work

    @property
    def bytes(self) -> int:
        """The most that lies in memory at once: caches are gone when images are made."""
        return self.parameters + max(self.cache + self.activations, self.pictures)


class FusedAttention(TorchFunctionMode):
    """On the meta device, attention as the fused kernels of real devices do it: no score is kept.

    Its work: two products of [S, C] and [T, C] for every row and head; each operand is read once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **given)
        query, key, value = args[:3]
        mask = given.get("attn_mask")
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        flops = 4 * query.numel() * key.shape[-2]
        moved = size_of([query, key, value, out, *([] if mask is None else [mask])])
        self.work += Work(flops, moved, 1)
        return out


class Meter(TorchDispatchMode):
    """Follows the memory of every tensor made inside, and counts the work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._counted = Work()
        self._attention = FusedAttention()
        self._held: set[int] = set()

    def __enter__(self) -> Self:
        self._attention.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*error)  # type: ignore[no-untyped-call]

    @property
    def work(self) -> Work:
        return self._counted + self._attention.work

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        result = func(*args, **given)
        views = any(output.alias_info is not None for output in func._schema.returns)
        made = [] if views else [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
        fresh = [tensor for tensor in made if self._hold(tensor)]
        if fresh or func._schema.is_mutable:
            self._count(func, args, given, result, fresh)
        return result

    def _hold(self, tensor: Tensor) -> bool:
        """Count a tensor's storage, once, until it goes. Whether it is new."""
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return False
        self._held.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)
        return True

    def _release(self, key: int, size: int) -> None:
        self._held.discard(key)
        self.live -= size

    def _count(self, func: Any, args: Any, kwargs: Any, result: Any, fresh: Sequence[Tensor]) -> None:
        counted = flop_registry.get(func._overloadpacket)
        inputs = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        if counted is not None:  # a product of matrices reads all of its operands
            flops, moved = int(counted(*args, **kwargs, out_val=result)), size_of([*inputs, *fresh])
        elif fresh:
            flops, moved = 0, 2 * size_of(fresh)
        else:  # written in place: as much as the smallest operand that is more than an index
            flops, moved = 0, 2 * min((size_of([tensor]) for tensor in inputs[1:]), default=0)
        self._counted += Work(flops, moved, 1)


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def parameter_bytes(models: Models) -> int:
    """Of target, codec, text encoder and drafters, computed tables included; what they share counts once."""
    modules: list[nn.Module] = [models.target, *models.drafters.values()]
    held = {id(tensor): tensor for module in modules for tensor in (*module.parameters(), *module.buffers())}
    return size_of(held.values()) + int(getattr(models.target.conditioner, "encoder_bytes", 0))


def footprint(models: Models, config: DecodingConfig, batch: int, pictures: int) -> Footprint:
    """What `batch` captions at once take with a setting, and `pictures` images that are made of tokens at once.

    models: on the meta device. The round is the last one, when caches are full.

    Raises:
        ValueError: the setting does not fit the models.
    """
    work, room = _usual(config), _largest(config, models.target.vocab_size)
    usual = _dry(models, work, batch)
    largest = usual if work == room else _dry(models, room, batch, rounds=1)
    decoding = _pictures(models.target, pictures)
    return Footprint(
        parameters=parameter_bytes(models),
        cache=largest.kept,
        activations=largest.peak - largest.kept,
        pictures=decoding.peak,
        prefill=usual.prefill,
        round=usual.round,
        picture=decoding.work,
    )


class _Dry(NamedTuple):
    """A batch on the meta device: bytes that stay and that are the most at once, work of prefill and of a round."""

    kept: int
    peak: int
    prefill: Work
    round: Work


def _dry(models: Models, config: DecodingConfig, batch: int, rounds: int = 2) -> _Dry:
    """Prefill a batch and run a round whose tables are there; or, with `rounds` 1, one that makes them, with their
    bytes added to its peak: at least as much, in half the time.
    """
    target = models.target
    drafter, text = models.drafters.get(config.drafter.kind), readable(target)
    with torch.no_grad(), Meter() as meter:
        engine = Engine(target, config, drafter, batch_size=batch, tables=blank_tables(config, target))
        state = engine.allocate(batch)
        kept, before = meter.live, meter.work
        meter.peak = meter.live
        recorder = StatisticsRecorder(batch, engine.image_len, engine.timer, engine.device)
        requests = deque([Request(number, text) for number in range(batch)])
        engine.admit(state, recorder, list(range(batch)), requests)
        prefilled, before_tables = meter.work, meter.live
        state.sync_host_counts([engine.image_len])
        engine.step(state)  # the first round fills tables that the next ones share
        first_done = meter.work
        if rounds == 1:
            return _Dry(kept, meter.peak + meter.live - before_tables, prefilled - before, first_done - prefilled)
        engine.step(state)
    return _Dry(kept, meter.peak, prefilled - before, meter.work - first_done)


def _pictures(target: Target, count: int) -> Meter:
    with torch.no_grad(), Meter() as meter:
        if target.codec is not None:
            tokens = torch.zeros(count, target.grid.tokens, dtype=torch.int64, device=target.device)
            inspect.unwrap(type(target).decode)(target, tokens)  # inference mode would hide the convolutions
    return meter


def _usual(config: DecodingConfig) -> DecodingConfig:
    """The setting, an adjacency tree (whose size depends on numbers) as the largest that it drafts in its ranges."""
    return _as_dynamic(config, lambda policy: policy.max_width)


def _largest(config: DecodingConfig, vocabulary: int) -> DecodingConfig:
    """The largest of all: one row's tree is the deepest, another's is shallow and `widest`."""
    return _as_dynamic(config, lambda policy: min(policy.widest, vocabulary))


def _as_dynamic(config: DecodingConfig, width: Callable[[Adjacency], int]) -> DecodingConfig:
    policy = config.policy
    if not isinstance(policy, Adjacency):
        return config
    return replace(config, policy=Dynamic(depth=policy.max_depth, width=width(policy), nodes=policy.max_nodes))


def blank_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """What the setting's rule looks up, in shape."""
    key = neighbour_key(config.acceptance)
    size = (target.vocab_size, key[1]) if key else (0, 0)
    table = torch.empty(size, dtype=torch.int32, device=target.device) if key else None
    return NeighbourTables(table, target.codebook if config.acceptance.neighbourhood.reads_codebook else None)


def readable(target: Target) -> str:
    """A caption that the target can read.

    Raises:
        ValueError: none of those that are tried; of the last one, why.
    """
    listed = [getattr(target.conditioner, kind, None) for kind in ("names", "words")]
    known = [str(name) for names in listed if isinstance(names, Mapping) for name in names]
    problem = ValueError()
    for text in (*known[:1], "0", "a small dog", caption(sample_attributes(0, range(1))[0].tolist())):
        try:
            target.encode([text], guided=False)
        except ValueError as error:
            problem = error
        else:
            return text
    raise ValueError(f"{target.name}: reads none of the captions that a dry run tries: {problem}") from problem


def largest_batch(one: tuple[int, int], other: tuple[int, int], room: int) -> int:
    """The largest batch (0: none; at most `MOST`) whose bytes `room` holds, from two pairs of a batch and its bytes:
    they grow evenly with the batch.
    """
    (small, least), (large, more) = sorted((one, other))
    each = (more - least) / (large - small)
    return min(MOST, max(0, int(small + (room - least) / each))) if each > 0 else MOST * (least <= room)
