"""The cost of a step outside the models' forward passes, and vanilla against a loop of its forward
passes alone.

    python -m benchmarks.overhead [--only chain eagle1 ...] [--images 4] [--codes 16384]
        [--sampling '{"cfg": 3.0, "top_k": 1000}']

Every forward pass of the target, its embedding and head, and of the drafter's networks is timed;
the printed share is the rest, including the timing itself and the fixed cost of an image. The clock
is the CPU time of the thread that decodes, so other processes have no part but what they take of
caches and memory. The bare loop has vanilla's masks, which are made before. With --codes the
built-in model gets a larger vocabulary; cases with its smaller drafters are left out. Bounds: at
most 12% of a step; vanilla within 5% of the bare loop. With --check the exit status is 1 if a row
exceeds its bound.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.random_models import with_codes
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.engine import Engine
from workers.decoding.sampling import guided_logits
from workers.drafters.eagle import EagleDrafter
from workers.drafters.eagle3 import Eagle3Drafter
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter
from workers.drafters.vertical import VerticalHead
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder


def chain(length: int, acceptance: str) -> DecodingConfig:
    """An EAGLE chain."""
    return DecodingConfig.from_mapping(
        {
            "drafter": "eagle",
            "tree": {"policy": "chain", "length": length},
            "acceptance": acceptance,
        }
    )


CASES: dict[str, DecodingConfig] = {
    "chain 3, exact": chain(3, "exact"),
    "chain 5, lantern": chain(5, "lantern"),
    **{
        name: PRESETS[name]
        for name in (
            "speculative",
            "medusa",
            "eagle1",
            "eagle2",
            "lantern",
            "lantern_pp",
            "adt",
            "sjd",
        )
    },
}


SHARE, RATIO = 0.12, 1.05  # of a step outside the forwards; of vanilla to the bare loop


class Forwards:
    """CPU seconds spent inside the outermost of the watched modules' forwards."""

    def __init__(self) -> None:
        self.seconds, self._inside = 0.0, False

    def timed(self, forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: object, **kwargs: object) -> Tensor:
            if self._inside:
                return forward(*args, **kwargs)
            self._inside, begin = True, time.thread_time()
            out = forward(*args, **kwargs)
            self.seconds += time.thread_time() - begin
            self._inside = False
            return out

        return call

    @contextmanager
    def watching(self, modules: list[nn.Module]) -> Iterator[None]:
        for module in modules:
            module.forward = self.timed(module.forward)
        try:
            yield
        finally:
            for module in modules:
                del module.forward  # the class's own shows again


def networks(models: Models, config: DecodingConfig) -> list[nn.Module]:
    """The modules whose forwards are the models' own work."""
    target, drafter = models.target, models.drafters.get(config.drafter.kind)
    watched: list[nn.Module] = [target.transformer, target.embed, target.head]
    if isinstance(drafter, EagleDrafter):
        watched += [drafter.layer.decoder, drafter.layer.fc]
        if isinstance(drafter, Eagle3Drafter):
            watched += [drafter.layer.norm, drafter.layer.head]
    elif isinstance(drafter, IndependentDrafter):
        parts = [drafter.decoder, drafter.decoder.embed, drafter.decoder.head]
        watched += [part for part in parts if part is not None]
    elif isinstance(drafter, MedusaDrafter):
        levels, heads = config.policy.bounds.depth, drafter.heads
        watched += [
            *heads.residuals[:levels],
            *([] if heads.heads is None else heads.heads[:levels]),
        ]
    elif isinstance(drafter, VerticalHead):
        watched += [drafter.body, drafter.branch, drafter.below, drafter.gate]
    return watched


def share_outside(
    models: Models,
    config: DecodingConfig,
    sampling: Sampling | None,
    images: int,
    repetitions: int,
) -> tuple[float, float, float]:
    """(median share of CPU time outside forwards, ms per round, microseconds outside per round) at
    batch 1.
    """
    engine = engine_for(models, config, batch=1, sampling=sampling)
    requests = held_out_requests(models, images)
    draw(engine, requests[:1])
    rows = []
    for _ in range(repetitions):
        forwards = Forwards()
        with forwards.watching(networks(models, config)):
            drawn = draw(engine, requests)
        passes = sum(s.passes for s in drawn.statistics)
        outside = drawn.seconds - forwards.seconds
        rows.append((outside / drawn.seconds, 1e3 * drawn.seconds / passes, outside))
    rows.sort()
    share, per_round, outside = rows[len(rows) // 2]
    return share, per_round, 1e6 * outside / passes


@torch.inference_mode()
def bare_loop(engine: Engine, models: Models) -> float:
    """CPU seconds of vanilla's forward passes alone for one image: embedding, transformer and head,
    one token a pass.
    """
    target, length = models.target, models.target.grid.tokens
    streams = 1 if engine.sampling.cfg == 1 else 2
    batch = engine.allocate(1)
    tokens = torch.zeros(streams, 1, dtype=torch.int64)
    columns = [torch.full((streams, 1), target.prompt_len + n) for n in range(length - 1)]
    masks = [batch.chain_mask(column) for column in columns]
    begin = time.thread_time()
    order = torch.arange(target.prompt_len).expand(streams, -1)
    features = target.transformer(
        torch.zeros(streams, target.prompt_len, target.transformer.config.dim), order
    )
    guided_logits(target.head, features, engine.sampling.cfg)
    for span, (column, mask) in enumerate(zip(columns, masks, strict=True), target.prompt_len + 1):
        cache = batch.cache.at(column, span)
        features = target.transformer(
            target.embed(tokens), column, mask=mask[..., :span], cache=cache
        )
        guided_logits(target.head, features, engine.sampling.cfg)
    return time.thread_time() - begin


def vanilla_against_bare_loop(
    models: Models, sampling: Sampling | None, repetitions: int
) -> tuple[float, float, float]:
    """Median, least and largest ratio of vanilla's CPU seconds per image to the bare loop's, run in
    turn.
    """
    engine = engine_for(models, DecodingConfig(), batch=1, sampling=sampling)
    requests = held_out_requests(models, 1)
    draw(engine, requests), bare_loop(engine, models)
    ratios = [
        draw(engine, requests).seconds / bare_loop(engine, models) for _ in range(repetitions)
    ]
    return statistics.median(ratios), min(ratios), max(ratios)


def verdict(passed: bool) -> str:
    return "pass" if passed else "fail"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(CASES), help="cases; default all")
    parser.add_argument("--images", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--check", action="store_true", help="exit with 1 if a row fails its bound")
    parser.add_argument(
        "--codes", type=int, help="a multiple of 1024; default: the built-in model's own"
    )
    parser.add_argument("--sampling", type=json.loads, help="as JSON; default: the model's own")
    args = parser.parse_args()
    sampling = None if args.sampling is None else Sampling(**args.sampling)
    models = load_folder() if args.codes is None else with_codes(load_folder(), args.codes)
    median, low, high = vanilla_against_bare_loop(models, sampling, 3 * args.repetitions)
    passed = [median <= RATIO]
    print(
        f"vanilla / bare loop of its forwards: {median:.3f} ({low:.3f}-{high:.3f}), "
        f"{verdict(passed[-1])}"
    )
    print(
        "| case | share of a step outside the forwards | ms per round | outside, us per round | at "
        "most 12% |"
    )
    print("|---|---|---|---|---|")
    for name in args.only or CASES:
        if CASES[name].drafter.kind not in ("none", "jacobi", *models.drafters):
            continue
        share, per_round, outside = share_outside(
            models, CASES[name], sampling, args.images, args.repetitions
        )
        passed.append(share <= SHARE)
        print(
            f"| {name} | {share:.1%} | {per_round:.2f} | {outside:.0f} | {verdict(passed[-1])} |",
            flush=True,
        )
    if args.check and not all(passed):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
