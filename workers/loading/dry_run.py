"""Memory and work of decoding, measured on the meta device: the engine's own code on tensors
without values.

A pass of the real engine runs under a meter, which follows every tensor from allocation to release
and counts the arithmetic. Parameters, caches and peaks are therefore exact for any architecture and
any tree, and the measurement takes milliseconds and no memory. The device's own overhead (context,
allocator fragmentation) is not included.
"""

from __future__ import annotations

import inspect
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import PREFILLS, Engine
from workers.decoding.state import Request
from workers.decoding.statistics import StatisticsRecorder
from workers.loading.models import Models
from workers.models.target import Target
from workers.scenes.images import sample_captions

MAX_BATCH = 4096


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a computation."""

    flops: int = 0  # multiplications and additions of matrix products
    moved: int = 0  # bytes read and written
    kernels: int = 0  # number of kernels

    def __add__(self, other: Work) -> Work:
        return Work(
            self.flops + other.flops, self.moved + other.moved, self.kernels + other.kernels
        )

    def __mul__(self, share: float) -> Work:
        return Work(
            round(self.flops * share), round(self.moved * share), round(self.kernels * share)
        )


class FusedAttention(TorchFunctionMode):
    """Attention on the meta device as fused kernels compute it: without storing scores.

    Its work: two products of [S, C] and [T, C] for every row and head; each operand is read once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work = Work()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func is not nn.functional.scaled_dot_product_attention or not args[0].is_meta:
            return func(*args, **options)
        query, key, value = args[:3]
        mask = options.get("attn_mask")
        out = query.new_empty(*query.shape[:-1], value.shape[-1])
        flops = 4 * query.numel() * key.shape[-2]
        operands = [query, key, value, out]
        if mask is not None:
            operands.append(mask)
        self.work += Work(flops, size_of(operands), 1)
        return out


class Meter(TorchDispatchMode):
    """Tracks the memory of every tensor allocated inside, and counts the work."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._counted = Work()
        self._attention = FusedAttention()
        self._tracked: set[int] = set()

    def __enter__(self) -> Self:
        self._attention.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._attention.__exit__(*error)  # type: ignore[no-untyped-call]

    def take_work(self) -> Work:
        """The work since the last call."""
        work = self._counted + self._attention.work
        self._counted = self._attention.work = Work()
        return work

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        allocates, mutates = _effects(func)
        result = call_on_meta(func, args, options)
        outputs = []
        if allocates:
            outputs = [leaf for leaf in _leaves([result]) if isinstance(leaf, Tensor)]
        fresh = [tensor for tensor in outputs if self._track(tensor)]
        if fresh or mutates:
            self._count(func, args, options, result, fresh)
        return result

    def _track(self, tensor: Tensor) -> bool:
        """Count a tensor's storage until its release. Returns whether it is new."""
        storage = tensor.untyped_storage()
        key = _address(tensor)
        size = storage.nbytes()
        if key in self._tracked:
            return False
        self._tracked.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._release, key, size)
        return True

    def _release(self, key: int, size: int) -> None:
        self._tracked.discard(key)
        self.live -= size

    def _count(
        self, func: Any, args: Any, kwargs: Any, result: Any, fresh: Sequence[Tensor]
    ) -> None:
        counted = flop_registry.get(func._overloadpacket)
        inputs = [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, Tensor)]
        if counted is not None:  # a matrix product reads all of its operands
            flops = int(counted(*args, **kwargs, out_val=result))
            moved = size_of([*inputs, *fresh])
        elif fresh:
            flops = 0
            moved = 2 * size_of(fresh)
        else:  # in place: twice the smallest operand, which excludes the tensor written to
            flops = 0
            moved = 2 * min((size_of([tensor]) for tensor in inputs[1:]), default=0)
        self._counted += Work(flops, moved, 1)


# Shape, stride and type of a call's result, by the call's signature; None: the call changes its
# first argument's values, and returns that argument.
_shapes: dict[object, tuple[torch.Size, tuple[int, ...], torch.dtype] | None] = {}


def call_on_meta(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """The result of an operator that `__torch_dispatch__` gets. A call like an earlier one only
    allocates: most meta kernels take a millisecond.
    """
    allocates, mutates = _effects(func)
    key = None
    if allocates or mutates:
        key = _signature(func, args, options)
    if key in _shapes:
        shape = _shapes[key]
        if shape is None:
            return args[0]
        return torch.empty_strided(*shape[:2], dtype=shape[2], device="meta")
    result = func(*args, **options)
    if key is None or not isinstance(result, Tensor) or not result.is_meta:
        return result
    inputs = [leaf for leaf in _leaves([*args, *options.values()]) if isinstance(leaf, Tensor)]
    if mutates and result is args[0] and key == _signature(func, args, options):
        _shapes[key] = None
    elif allocates and _address(result) not in map(_address, inputs):
        # Not for a function that returns one of its arguments.
        _shapes[key] = (result.shape, result.stride(), result.dtype)
    return result


@cache
def _effects(func: Any) -> tuple[bool, bool]:
    """Whether a function's results are new tensors, not views of its arguments; and whether it
    writes to an argument.
    """
    schema = func._schema
    return all(output.alias_info is None for output in schema.returns), schema.is_mutable


def _signature(func: Any, args: tuple[Any, ...], options: Mapping[str, Any]) -> object:
    """Everything that the shape of a function's result depends on; None where it may be more than
    arguments' shapes.
    """
    parts: list[object] = [func, torch.get_default_dtype(), *options]
    for leaf in _leaves([*args, *options.values()]):
        if isinstance(leaf, Tensor):
            # The type of a result depends less on a tensor without dimensions than on others.
            if not leaf.is_meta or not leaf.dim():
                return None
            parts.append((leaf.shape, leaf.stride(), leaf.dtype))
        else:
            parts.append((type(leaf), leaf))
    return tuple(parts)


def _leaves(values: Iterable[Any]) -> Iterator[Any]:
    """The values, and in place of lists and tuples their entries: operators nest them no deeper."""
    for value in values:
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _address(tensor: Tensor) -> int:
    """Identifies a tensor's storage."""
    address: int = tensor.untyped_storage()._cdata
    return address


def size_of(tensors: Iterable[Tensor]) -> int:
    """Bytes of the tensors' elements."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Memory of a config at a batch size, in bytes, and the work of its steps."""

    parameters: int  # parameters of target, codec, text encoder and drafters
    cache: int  # keys and values of target and drafter, masks, tables: they persist between passes
    activations: int  # peak of prefill or a pass beyond `cache`
    pictures: int  # peak of decoding tokens to images
    prefill: Work  # work of the whole batch
    one_pass: Work  # work of the whole batch
    picture: Work  # work of the images that are decoded together
    graphs: int = 0  # memory that CUDA graphs keep

    @property
    def bytes(self) -> int:
        """The peak. Caches and graphs are still there while images are decoded."""
        return self.parameters + self.cache + self.graphs + max(self.activations, self.pictures)

    def with_graphs(self, engines: int = 1) -> Footprint:
        """The footprint on a CUDA device, where the graphs of passes keep as much memory as the
        activations of a pass. `engines` take turns, and keep their caches and graphs meanwhile.
        """
        return replace(self, cache=engines * self.cache, graphs=engines * self.activations)


def parameter_bytes(models: Models) -> int:
    """Bytes of target, codec, text encoder and drafters, including computed tables; shared tensors
    count once.
    """
    modules: list[nn.Module] = [models.target, *models.drafters.values()]
    unique = {
        id(tensor): tensor
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    }
    text = int(getattr(models.target.conditioner, "encoder_bytes", 0))
    pixels = int(getattr(models.target.codec, "decoder_bytes", 0))
    return size_of(unique.values()) + text + pixels


def footprint(models: Models, config: DecodingConfig, batch: int, pictures: int) -> Footprint:
    """Memory and work of a config. The measured pass is the last one, when caches are full.

    Args:
        models: models on the meta device.
        config: the config.
        batch: captions decoded at once.
        pictures: images decoded from their tokens at once.

    Raises:
        ValueError: the models do not support the config.
    """
    stand_ins = config.policy.stand_ins(models.target.vocab_size)
    usual_config, largest_config = (replace(config, policy=policy) for policy in stand_ins)
    usual = _measure_batch(models, usual_config, batch)
    if usual_config == largest_config:
        largest = usual
    else:
        largest = _measure_batch(models, largest_config, batch, passes=1)
    decoding = _measure_codec(models.target, pictures)
    return Footprint(
        parameters=parameter_bytes(models),
        cache=largest.kept,
        activations=largest.peak - largest.kept,
        pictures=decoding.peak,
        prefill=usual.prefill,
        one_pass=usual.one_pass,
        picture=decoding.take_work(),
    )


class _BatchCost(NamedTuple):
    """Memory and work of decoding a batch."""

    kept: int  # bytes that persist between passes
    peak: int  # bytes
    prefill: Work
    one_pass: Work  # the mean over usual passes


def _measure_batch(
    models: Models, config: DecodingConfig, batch: int, passes: int = 2
) -> _BatchCost:
    """Prefill a batch and run a pass with existing tables; or, with `passes` 1, the pass that
    creates them, with their bytes added to its peak: an upper bound in half the time. On an
    accelerator further captions wait meanwhile.
    """
    target = models.target
    drafter = models.drafters.get(config.drafter.kind)
    text = sample_caption(target)
    with torch.no_grad(), Meter() as meter:
        engine = Engine(
            target, config, drafter, batch_size=batch, tables=blank_tables(config, target)
        )
        state = engine.allocate(batch)
        kept = meter.live
        meter.take_work()
        meter.peak = meter.live
        recorder = StatisticsRecorder(batch, engine.timer)
        requests = deque([Request(number, text) for number in range(batch)])
        engine.admit(state, recorder, list(range(batch)), requests)
        prefill = meter.take_work()
        # Captions that wait, with the keys and values of their prompts.
        if engine.groups_prompts and batch >= 2 * PREFILLS:
            waiting = deque(Request(batch + number, text) for number in range(batch // PREFILLS))
            engine.admit(state, StatisticsRecorder(batch, engine.timer), [0], waiting)
            meter.take_work()
        before_tables = meter.live
        state.sync_host_counts([engine.image_len])
        engine.step(state)  # the first pass creates tables that the next ones share
        first = meter.take_work()
        if passes == 1:
            return _BatchCost(kept, meter.peak + meter.live - before_tables, prefill, first)
        one_pass = Work()
        for bounds, share in engine.drafting.usual_bounds(batch).items():
            if bounds:
                engine.drafting.set_bounds(bounds)
            engine.step(state)
            one_pass += meter.take_work() * share
    return _BatchCost(kept, meter.peak, prefill, one_pass)


def _measure_codec(target: Target, count: int) -> Meter:
    with torch.no_grad(), Meter() as meter:
        if not target.no_images:
            tokens = torch.zeros(count, target.grid.tokens, dtype=torch.int64, device=target.device)
            # inference mode would hide the convolutions
            inspect.unwrap(type(target).decode)(target, tokens)
    return meter


def blank_tables(config: DecodingConfig, target: Target) -> NeighbourTables:
    """The acceptance rule's tables, without values."""
    neighbourhood = config.acceptance.neighbourhood
    table = None
    if key := neighbourhood.table_key:
        size = (target.vocab_size, key[1])
        table = torch.empty(size, dtype=torch.int32, device=target.device)
    return NeighbourTables(table, target.codebook if neighbourhood.reads_codebook else None)


def sample_caption(target: Target) -> str:
    """A caption that the target can read.

    Raises:
        ValueError: the target reads none of the captions that are tried; the message says why it
            does not read the last one.
    """
    texts = ["0", "a small dog", *sample_captions(0, 1)]
    words = getattr(target.conditioner, "words", None)
    if isinstance(words, Mapping):
        texts = [*list(map(str, words))[:1], *texts]
    problem = ValueError()
    for text in texts:
        try:
            target.encode([text], guided=False)
        except ValueError as error:
            problem = error
        else:
            return text
    raise ValueError(
        f"{target.name}: cannot read any of the captions that a dry run tries: {problem}"
    ) from problem


def largest_batch(one: tuple[int, int], other: tuple[int, int], memory: int) -> int:
    """The largest batch that fits in `memory` bytes (0: none; at most `MAX_BATCH`).

    `one` and `other` are batch sizes with their bytes, which grow linearly with the batch.
    """
    (small, least), (large, more) = sorted((one, other))
    slope = (more - least) / (large - small)
    if slope > 0:
        return min(MAX_BATCH, max(0, int(small + (memory - least) / slope)))
    return MAX_BATCH * (least <= memory)
