"""Operations of a step outside the models' forwards, as an accelerator gets them.

    python -m benchmarks.operations [--only lantern sjd ...] [--list draft]

On an accelerator each operation is a kernel launch, which takes some microseconds however little it
computes. Here the engine decodes on the meta device, which has shapes but no values, takes no
shortcut of a CPU, and reads nothing back. Every call of an operator counts, unless it returns a
view, except those inside the forwards of target and drafter. A composite operator counts as what it
is made of. Without --largest, adjacency trees have the size that an image starts with.
"""

from __future__ import annotations

import argparse
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.overhead import networks
from search_spaces.modulations import MODULATIONS
from search_spaces.presets import CATALOGUE
from search_spaces.trees import Adjacency
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.loading.dry_run import blank_tables, sample_caption
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder

# the most operations of a step: chains, static trees and windows; trees of varying shape
CHAINS, TREES = 149, 233
SKIPPING = 456  # of a pass that drafts a second tree behind unverified tokens
TOGETHER = 559  # of a tree whose drafts are tested together
DRAFTED = 285  # of a window of 15 whose new positions a drafter fills, when all are new
ROWS = 223  # the same of several rows at once
LARGEST = 331  # of adjacency trees of the largest size, to which a CUDA graph pads them
PHASES = ("draft", "target", "accept", "commit")
_NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "detach"}


class OperationCounter(TorchDispatchMode):
    """Counts operations by phase and name, outside the watched modules' forwards."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.phase, self.counts, self._inside = (
            "target",
            {phase: Counter[str]() for phase in PHASES},
            0,
        )

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._inside:
            with self:
                out = func.decompose(*args, **(kwargs or {}))
            if out is not NotImplemented:
                return out
        name = func._schema.name.removeprefix("aten::")
        is_view = not func._schema.is_mutable and any(
            output.alias_info is not None for output in func._schema.returns
        )
        if not (self._inside or is_view or name in _NO_KERNEL):
            self.counts[self.phase][name] += 1
        return func(*args, **(kwargs or {}))

    def during(self, phase: str, call: Callable[..., Any]) -> Callable[..., Any]:
        """The call, counted as this phase."""

        def counted(*args: object, **kwargs: object) -> object:
            before, self.phase = self.phase, phase
            try:
                return call(*args, **kwargs)
            finally:
                self.phase = before

        return counted

    @contextmanager
    def excluding(self, modules: Sequence[nn.Module]) -> Iterator[None]:
        """Operations in forwards of these modules do not count."""

        def enter(*_: object) -> None:
            self._inside += 1

        def leave(*_: object) -> None:
            self._inside -= 1

        hooks = [handle for module in modules for handle in (
            module.register_forward_pre_hook(enter), module.register_forward_hook(leave)
        )]  # fmt: skip
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


def operations(
    models: Models, config: DecodingConfig, *, batch: int = 2, largest: bool = False
) -> dict[str, Counter[str]]:
    """Operations of one step by phase and name. models: on the meta device. largest: see
    `set_bounds`.
    """
    target = models.target
    engine = Engine(
        target,
        config,
        models.drafters.get(config.drafter.kind),
        batch_size=batch,
        tables=blank_tables(config, target),
    )
    counter, text = OperationCounter(), sample_caption(target)
    with torch.inference_mode():
        state, _ = engine.open(deque([Request(number, text) for number in range(batch)]))
        set_bounds(engine, state, largest)
        engine.step(state)  # makes tables that later steps share
        engine.drafting.draft = counter.during("draft", engine.drafting.draft)  # type: ignore[method-assign]
        engine.acceptor = counter.during("accept", engine.acceptor)  # type: ignore[assignment]
        engine.commit = counter.during("commit", engine.commit)  # type: ignore[method-assign]
        set_bounds(engine, state, largest)
        with counter, counter.excluding(networks(models, config)):
            engine.step(state)
    return counter.counts


def set_bounds(engine: Engine, batch: Batch, largest: bool) -> None:
    """What the host would have read after a round: adjacency trees of the size that an image starts
    with, or of the policy's largest depth and width.
    """
    policy = engine.config.policy
    if engine.drafting.next_bounds(batch) is not None and isinstance(policy, Adjacency):
        start, bounds = (
            [policy.start_depth, policy.start_width],
            [policy.bounds.depth, policy.bounds.width],
        )
        engine.drafting.set_bounds(bounds if largest else start)


def on_meta(models: Models) -> Models:
    """The models without values."""
    models.target.to("meta")
    for drafter in models.drafters.values():
        drafter.to("meta")
    return models


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", nargs="+", choices=CATALOGUE, default=list(CATALOGUE), help="presets; default all"
    )
    parser.add_argument("--list", choices=PHASES, help="also the operations of a phase by name")
    parser.add_argument(
        "--top-k", type=int, help="filter of both models' probs (default: the built-in model's)"
    )
    parser.add_argument(
        "--modulation", choices=MODULATIONS.all(), help="with this modulation, presets that relax"
    )
    parser.add_argument(
        "--largest", action="store_true", help="adjacency trees of the largest size of their ranges"
    )
    args = parser.parse_args()
    models = on_meta(load_folder())
    print(f"| preset | {' | '.join(PHASES)} | in all |\n|---|" + "---|" * (len(PHASES) + 1))
    for name in args.only:
        config = CATALOGUE[name].config
        if args.modulation:
            if not config.acceptance.relaxes(1.0, config.policy.bounds.depth):
                continue  # there is nothing to modulate
            modulation = MODULATIONS.lookup(args.modulation)()
            rule = replace(config.acceptance, modulation=modulation)
            config = replace(config, acceptance=rule)
        if args.top_k is not None:
            config = replace(config, sampling=replace(models.target.sampling, top_k=args.top_k))
        counts = operations(models, config, largest=args.largest)
        totals = [sum(counts[phase].values()) for phase in PHASES]
        print(f"| {name} | {' | '.join(map(str, totals))} | {sum(totals)} |", flush=True)
        if args.list:
            print(
                "  "
                + ", ".join(
                    f"{operation} {count}" for operation, count in counts[args.list].most_common()
                )
            )


if __name__ == "__main__":
    main()
