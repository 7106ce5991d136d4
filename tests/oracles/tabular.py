"""Models that are tables: their distributions are known, so the tokens of decoding are checked
against the exact ones.

A context (the image's tokens so far) is numbered like a node of a heap: nothing is 0, and after
context c token x leads to c * V + 1 + x. The drafting, the result and the random numbers are the
real ones; only the two networks are look-ups.
"""

from types import SimpleNamespace
from typing import cast

import numpy as np
import torch
from scipy.stats import chi2
from torch import Tensor

from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.grid import Grid
from workers.decoding import rng
from workers.decoding.accept import Acceptor, AcceptResult
from workers.decoding.build import build_drafting
from workers.decoding.drafter import Drafter
from workers.decoding.engine import Observer
from workers.decoding.sampling import apply_cfg, stream_count, to_probs
from workers.decoding.state import Batch
from workers.models.cache import KVCache
from workers.models.target import Prompt, Target


def contexts(codes: int, length: int) -> int:
    """Number of contexts of fewer than ``length`` tokens."""
    return sum(codes**n for n in range(length))


def random_logits(codes: int, length: int, seed: int, streams: int = 1, images: int = 1) -> Tensor:
    """Logits [streams, images, contexts, V] of a random table (streams: conditional,
    unconditional).
    """
    generator = torch.Generator().manual_seed(seed)
    return 0.9 * torch.randn(streams, images, contexts(codes, length), codes, generator=generator)


class TabularDrafter(Drafter):
    """Drafts from a table [streams, images, contexts, V]; ``blind`` to the path below the root,
    like Medusa's heads. drafted: only the first so many codes, like an EAGLE-3 layer; None: all.
    """

    kind = "independent"

    def __init__(self, logits: Tensor, *, blind: bool, drafted: int | None = None) -> None:
        super().__init__()
        self.logits, self.blind, self.drafted = logits, blind, drafted

    def guided(self, logits: Tensor, batch: Batch) -> Tensor:
        logits = apply_cfg(logits, batch.cfg)
        if self.drafted is not None:
            logits[..., self.drafted :] = -torch.inf
        return logits

    def prepare(self, batch: Batch, levels: int, expanded: int) -> None:
        self.image = torch.arange(batch.size)
        batch.buffers.add(self, "image")

    def admit(
        self,
        indices: Tensor,
        prompt: Prompt,
        captions: list[str],
        features: Tensor,
        first_tokens: Tensor,
    ) -> None:
        pass

    def root_logits(self, batch: Batch) -> Tensor:
        self.at = self.root = committed(batch, self.logits)[:, None]
        return self.guided(look_up(self.logits, self.image, self.root)[:, 0], batch)

    def expand(self, batch: Batch, tokens: Tensor, parents: Tensor | None) -> Tensor:
        above = self.at if parents is None else self.at.gather(1, parents.expand(batch.size, -1))
        self.at = below(
            above.expand(tokens.shape),
            torch.zeros_like(tokens) if self.blind else tokens,
            self.logits,
        )
        return self.guided(look_up(self.logits, self.image, self.at), batch)

    def commit(self, batch: Batch, tokens: Tensor, features: Tensor, counts: Tensor) -> None:
        pass


def below(context: Tensor, token: Tensor, logits: Tensor) -> Tensor:
    """The context after one more token; drafts past the image's end, which are never kept, lead
    anywhere.
    """
    child = context * logits.shape[-1] + 1 + token
    return torch.where(child < logits.shape[2], child, 0)


def committed(batch: Batch, logits: Tensor) -> Tensor:
    """Contexts [B] of the tokens drawn so far."""
    context = torch.zeros_like(batch.emitted)
    for place in range(batch.image_len):
        known = place < batch.emitted
        context = torch.where(known, below(context, batch.tokens[:, place], logits), context)
    return context


def look_up(logits: Tensor, image: Tensor, context: Tensor) -> Tensor:
    """Logits [R, F, V] of contexts [B, F] of images [B]; one image's table serves all rows where
    there is only one.
    """
    row = torch.zeros_like(image) if logits.shape[1] == 1 else image
    return logits[:, row[:, None], context].flatten(0, 1)


class TabularEngine:
    """The engine's loop on tables. ``target`` and ``draft`` are logits [streams, images, contexts,
    V].
    """

    observer: Observer | None = None

    def __init__(
        self,
        config: DecodingConfig,
        target: Tensor,
        draft: Tensor,
        image_len: int,
        *,
        blind: bool = False,
        drafted: int | None = None,
        lookup: NeighbourTables | None = None,
        grid: Grid | None = None,
    ) -> None:
        assert config.sampling is not None
        self.target, self.image_len, self.sampling = target, image_len, config.sampling
        rows = 2 if image_len % 2 == 0 else 1
        grid = grid or Grid(rows, image_len // rows)
        model = SimpleNamespace(device=torch.device("cpu"), vocab_size=target.shape[-1], grid=grid)
        drafter = (
            None
            if config.drafter.kind in ("none", "jacobi")
            else TabularDrafter(draft, blind=blind, drafted=drafted)
        )
        self.drafting = build_drafting(config, cast(Target, model), drafter)
        self.acceptor = Acceptor(
            config.acceptance,
            lookup or NeighbourTables(),
            config.sampling,
            self.drafting.max_levels,
            grid,
            torch.device("cpu"),
        )

    def open(self, count: int, first_id: int) -> Batch:
        """``count`` images with their first tokens drawn; their caption ids start at
        ``first_id``.
        """
        cache = KVCache(0, stream_count(self.sampling.cfg) * count, 1, 1, 1)  # without layers
        reach = max(self.drafting.max_nodes, self.drafting.max_levels) + 1
        batch = Batch(
            count,
            cfg=self.sampling.cfg,
            prompt_len=1,
            image_len=self.image_len,
            reach=reach,
            cache=cache,
        )
        self.image = torch.arange(count)
        self.drafting.prepare(batch)
        keys = rng.image_keys(5, range(first_id, first_id + count), [0] * count)
        logits = apply_cfg(
            look_up(self.target, self.image, torch.zeros(count, 1, dtype=torch.int64)),
            self.sampling.cfg,
        )
        probs = to_probs(logits[:, 0], self.sampling)
        first = self.acceptor.sample(probs, rng.CounterRNG(keys, 1), torch.zeros_like(keys))
        all_rows = torch.arange(count)
        batch.admit(all_rows, keys, first, torch.ones(batch.streams * count, 1, dtype=torch.bool))
        nothing = torch.zeros(batch.streams * count, 1, 1)
        prompt = Prompt(nothing, nothing[..., 0].bool())
        self.drafting.admit(all_rows, prompt, [], nothing, first)
        return batch

    def step(self, batch: Batch) -> AcceptResult:
        """One round, as `Engine.step` does it."""
        self.drafting.plan(batch)
        tree = self.drafting.draft(batch)
        context = [committed(batch, self.target)]
        parents = tree.shape.parents.expand(batch.size, -1)
        for node in range(tree.shape.nodes):
            above = torch.stack(context, 1).gather(1, parents[:, node : node + 1] + 1)[:, 0]
            context.append(below(above, tree.tokens[:, node], self.target))
        logits = apply_cfg(
            look_up(self.target, self.image, torch.stack(context, 1)), self.sampling.cfg
        )
        if self.observer is not None:
            self.observer(batch, tree, logits)
        result = self.drafting.accept(self.acceptor, tree, logits, batch)
        self.drafting.commit(batch, tree, result, logits, logits)
        batch.commit(result.tokens, result.num_emitted, result.next_root)
        return result

    @torch.inference_mode()
    def images(self, count: int, first_id: int = 0) -> Tensor:
        """``count`` finished images [count, image_len], by caption id."""
        batch = self.open(count, first_id)
        done, names = [], []
        name = torch.arange(count)
        while batch.size:
            self.step(batch)
            batch.max_emitted = int(batch.emitted.max())
            going = batch.emitted < self.image_len
            done.append(batch.tokens[~going])
            names.append(name[~going])
            stay = going.nonzero()[:, 0]
            name, self.image = name[stay], self.image[stay]
            batch.keep(stay)
        return torch.cat(done)[torch.cat(names).argsort()]


def processed(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """The target's distribution, plainly: guided logits [n, V] -> temperature, top-k, softmax,
    top-p; with T(E), the filters at temperature 1, then a softmax at the temperature that follows
    from what they leave.
    """
    if isinstance(dynamic := sampling.dynamic_temperature, EntropyTemperature):
        all_probs = processed(logits, Sampling(1.0, sampling.top_k, sampling.top_p))
        for row, probs in enumerate(all_probs):
            support = np.flatnonzero(probs)
            entropy = -sum(p * np.log(p) for p in probs[support])
            factor = dynamic.amplitude * np.exp(-entropy / dynamic.scale) + dynamic.theta
            masses = np.exp(logits[row, support] / (sampling.temperature * factor))
            all_probs[row, support] = masses / masses.sum()
        return all_probs
    all_probs = np.zeros_like(logits)
    for row, line in enumerate(logits / sampling.temperature):
        order = sorted(range(len(line)), key=lambda x: -line[x])
        order = order[: sampling.top_k] if sampling.top_k else order
        masses = np.exp([line[x] - line[order[0]] for x in order])
        masses /= masses.sum()
        kept = next(
            (n for n, mass in enumerate(masses.cumsum(), 1) if mass >= sampling.top_p), len(order)
        )
        all_probs[row, order[:kept]] = masses[:kept] / masses[:kept].sum()
    return all_probs


def exact_distribution(target: Tensor, sampling: Sampling, length: int) -> np.ndarray:
    """The joint probs of whole images [V ** length], first token most significant; target [streams,
    1, contexts, V].
    """
    table = target[:, 0].double().numpy()
    guided = table[0] if sampling.cfg == 1 else table[1] + sampling.cfg * (table[0] - table[1])
    all_probs, codes = processed(guided, sampling), target.shape[-1]
    joint, start = np.ones(1), 0
    for n in range(length):
        joint = (joint[:, None] * all_probs[start : start + codes**n]).ravel()
        start += codes**n
    return joint


def p_value(counts: np.ndarray, probs: np.ndarray) -> float:
    """Chi-square p-value of counts against probs. Cells that expect under 5 are pooled; an
    impossible one gives 0.
    """
    if counts[probs == 0].any():
        return 0.0
    expected = probs * counts.sum()
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < 5:  # too little even so: pool it with the smallest cell
        least = expected[:-1].argmin()
        counts[least], expected[least] = counts[least] + counts[-1], expected[least] + expected[-1]
        counts, expected = counts[:-1], expected[:-1]
    statistic = ((counts - expected) ** 2 / expected).sum()
    return float(chi2.sf(statistic, len(counts) - 1))
