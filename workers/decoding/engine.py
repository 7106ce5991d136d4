"""The engine: turns captions into image tokens. Every method, vanilla decoding included, is the same loop:

draft -> verify (one pass of the target) -> accept -> commit
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.trial import DecodingConfig
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.build import build_drafting, build_tables, resolve_for_target
from workers.decoding.drafter import Drafter
from workers.decoding.rng import CounterRNG, image_keys
from workers.decoding.row_ends import RowEnds
from workers.decoding.sampling import apply_cfg, to_probs
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import ImageStatistics, PhaseTimer, StatisticsRecorder
from workers.decoding.tree import DraftTree
from workers.models.masks import causal_padding_mask
from workers.models.target import Target

_TARGET_NONFINITE, _DRAFTER_NONFINITE = -1, -2  # in place of a row's token count


Observer = Callable[[Batch, DraftTree, Tensor], None]


class DecodingError(RuntimeError):
    """Decoding failed because of the model or the machine, not because of the config."""


@dataclass(frozen=True, slots=True)
class Result:
    """One finished image: its request, its tokens [image_len] (int64, CPU) and its statistics."""

    request: Request
    tokens: Tensor
    statistics: ImageStatistics


class Engine:
    """Decodes captions with one config.

    A config without sampling parameters uses the target's own. drafter: the loaded drafter that the config names (None
    for vanilla decoding and Jacobi windows). tables: the lookup tables of the acceptance rule (None: computed here). At
    most `batch_size` captions are decoded together (continuous batching): a waiting caption takes the row of a finished
    one, and when none is waiting the batch shrinks. observer: called in every round before acceptance, with the batch,
    the draft tree and the target's guided logits [B, N+1, V]; it must not change them.

    Raises:
        ValueError: the target or the drafter does not support the config (k larger than the codebook, more levels than
            Medusa heads, ...).
    """

    def __init__(
        self,
        target: Target,
        config: DecodingConfig,
        drafter: Drafter | None = None,
        *,
        seed: int = 0,
        batch_size: int = 1,
        tables: NeighbourTables | None = None,
        observer: Observer | None = None,
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.target, self.seed, self.batch_size, self.device = target, seed, batch_size, target.device
        self.observer = observer
        self._next_bounds: Tensor | None = None
        self.config = resolve_for_target(config, target, drafter)
        self.sampling = self.config.sampling or target.sampling
        self.drafting = build_drafting(self.config, target, drafter)
        tables = tables or build_tables(self.config, target)
        self.acceptor = Acceptor(self.config.acceptance, tables, self.sampling, self.drafting.max_levels, self.device)
        self.image_len = target.grid.tokens
        self.timer = PhaseTimer(self.device)

    @torch.inference_mode()
    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Yield every request's result as it finishes.

        Raises:
            ValueError: the target cannot read a caption; raised when the caption is admitted. Results yielded before
                remain valid.
            DecodingError: the target's or the drafter's logits are not finite.
        """
        queue = deque(requests)
        if not queue:
            return
        batch, recorder = self.open(queue)
        while batch.size:
            result, tree = self.step(batch)
            recorder.record(result.num_emitted, tree)
            emitted = self.read_counts(batch, result, tree)
            batch.sync_host_counts(emitted)
            finished = [row for row, count in enumerate(emitted) if count >= self.image_len]
            if finished:
                tokens = batch.tokens.cpu()
                yield from [Result(recorder.requests[i], tokens[i].clone(), recorder.close(i)) for i in finished]
                self._refill(batch, recorder, finished, queue)

    def open(self, queue: deque[Request]) -> tuple[Batch, StatisticsRecorder]:
        """A batch with the queue's first captions, prefilled."""
        batch = self.allocate(min(self.batch_size, len(queue)))
        recorder = StatisticsRecorder(batch.size, self.image_len, self.timer, self.device)
        self.admit(batch, recorder, list(range(batch.size)), queue)
        return batch, recorder

    def read_counts(self, batch: Batch, result: AcceptResult, tree: DraftTree) -> list[int]:
        """Number of tokens that each row has emitted so far: with the bounds of the next draft, the only device-to-host
        transfer of a round.

        Raises:
            DecodingError: logits were not finite.
        """
        counts = batch.emitted
        if tree.nonfinite is not None:
            counts = torch.where(tree.nonfinite, _DRAFTER_NONFINITE, counts)
        counts = torch.where(result.nonfinite, _TARGET_NONFINITE, counts)
        bounds = self._next_bounds
        read: list[int] = (counts if bounds is None else torch.cat([counts, bounds])).tolist()
        emitted = read[: batch.size]
        self.drafting.set_bounds(read[batch.size :])
        if min(emitted) < 0:
            model = "target" if _TARGET_NONFINITE in emitted else f"{self.config.drafter.kind} drafter of target"
            raise DecodingError(f"{model} {self.target.name}: logits are not finite (NaN or infinite weights?)")
        return emitted

    def step(self, batch: Batch) -> tuple[AcceptResult, DraftTree]:
        """One round for every row. The host reads nothing from the device. Only after rows have changed, an adjacency
        tree reads its size.
        """
        timer = self.timer.start()
        tree = self.drafting.draft(batch)
        timer.lap("drafter")
        features, logits = self._verify(batch, tree)
        timer.lap("target")
        guided = apply_cfg(logits, self.sampling.cfg)
        if self.observer is not None:
            self.observer(batch, tree, guided)
        result = self.acceptor(tree, guided, batch)
        timer.lap("acceptance")
        self.commit(batch, tree, result, guided, features)
        self._next_bounds = self.drafting.next_bounds(batch)
        timer.lap("commit")
        return result, tree

    def _verify(self, batch: Batch, tree: DraftTree) -> tuple[Tensor, Tensor]:
        """The target's features [R, N+1, D] and logits [R, N+1, V] at the root and every drafted node, in one pass."""
        shape, slots = tree.shape, tree.shape.nodes + 1
        x = self.target.embed(batch.per_row(torch.cat([batch.root[:, None], tree.tokens], dim=1)))
        columns, positions = batch.columns[:, :slots], batch.rope_positions[:, :slots]
        if not shape.is_chain:
            positions = positions[:, :1] + batch.per_row_unless_shared(shape.offsets)
        row_ends = batch.row_end_pass(shape)
        if row_ends:
            x, columns, positions = row_ends.extend(x, columns, positions)
        if shape.is_chain:
            mask = batch.attention_mask.chain(columns)
        else:
            tree_mask = row_ends.tree_mask() if row_ends else batch.per_row_unless_shared(shape.additive_mask)
            mask = batch.attention_mask.tree(columns, tree_mask)
            slots = columns.shape[1]
        span = batch.image_column + batch.max_emitted + slots - 1
        features = self.target.transformer(x, positions, mask=mask[..., :span], cache=batch.cache.at(columns, span))
        if row_ends:
            features = row_ends.next_token_features(features)
        return features, self.target.head(features)

    def commit(self, batch: Batch, tree: DraftTree, result: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """Move the accepted path's keys and values to their final columns, update the drafting, append the tokens."""
        width = result.tokens.shape[1]
        if result.path is None:
            features = features[:, :width]
        else:
            path = batch.per_row(result.path)
            source, destination = batch.columns.gather(1, path), batch.columns[:, :width]
            if row_ends := batch.row_end_pass(tree.shape):
                source, destination = row_ends.cache_moves(path, source, destination)
            batch.cache.move(source, destination)
            features = features.gather(1, path[..., None].expand(-1, -1, features.shape[2]))
        self.drafting.commit(batch, tree, result, logits, features)
        batch.commit(result.tokens, result.num_emitted, result.next_root)

    def allocate(self, size: int) -> Batch:
        """An empty batch whose cache has every column that decoding can use."""
        target = self.target
        row_ends = None if target.row_end is None else RowEnds(target.transformer.config, target.row_end)
        guided = self.sampling.cfg != 1.0
        # a round uses one column per tree slot, or per level of the path if the host does not know the path's length
        reach = max(self.drafting.max_nodes, self.drafting.max_levels) + 1
        if row_ends:
            reach *= 2  # in a tree, any slot may be followed by the end of its row
        columns = target.prompt_len + (row_ends.rows if row_ends else 0) + self.image_len + reach
        batch = Batch(
            size,
            guided=guided,
            prompt_len=target.prompt_len,
            image_len=self.image_len,
            reach=reach,
            cache=target.transformer.new_cache((2 if guided else 1) * size, columns),
            row_ends=row_ends,
        )
        self.drafting.prepare(batch)
        return batch

    def admit(self, batch: Batch, recorder: StatisticsRecorder, rows: list[int], queue: deque[Request]) -> None:
        """Prefill the queue's next captions and put them at `rows`; their first tokens come from the prefill."""
        requests = [queue.popleft() for _ in rows]
        captions = [request.caption for request in requests]
        prompt = self.target.encode(captions, guided=batch.guided)
        timer = self.timer.start()  # latency excludes the encoding of captions, as in the papers
        order = torch.arange(self.target.prompt_len, device=self.device)
        indices = torch.tensor(rows, device=self.device)
        cache = batch.cache.prompts(batch.rows(indices), len(order))
        features = self.target.transformer(prompt.embeds, order, mask=causal_padding_mask(prompt.valid), cache=cache)
        probs = to_probs(apply_cfg(self.target.head(features[:, -1]), self.sampling.cfg), self.sampling)
        keys = image_keys(self.seed, [r.caption_id for r in requests], [r.sample for r in requests], self.device)
        first_tokens = self.acceptor.sample(probs, CounterRNG(keys, 1), torch.zeros_like(keys))
        batch.admit(indices, keys, first_tokens, prompt.valid)
        self.drafting.admit(indices, prompt, captions, features, first_tokens)
        timer.lap("prefill")
        recorder.open(rows, requests)

    def _refill(self, batch: Batch, recorder: StatisticsRecorder, finished: list[int], queue: deque[Request]) -> None:
        """Give finished rows to waiting captions; remove the finished rows for which no caption is waiting."""
        reused = finished[: len(queue)]
        if reused:
            self.admit(batch, recorder, reused, queue)
        removed = set(finished[len(reused) :])
        if removed:
            rows = [row for row in range(batch.size) if row not in removed]
            indices = torch.tensor(rows, dtype=torch.int64, device=self.device)
            batch.keep(indices)
            self.drafting.keep(indices)
            recorder.keep(rows)
        batch.sync_host_counts(batch.emitted.tolist())
