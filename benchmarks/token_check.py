"""How often the token check fails settings that keep what they claim, and how often it finds those
that do not.

    python -m benchmarks.token_check [--seeds 20] [--images 48] [--dtype bfloat16] [--only eagle1]

Every preset that is lossless for the built-in model's sampling draws images with each seed, which
are checked: none of the checks may fail, and their p-values are as small as chance makes them. Then
the same images with a share of their tokens replaced by uniform ones, and faulty engines: a
rejected draft is replaced by a sample of the target's probs instead of the residual (a chain of
EAGLE), drafts of a tree see all others (EAGLE-2), and each two images have the same random numbers.
A row says in how many checks each was found.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.common import chosen, draw, engine_for, held_out_requests
from search_spaces.acceptance import AcceptanceRule
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.state import Request
from workers.decoding.token_check import TokenCheck
from workers.decoding.token_checker import check_images
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.models.masks import AttentionMask

SHARES = (0.02, 0.05)  # of tokens that are replaced
_BATCH = 48
_CHAIN = {"drafter": "eagle", "tree": {"policy": "chain", "length": 4}}


def check_setting(
    models: Models,
    config: DecodingConfig,
    sampling: Sampling,
    requests: Sequence[Request],
    seed: int,
) -> tuple[TokenCheck, Tensor]:
    """Draw images with a seed and check them; their tokens [n, N] too."""
    engine = engine_for(models, config, batch=_BATCH, seed=seed, sampling=sampling)
    tokens = draw(engine, requests).tokens
    captions = [request.caption for request in requests]
    return check_images(models.target, sampling, captions, tokens, seed), tokens


def exact_presets(sampling: Sampling, models: Models, only: Sequence[str] | None) -> list[str]:
    """The presets that are lossless for a sampling, and that the models have a drafter for."""
    cols = models.target.grid.cols
    names = []
    for name, config in chosen(only).items():
        kind = config.drafter.kind
        if config.drafter.has_weights and kind not in models.drafters:
            continue
        if config.with_sampling(sampling).is_lossless(sampling, cols):
            names.append(name)
    return names


def with_foreign(tokens: Tensor, share: float, codes: int, seed: int) -> Tensor:
    """The tokens, with a share of them replaced by uniform ones."""
    generator = torch.Generator().manual_seed(seed)
    foreign = torch.rand(tokens.shape, generator=generator) < share
    return torch.where(foreign, torch.randint(0, codes, tokens.shape, generator=generator), tokens)


@contextmanager
def wrong_residual() -> Iterator[None]:
    """While the block runs, rejected drafts are replaced by samples of the target's probs."""

    def unchanged(self: AcceptanceRule, residual: Tensor, *rest: Any) -> Tensor:
        return residual

    with mock.patch.object(AcceptanceRule, "residual", unchanged):
        yield


@contextmanager
def leaking_mask() -> Iterator[None]:
    """While the block runs, the drafts of a tree see each other."""
    own = AttentionMask.tree

    def leaking(self: AttentionMask, columns: Tensor, tree_mask: Tensor) -> Any:
        return own(self, columns, torch.zeros_like(tree_mask))

    with mock.patch.object(AttentionMask, "tree", leaking):
        yield


def with_noise_twice(models: Models, requests: Sequence[Request], seed: int) -> Tensor:
    """Tokens of vanilla's images, where each pair of images has the same random numbers."""
    sampling = models.target.sampling
    engine = engine_for(models, DecodingConfig(), batch=_BATCH, seed=seed, sampling=sampling)
    tokens = torch.empty(len(requests), models.target.grid.tokens, dtype=torch.long)
    for first in (0, 1):
        part = [
            replace(request, caption_id=place) for place, request in enumerate(requests[first::2])
        ]
        tokens[first::2] = draw(engine, part).tokens
    return tokens


def print_false_alarms(
    models: Models, names: Sequence[str], requests: Sequence[Request], seeds: int
) -> None:
    """A row for each preset: failed checks, and the smallest p-value of all seeds."""
    sampling = models.target.sampling
    failed = 0
    for name in names:
        found = [
            check_setting(models, PRESETS[name], sampling, requests, seed)[0]
            for seed in range(seeds)
        ]
        lost = sum(not check.passed for check in found)
        failed += lost
        least = min(check.p_value for check in found)
        most = max(abs(check.z) for check in found)
        print(f"{name:24} {lost:3} of {seeds} failed; least p {least:.2g}, largest |z| {most:.2f}")
    print(f"false alarms: {failed} of {len(names) * seeds}", flush=True)


def print_power(models: Models, requests: Sequence[Request], seeds: int) -> None:
    """A row for each fault: in how many checks it was found."""
    target = models.target
    sampling = target.sampling
    captions = [request.caption for request in requests]
    chain = DecodingConfig.from_mapping(_CHAIN)
    counts: dict[str, int] = {}

    def count(fault: str, check: TokenCheck) -> None:
        counts[fault] = counts.get(fault, 0) + (not check.passed)

    for seed in range(seeds):
        _, tokens = check_setting(models, chain, sampling, requests, seed)
        for share in SHARES:
            mixed = with_foreign(tokens, share, target.vocab_size, seed)
            count(f"{share:.0%} foreign", check_images(target, sampling, captions, mixed, seed))
        with wrong_residual():
            _, tokens = check_setting(models, chain, sampling, requests, seed)
        count("wrong residual", check_images(target, sampling, captions, tokens, seed))
        with leaking_mask():
            _, tokens = check_setting(models, PRESETS["eagle2"], sampling, requests, seed)
        count("mask leak", check_images(target, sampling, captions, tokens, seed))
        count(
            "reused noise",
            check_images(
                target, sampling, captions, with_noise_twice(models, requests, seed), seed
            ),
        )
    for fault, found in counts.items():
        print(f"{fault:24} found in {found} of {seeds}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--images", type=int, default=48)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--only", nargs="+", help="presets")
    parser.add_argument("--faults", type=int, default=5, help="seeds of the faulty engines")
    args = parser.parse_args()
    models = load_folder()
    dtype = getattr(torch, args.dtype)
    for part in (models.target, *models.drafters.values()):
        part.to(dtype)
    requests = held_out_requests(models, args.images)
    names = exact_presets(models.target.sampling, models, args.only)
    tokens = args.images * models.target.grid.tokens
    print(f"{args.images} images, {tokens:,} tokens a check, {args.dtype}", flush=True)
    print_false_alarms(models, names, requests, args.seeds)
    if args.faults:
        print_power(models, requests, args.faults)


if __name__ == "__main__":
    main()
