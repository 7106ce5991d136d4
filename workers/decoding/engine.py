"""The engine: turns captions into image tokens. Every method, vanilla decoding included, is the
same loop:

draft -> verify (one pass of the target) -> accept -> commit
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.plugins import load_object
from search_spaces.trial import DecodingConfig
from workers.decoding import graphs
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.build import build_drafting, build_tables, resolve_for_target
from workers.decoding.constants import Constants, kept_in
from workers.decoding.drafter import TrainedPart
from workers.decoding.prefill import Prefill
from workers.decoding.rng import CounterRNG, image_keys
from workers.decoding.row_ends import RowEnds
from workers.decoding.sampling import stream_count, to_probs
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import (
    PassCounts,
    Result,
    StatisticsRecorder,
    verification_outcomes,
)
from workers.decoding.timer import PhaseTimer
from workers.decoding.tree import DraftTree
from workers.models.attention import aligned
from workers.models.masks import causal_padding_mask
from workers.models.target import Target

# The bits of what failed in a row. 1 is its prefill's.
_TARGET_NONFINITE = 2
_DRAFTER_NONFINITE = 4
PREFILLS = 4  # an accelerator reads the prompts of a batch in so many prefills


Observer = Callable[[Batch, DraftTree, Tensor], None]


class DecodingError(RuntimeError):
    """Decoding failed because of the model or the machine, not because of the config."""


class Engine:
    """Decodes captions with one config.

    At most `batch_size` captions are decoded together (continuous batching): a waiting caption
    takes the row of a finished one, and when none is waiting the batch shrinks.

    On a CUDA device passes are CUDA graphs if target, drafter and tree policy are `capturable` and
    there is no observer. Then the batch, its caches included, is kept from run to run; `release`
    frees it.

    Args:
        target: the model that verifies.
        config: the method. If it has no sampling parameters, the target's own are used.
        drafter: the loaded weights of the drafter that the config names; None for vanilla decoding
            and Jacobi windows.
        seed: keys the images' random numbers, with each caption's id and sample index.
        batch_size: most captions that are decoded together.
        tables: the lookup tables of the acceptance rule; None lets the engine compute them.
        observer: is called in every pass before acceptance, with the batch, the draft tree and the
            target's guided logits [B, N+1, V]; it must not change them.

    Raises:
        ValueError: the target or the drafter does not support the config (k larger than the
            codebook, more levels than Medusa heads, ...).
    """

    def __init__(
        self,
        target: Target,
        config: DecodingConfig,
        drafter: TrainedPart | None = None,
        *,
        seed: int = 0,
        batch_size: int = 1,
        tables: NeighbourTables | None = None,
        observer: Observer | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.seed = seed
        self.batch_size = batch_size
        self.device = target.device
        # a copy, so that engines with one drafter keep what each of their batches needs
        self._loaded_drafter = drafter
        drafter = copy(drafter)
        self._drafter = drafter
        self.observer = observer
        self.config = resolve_for_target(config, target, drafter)
        self.sampling = self.config.sampling or target.sampling
        # the model whose passes are run
        self.target = drafter.target_for(config.drafter, target) if drafter else target
        self.drafting = build_drafting(self.config, target, drafter)
        self.taps = drafter.taps if drafter else ()
        tables = tables or build_tables(self.config, target)
        levels = self.drafting.verified_levels
        self.acceptor = Acceptor(
            self.config.acceptance, tables, self.sampling, levels, target.grid, self.device
        )
        self.image_len = target.grid.tokens
        self.timer = PhaseTimer(self.device)
        self.constants = Constants()
        parts: list[object] = [target.transformer, self.target.transformer, *self.drafting.parts]
        if drafter is not None:
            parts.append(drafter)
        capturable = observer is None and all(
            vars(type(part)).get("capturable", False) for part in parts
        )
        # makes a new `Capture` for a batch's passes
        self.new_capture: Callable[[], graphs.Capture] | None = None
        if capturable and graphs.are_supported(self.device):
            self.new_capture = partial(graphs.CudaCapture, self.device)
        self._batch: Batch | None = None  # the batch of the run before, with its graphs
        # on a CPU each caption takes as long in a group as alone
        self.groups_prompts = self.device.type != "cpu"
        self._ahead: Prefill | None = None  # the queue's first captions, which wait for rows

    @torch.inference_mode()
    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Yield every request's result as it finishes.

        Raises:
            ValueError: the target cannot read a caption; raised when its prompt is read. Results
                yielded before remain valid.
            DecodingError: the target's or the drafter's logits are not finite.
        """
        queue = deque(requests)
        if not queue:
            return
        batch, recorder = self.open(queue)
        while recorder.open_rows:
            counts = self.read(batch, self.step(batch))
            recorder.record(counts)
            batch.sync_host_counts(counts.so_far)
            finished = [row for row in recorder.open_rows if counts.so_far[row] >= self.image_len]
            if finished:
                tokens = batch.tokens.cpu()
                images = recorder.close(finished)
                for row, (request, statistics) in zip(finished, images, strict=True):
                    yield Result(request, tokens[row].clone(), statistics)
                if queue or recorder.open_rows:
                    self._refill(batch, recorder, counts.so_far, queue)
        self.keep(batch)

    def open(self, queue: deque[Request]) -> tuple[Batch, StatisticsRecorder]:
        """A batch with the queue's first captions, prefilled."""
        captions = min(self.batch_size, len(queue))
        self._ahead = None
        batch = self._static_batch(captions) if self.new_capture else self.allocate(captions)
        recorder = StatisticsRecorder(batch.images, self.timer)
        self.admit(batch, recorder, list(range(captions)), queue)
        batch.sync_host_counts([1])
        return batch, recorder

    def _static_batch(self, captions: int) -> Batch:
        """The batch of the run before, in the least size that has a row for each of so many
        captions.
        """
        # a run that fails does not give the batch back
        batch = self._batch
        self._batch = None
        if batch is None or batch.buffers.capacity != self.batch_size:
            del batch  # its memory is free for the new one
            self._free()
            batch = self.allocate(self.batch_size)
        batch.buffers.reset(graphs.padded_batch_size(self.batch_size, captions))
        batch.idle(torch.arange(batch.images, device=self.device))
        return batch

    @property
    def uses_graphs(self) -> bool:
        """Whether passes are CUDA graphs."""
        return self.new_capture is not None and graphs.PassGraphs.failure is None

    def keep(self, batch: Batch) -> None:
        """Keep a batch whose run has ended, with its graphs, for the next run; only if it is
        static.
        """
        if batch.static:
            self._batch = batch
        else:
            self._free()

    def release(self) -> None:
        """Free the batch and the graphs of the run before. No other tensor gets the memory of
        graphs before the allocator's cache is emptied.
        """
        if self._batch is not None:
            self._free()
            torch.cuda.empty_cache()

    def _free(self) -> None:
        """Drop the last batch, and what the drafter has allocated for it."""
        self._batch = None
        if self._drafter is not None:
            vars(self._drafter).clear()
            vars(self._drafter).update(vars(self._loaded_drafter))

    def read(self, batch: Batch, report: Tensor) -> PassCounts:
        """What a pass did, from its `step`: the only device-to-host transfer of a pass.

        Raises:
            DecodingError: logits were not finite.
        """
        numbers: list[int] = report.tolist()
        size = batch.images
        so_far, emitted, depth, nodes, failed = (
            numbers[part * size : (part + 1) * size] for part in range(5)
        )
        outcomes = numbers[5 * size : 5 * size + batch.size]
        self.drafting.set_bounds(numbers[5 * size + batch.size :])
        if any(failed):
            is_drafters = all(bits in (0, _DRAFTER_NONFINITE) for bits in failed)
            model = f"{self.config.drafter.kind} drafter of target" if is_drafters else "target"
            raise DecodingError(
                f"{model} {self.target.name}: logits are not finite (NaN or infinite weights?)"
            )
        return PassCounts(so_far, emitted, depth, nodes, outcomes)

    def step(self, batch: Batch) -> Tensor:
        """One pass for every row. The host reads nothing from the device, but for the size of an
        adjacency tree after rows have changed.

        Returns the pass's report for `read`: [5 * B + F * B + n], four counts of every row and what
        failed in it, the outcome of every draft tree, and n bounds of the next draft.
        """
        key = (batch.size, batch.max_emitted, *self.drafting.plan(batch))
        timer = self.timer.start()
        phases = partial(self._phases, batch)
        with kept_in(self.constants):
            report: Tensor
            if batch.graphs is None:
                report = phases(graphs.eager_runner(timer))
            else:
                report = batch.graphs.run(key, timer, phases)
            return report

    def _phases(self, batch: Batch, run: graphs.RunPhase) -> Tensor:
        """The phases of a pass, each carried out by `run`."""
        tree: DraftTree = run("drafter", lambda: self.drafting.draft(batch))
        features, logits = run("target", lambda: self._verify(batch, tree))
        if self.observer is not None:
            self.observer(batch, tree, logits)
        result: AcceptResult = run(
            "acceptance", lambda: self.drafting.accept(self.acceptor, tree, logits, batch)
        )
        report: Tensor = run("commit", lambda: self.commit(batch, tree, result, logits, features))
        return report

    def _verify(self, batch: Batch, tree: DraftTree) -> tuple[Tensor, Tensor]:
        """What the drafter reads of the target [R, N+1, D or taps * D], and the target's guided
        logits [B, N+1, V], at the root and every drafted node, in one pass.
        """
        shape = tree.shape
        slots = tree.shape.nodes + 1
        x = self.target.embed(batch.per_row(torch.cat([batch.root[:, None], tree.tokens], dim=1)))
        columns = batch.columns[:, :slots]
        positions = batch.rope_positions[:, :slots]
        if not shape.is_chain:
            positions = positions[:, :1] + batch.per_row_unless_shared(shape.offsets)
        row_ends = batch.row_end_pass(shape)
        if row_ends:
            x, columns, positions = row_ends.extend(x, columns, positions)
        x, columns, positions = batch.join_wavefronts(x, columns, positions)
        if shape.is_chain:
            mask = batch.chain_mask(columns)
        else:
            if row_ends:
                tree_mask = row_ends.tree_mask()
            else:
                tree_mask = batch.per_row_unless_shared(shape.additive_mask)
            mask = batch.attention_mask.tree(columns, tree_mask)
            slots = columns.shape[1]
        span = batch.image_column + batch.max_emitted + slots - 1
        cache = batch.cache.at(columns, span)
        features = self.target.transformer(
            x, positions, mask=mask[..., :span], cache=cache, taps=self.taps
        )
        if row_ends:
            features = row_ends.next_token_features(features)
        features, read = self._split(batch.split_wavefronts(features))
        return read, batch.guided_logits(self.target.head, features)

    def _split(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """The target's features, and what the drafter reads: the inputs of the layers that it taps,
        else the features.
        """
        if not self.taps:
            return outputs, outputs
        width = self.target.transformer.config.dim
        return outputs[..., :width], outputs[..., width:]

    def commit(
        self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor
    ) -> Tensor:
        """Move the accepted path's keys and values to their final columns, update the drafting,
        append the tokens. Returns the pass's report (see `step`).
        """
        width = result.tokens.shape[1]
        if result.path is None:
            features = features[:, :width]
        else:
            path = batch.per_row(result.path)
            source = batch.columns.gather(1, path)
            destination = batch.columns[:, :width]
            if row_ends := batch.row_end_pass(tree.shape):
                source, destination = row_ends.cache_moves(path, source, destination)
            batch.cache.move(source, destination)
            features = features.gather(1, path[..., None].expand(-1, -1, features.shape[2]))
        outcomes = batch.only_open(verification_outcomes(tree, result, batch))
        self.drafting.commit(batch, tree, result, logits, features)
        emitted = batch.commit(result.tokens, result.num_emitted, result.next_root)
        nonfinite = batch.by_image(result.nonfinite, torch.any)
        failed = torch.add(batch.failed_prefills, nonfinite, alpha=_TARGET_NONFINITE)
        if tree.nonfinite is not None:
            failed = torch.add(failed, tree.nonfinite, alpha=_DRAFTER_NONFINITE)
        levels = batch.by_image(tree.levels, torch.amax)
        nodes = batch.by_image(tree.num_nodes, torch.sum)
        counts = [batch.so_far, emitted, levels, nodes, failed, outcomes]
        bounds = self.drafting.next_bounds(batch)
        if bounds is not None:
            counts.append(bounds)
        report = torch.cat(counts)
        batch.buffers.copy_back()
        return report

    def allocate(self, size: int) -> Batch:
        """An empty batch whose cache has every column that decoding can use."""
        target = self.target
        row_ends = None
        columns = target.prompt_len + self.image_len
        # a pass uses one column per tree slot, or per level of the path if the host does not know
        # the path's length
        reach = max(self.drafting.max_nodes, self.drafting.max_levels) + 1
        if target.row_end is not None:
            row_ends = RowEnds(target.transformer.config, target.row_end)
            columns += row_ends.rows
            reach *= 2  # in a tree, any slot may be followed by the end of its row
        columns = aligned(columns + reach)
        batch_class: type[Batch] = load_object(self.config.drafter.batch_class)
        batch = batch_class.of(
            self.config.drafter,
            target.grid,
            size,
            cfg=self.sampling.cfg,
            prompt_len=target.prompt_len,
            reach=reach,
            cache=target.transformer.new_cache(stream_count(self.sampling.cfg) * size, columns),
            row_ends=row_ends,
            capture=self.new_capture() if self.new_capture else None,
        )
        self.drafting.prepare(batch)
        return batch

    def admit(
        self, batch: Batch, recorder: StatisticsRecorder, rows: list[int], queue: deque[Request]
    ) -> None:
        """Start the images of the queue's next captions at `rows`; their first tokens come from the
        prefill.

        The passes of all rows wait for a prefill. On an accelerator it takes about as long for a
        few captions as for one, so if few rows are free there, the prompts of more captions are
        read, which get the rows that are free next.
        """
        while rows:
            if self._ahead is None:
                self._ahead = self._prefill(batch, rows, queue)
            prefill, self._ahead = self._ahead.split(len(rows))
            requests = [queue.popleft() for _ in range(len(prefill.keys))]
            admitted = rows[: len(requests)]
            rows = rows[len(requests) :]
            self.timer.start()
            indices = torch.tensor(admitted, device=self.device)
            if prefill.cached.cache is not batch.cache:
                batch.cache.prompts(batch.rows(indices), self.target.prompt_len).fill(
                    prefill.cached
                )
            with kept_in(self.constants):
                batch.admit(
                    indices,
                    prefill.keys,
                    prefill.first_tokens,
                    prefill.prompt.valid,
                    prefill.nonfinite,
                )
            captions = [request.caption for request in requests]
            self.drafting.admit(
                indices, prefill.prompt, captions, prefill.features, prefill.first_tokens
            )
            batch.buffers.copy_back()
            self.timer.lap("prefill")
            recorder.open(admitted, requests, prefill.seconds)

    def _prefill(self, batch: Batch, rows: list[int], queue: deque[Request]) -> Prefill:
        """Read the prompts of the queue's first captions: as many as there are rows, into these
        rows of the batch's cache, or on an accelerator a part of a batch, into a cache of their
        own.
        """
        least = self.batch_size // PREFILLS if self.groups_prompts else 1
        count = min(len(queue), max(len(rows), least))
        requests = list(islice(queue, count))
        cache = batch.cache
        cache_rows = batch.rows(torch.tensor(rows, device=self.device))
        if count > len(rows):
            cache = self.target.transformer.new_cache(batch.streams * count, self.target.prompt_len)
            cache_rows = torch.arange(cache.rows, device=self.device)
        prompt = self.target.encode(
            [request.caption for request in requests], guided=batch.streams == 2
        )
        timer = self.timer.start()  # latency excludes the encoding of captions, as in the papers
        order = torch.arange(self.target.prompt_len, device=self.device)
        cached = cache.prompts(cache_rows, len(order))
        mask = causal_padding_mask(prompt.valid)
        outputs = self.target.transformer(
            prompt.embeds, order, mask=mask, cache=cached, taps=self.taps
        )
        features, read = self._split(outputs)
        probs = to_probs(batch.guided_logits(self.target.head, features[:, -1]), self.sampling)
        keys = image_keys(
            self.seed, [r.caption_id for r in requests], [r.sample for r in requests], self.device
        )
        first_tokens = self.acceptor.sample(probs, CounterRNG(keys, 1), torch.zeros_like(keys))
        timer.lap("prefill")
        seconds = timer.take()["prefill"] / count
        return Prefill(prompt, cached, read, keys, first_tokens, probs.isnan().any(1), seconds)

    def _refill(
        self, batch: Batch, recorder: StatisticsRecorder, so_far: list[int], queue: deque[Request]
    ) -> None:
        """Give finished rows to waiting captions. Rows for which no caption is waiting are removed;
        those of a static batch are idle until half of its rows can be removed.
        """
        finished = [row for row, count in enumerate(so_far) if count >= self.image_len]
        reused = finished[: len(queue)]
        unused = finished[len(queue) :]
        so_far = [1 if row in finished else count for row, count in enumerate(so_far)]
        if reused:
            self.admit(batch, recorder, reused, queue)
        if unused:
            rows = recorder.open_rows
            if batch.static:
                batch.idle(torch.tensor(unused, device=self.device))
                size = graphs.padded_batch_size(self.batch_size, len(rows))
                rows += [row for row in range(batch.images) if row not in rows][: size - len(rows)]
            if len(rows) < batch.images:
                rows = _in_place(rows)
                batch.keep(torch.tensor(rows, device=self.device))
                recorder.keep(rows)
                so_far = [so_far[row] for row in rows]
        batch.sync_host_counts(so_far)


def _in_place(rows: Sequence[int]) -> list[int]:
    """Rows that are kept, in the order in which most of them stay where they are: those beyond the
    new size take the places of removed ones.
    """
    kept = set(rows)
    moving = [row for row in rows if row >= len(rows)]
    return [row if row in kept else moving.pop() for row in range(len(rows))]
