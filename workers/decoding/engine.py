"""The engine: captions in, tokens out. Every method, plain decoding included, is this one loop:

draft -> verify (one pass of the target) -> accept (the walk) -> commit
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from search_spaces.acceptance import NeighbourTables
from search_spaces.trial import DecodingConfig
from workers.decoding import rng
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.draft import Drafting
from workers.decoding.drafter import Drafter
from workers.decoding.methods import build_drafting, build_tables, resolve
from workers.decoding.row_ends import RowEnds
from workers.decoding.sampling import apply_cfg, to_probs
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import ImageStatistics, PhaseTimer, StatisticsRecorder
from workers.decoding.tree import DraftTree
from workers.models.target import Target

_TARGET_BROKEN, _DRAFTER_BROKEN = -1, -2  # in place of a row's count


class DecodingError(RuntimeError):
    """Decoding failed for a reason that lies in the model or the machine, not in the setting."""


class Result:
    """One finished image: its request, its tokens [image_len] (int64, CPU) and its statistics."""

    __slots__ = ("request", "statistics", "tokens")

    def __init__(self, request: Request, tokens: Tensor, statistics: ImageStatistics) -> None:
        self.request, self.tokens, self.statistics = request, tokens, statistics


class Engine:
    """Decodes captions with one setting.

    A setting without sampling parameters takes the target's own. `drafter` is the loaded drafter that the setting
    names (None for plain decoding and Jacobi windows); `tables` what its rule looks up (None: made here). At most
    `batch_size` captions advance together, each at its own pace; a finished one hands its place to the next, and when
    none are left the batch shrinks.

    Raises:
        ValueError: the setting does not fit the target or the drafter (k beyond the codebook, more levels than heads,
        ...).
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
    ) -> None:
        if batch_size < 1:
            raise ValueError(f"batch size must be at least 1, got {batch_size}")
        self.target, self.seed, self.batch_size = target, seed, batch_size
        self.config, self.sampling = resolve(config, target, drafter)
        self.device = target.device
        self.drafting: Drafting = build_drafting(self.config, self.sampling, target, drafter)
        self.acceptor = Acceptor(
            self.config.acceptance,
            tables or build_tables(self.config, target),
            self.sampling,
            self.drafting.max_levels,
            self.device,
        )
        self.image_len = target.grid.tokens
        self.row_ends = None if target.row_end is None else RowEnds(target.transformer.config, target.row_end)
        self.timer = PhaseTimer(self.device)

    @torch.inference_mode()
    def run(self, requests: Iterable[Request]) -> Iterator[Result]:
        """Yield every request's result as it finishes.

        Raises:
            ValueError: a caption the target cannot read, when its turn comes; results yielded before stand.
            DecodingError: the target's or the drafter's logits are not finite.
        """
        queue = deque(requests)
        if not queue:
            return
        batch = self.open_batch(min(self.batch_size, len(queue)))
        ledger = StatisticsRecorder(batch.size, self.image_len, self.timer, self.device)
        self.admit(batch, ledger, list(range(batch.size)), queue)
        while batch.size:
            walk, tree = self.step(batch)
            ledger.record(walk.emitted, tree)
            emitted = self.read_back(batch, walk, tree)
            batch.sync_host_counts(emitted)
            done = [index for index, count in enumerate(emitted) if count >= self.image_len]
            if done:
                tokens = batch.tokens.cpu()
                yield from [Result(ledger.requests[i], tokens[i].clone(), ledger.close(i)) for i in done]
                self.refill(batch, ledger, done, queue)

    def read_back(self, batch: Batch, walk: AcceptResult, tree: DraftTree) -> list[int]:
        """Tokens each row has so far: all that the host learns of a round, in one transfer.

        Raises:
            DecodingError: logits were not finite.
        """
        state = batch.emitted if tree.broken is None else torch.where(tree.broken, _DRAFTER_BROKEN, batch.emitted)
        told: list[int] = torch.where(walk.broken, _TARGET_BROKEN, state).tolist()
        if min(told) < 0:
            guilty = "target" if _TARGET_BROKEN in told else f"{self.config.drafter.kind} drafter of target"
            raise DecodingError(f"{guilty} {self.target.name}: logits are not finite (NaN or infinite weights?)")
        return told

    def step(self, batch: Batch) -> tuple[AcceptResult, DraftTree]:
        """One round for every row. Nothing is read back from the device once drafting has begun; only an adjacency tree
        asks for its size first, when the device has nothing to do yet.
        """
        clock = self.timer.start()
        tree = self.drafting.draft(batch)
        clock.lap("drafter")
        features, logits = self.verify(batch, tree)
        clock.lap("target")
        guided = apply_cfg(logits, self.sampling.cfg)
        walk = self.acceptor(tree, guided, batch)
        clock.lap("acceptance")
        self.commit(batch, tree, walk, guided, features)
        clock.lap("commit")
        return walk, tree

    def verify(self, batch: Batch, tree: DraftTree) -> tuple[Tensor, Tensor]:
        """The target's features [R, N+1, D] and logits [R, N+1, V] at the root and every drafted node, in one pass."""
        shape, slots = tree.shape, tree.shape.nodes + 1
        x = self.target.embed(batch.per_row(torch.cat([batch.root[:, None], tree.tokens], dim=1)))
        columns, positions = batch.columns[:, :slots], batch.positions[:, :slots]
        if not shape.chain:
            positions = positions[:, :1] + batch.shared(shape.offsets)
        crossing = self.row_ends.crossing(batch, shape) if self.row_ends else None
        if crossing:
            x, columns, positions = crossing.extend(x, columns, positions)
        if shape.chain:
            mask = batch.attention_mask.chain(columns)
        else:
            mask = batch.attention_mask.tree(
                columns, crossing.additive_mask() if crossing else batch.shared(shape.additive_mask)
            )
            slots = columns.shape[1]
        span = batch.first + batch.max_emitted + slots - 1
        features = self.target.transformer(
            x, positions, mask=mask[..., :span], cache=batch.cache, columns=columns, span=span
        )
        if crossing:
            features = crossing.after(features)
        return features, self.target.head(features)

    def commit(self, batch: Batch, tree: DraftTree, walk: AcceptResult, logits: Tensor, features: Tensor) -> None:
        """Move the accepted path's keys and values into place, tell the drafter, append the tokens."""
        walked = walk.tokens.shape[1]
        if walk.path is None:
            features = features[:, :walked]
        else:
            path = batch.per_row(walk.path)
            source, place = batch.columns.gather(1, path), batch.columns[:, :walked]
            if crossing := self.row_ends.crossing(batch, tree.shape) if self.row_ends else None:
                source, place = crossing.settle(path, source, place)
            batch.cache.move(source, place)
            features = features.gather(1, path[..., None].expand(-1, -1, features.shape[2]))
        self.drafting.commit(batch, tree, walk, logits, features)
        batch.commit(walk.tokens, walk.emitted, walk.last)

    def open_batch(self, size: int) -> Batch:
        """An empty batch with room for every column that decoding can ever touch."""
        prompt_len, ends = self.target.prompt_len, self.row_ends
        guided = self.sampling.cfg != 1.0
        # a round takes up as many columns as its tree has slots, or as its path is wide where the host cannot know it
        reach = max(self.drafting.max_nodes, self.drafting.max_levels) + 1
        if ends:
            reach *= 2  # in a tree, any slot may be followed by the end of its row
        columns = prompt_len + (ends.rows if ends else 0) + self.image_len + reach
        cache = self.target.transformer.new_cache((2 if guided else 1) * size, columns)
        batch = Batch(
            size,
            guided=guided,
            prompt_len=prompt_len,
            image_len=self.image_len,
            reach=reach,
            cache=cache,
            device=self.device,
            dtype=cache.storage.dtype,
            row_ends=ends,
        )
        self.drafting.prepare(batch)
        return batch

    def admit(self, batch: Batch, ledger: StatisticsRecorder, places: list[int], queue: deque[Request]) -> None:
        """Prefill the next captions of the queue and put them at `places`; their first tokens come from the prefill."""
        requests = [queue.popleft() for _ in places]
        prompt = self.target.encode([request.caption for request in requests], guided=batch.guided)
        clock = self.timer.start()  # latencies leave the reading of captions out, as the papers' do
        length = self.target.prompt_len
        order = torch.arange(length, device=self.device)
        itself = torch.eye(length, dtype=torch.bool, device=self.device)
        mask = (order[:, None] >= order) & prompt.valid[:, None] | itself  # a padded row sees at least itself
        rows = prompt.embeds.shape[0]
        scratch = self.target.transformer.new_cache(rows, length)
        features = self.target.transformer(
            prompt.embeds, order, mask=mask[:, None], cache=scratch, columns=order.expand(rows, -1)
        )
        law = to_probs(apply_cfg(self.target.head(features[:, -1]), self.sampling.cfg), self.sampling)
        keys = rng.image_keys(self.seed, [j.caption_id for j in requests], [j.sample for j in requests], self.device)
        first = self.acceptor.draw(law, rng.CounterRNG(keys, 1), torch.zeros_like(keys))
        where = torch.tensor(places, device=self.device)
        batch.cache.put(batch.rows(where), scratch)
        batch.admit(where, keys, first, prompt.valid)
        self.drafting.admit(where, prompt, [request.caption for request in requests], features, first)
        clock.lap("prefill")
        ledger.open(places, requests)

    def refill(self, batch: Batch, ledger: StatisticsRecorder, done: list[int], queue: deque[Request]) -> None:
        """Give finished rows to waiting captions; drop the rows for which none is left."""
        taken = done[: len(queue)]
        if taken:
            self.admit(batch, ledger, taken, queue)
        idle = set(done[len(taken) :])
        if idle:
            stay = [index for index in range(batch.size) if index not in idle]
            where = torch.tensor(stay, dtype=torch.int64, device=self.device)
            batch.keep(where)
            self.drafting.keep(where)
            ledger.keep(stay)
        batch.sync_host_counts(batch.emitted.tolist())
