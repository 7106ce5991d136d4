"""Theorem 2 of Cool-SD against the engine: what it predicts for each rule, and what the engine
measures.

    python -m benchmarks.theory [--images 32] [--drafter independent]

The engine draws held-out captions with a chain of L drafts under each rule and records, at every
round, the drafter's probabilities p and the target's q along the chain. From the exact rule's
rounds `benchmarks.bounds` predicts for every rule E[N], the drafts accepted per round, and bounds
the total variation between such a round's tokens and the target's own: B with the rule's
resampling, B* with the best. A relaxed rule commits other tokens and then meets other
probabilities. So prediction and measurement agree within error for the exact rule and approximately
for others; on a rule's own rounds the theorem must hold for every rule.

Theorem 2 has no end of the image: rounds with fewer than L + 1 tokens missing, whose chains cannot
be accepted whole, are left out on both sides (this is known before anything is drafted, so it
causes no bias). Errors are one standard error over images. The papers' resampling depends on the
rejected token, so B takes V residuals a row; it uses every 16th round only.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.bounds import Bounds, Estimate, estimate_bounds
from benchmarks.common import draw, engine_for, held_out_requests
from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.trial import DecodingConfig
from workers.decoding.accept import Acceptor
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.tree import DraftTree
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import ratio_estimate

LANTERN = {"neighbourhood": "additive", "k": 100, "delta": 0.1}
LANTERN_PP = {"neighbourhood": "multiplicative", "k": 50, "lambda": 2.0}
COOL = {"schedule": "exponential", "budget": 1.5, "nu": 0.1}
RULES: dict[str, dict[str, Any]] = {
    "exact": {"neighbourhood": "none"},
    **{f"uniform {budget:g}": {"schedule": "constant", "budget": budget} for budget in (1.1, 1.5)},
    **{
        f"cool {budget:g}": {"schedule": "exponential", "budget": budget, "nu": 0.1}
        for budget in (1.1, 1.5, 2.0)
    },
    "lantern++ k50 λ2": LANTERN_PP,
    "lantern++ k50 λ2, optimal": {**LANTERN_PP, "resampling": "optimal"},
    **{
        f"cool 1.5, by {kind}": {**COOL, "modulation": kind}
        for kind in ("entropy", "margin", "row")
    },
    "lantern k100 δ0.1": LANTERN,
    "lantern k100 δ0.1, optimal": {**LANTERN, "resampling": "optimal"},
}


class Rounds(NamedTuple):
    """M recorded rounds: the inputs of the theorem, and what the engine accepted."""

    q: Tensor  # [M, L, V] the target's probabilities along the drafted chain
    p: Tensor  # [M, L, V] the drafter's
    drafts: Tensor  # [M, L] as sampled from p, accepted or not
    accepted: Tensor  # [M] how many of them were accepted
    image: Tensor  # [M] rounds of one image are not independent
    row: Tensor  # [M, L] the row of the image that each draft is in (see `Nodes`)

    def every(self, n: int) -> Rounds:
        """Every n-th round."""
        return Rounds(*(field[::n] for field in self))


class Recorder(Acceptor):
    """The engine's own acceptor, which also records every round that could accept all its
    drafts.
    """

    def __init__(self, engine: Engine) -> None:
        rule, tables = engine.acceptor.rule, engine.acceptor.tables
        super().__init__(
            rule,
            tables,
            engine.sampling,
            engine.drafting.verified_levels,
            engine.target.grid,
            engine.device,
        )
        self.rounds: list[Rounds] = []

    def verify_chain(self, tree: DraftTree, probs: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        accepted, residual = super().verify_chain(tree, probs, batch)
        assert tree.probs is not None, "drafts are sampled"
        has_room = batch.remaining > tree.shape.max_depth
        places = batch.token_positions[:, : tree.shape.max_depth].clamp(max=len(self._row) - 1)
        row = self._row[places]
        recorded = probs[:, :-1], tree.probs, tree.tokens, accepted, batch.keys, row
        self.rounds.append(Rounds(*(field[has_room] for field in recorded)))
        return accepted, residual


def setting(acceptance: dict[str, Any], drafter: str, length: int) -> DecodingConfig:
    """A chain of drafts under a rule."""
    chain = {"policy": "chain", "length": length}
    return DecodingConfig.from_mapping(
        {"drafter": drafter, "tree": chain, "acceptance": acceptance}
    )


def record(
    models: Models, config: DecodingConfig, requests: Sequence[Request]
) -> tuple[Rounds, NeighbourTables]:
    """The complete rounds of these captions, and the rule's tables."""
    engine = engine_for(models, config, batch=min(32, len(requests)))
    engine.acceptor = recorder = Recorder(engine)
    draw(engine, requests)
    rounds = Rounds(*(torch.cat(field) for field in zip(*recorder.rounds, strict=True)))
    return (
        rounds._replace(image=torch.unique(rounds.image, return_inverse=True)[1]),
        recorder.tables,
    )


def theory(rule: AcceptanceRule, rounds: Rounds, tables: NeighbourTables) -> Bounds:
    """The prediction for a rule on these rounds, whichever rule they were drawn with."""
    return estimate_bounds(
        rule, rounds.q, rounds.p, rounds.drafts, tables, rounds.image, rounds.row
    )


def compare(
    config: DecodingConfig, exact: Rounds, own: Rounds, tables: NeighbourTables
) -> dict[str, Estimate]:
    """One row: theory on the exact rule's rounds and on the rule's own, and what was measured on
    these.
    """
    rule = config.acceptance
    # neither acceptance nor B* depends on the resampling
    best = replace(rule, resampling="optimal")
    predicted, itself = theory(best, exact, tables), theory(best, own, tables)
    same = rule == best or rule.neighbourhood.exact
    measured = ratio_estimate(own.accepted, torch.ones_like(own.accepted), own.image)
    return {
        "predicted": predicted.accepted,
        "own_rounds": itself.accepted,
        "measured": Estimate(measured.value, measured.error),
        "bound": predicted.bound if same else theory(rule, exact.every(16), tables).bound,
        "optimal_bound": predicted.optimal_bound,
    }


def line(name: str, row: dict[str, Estimate]) -> str:
    """One row of the table."""
    return (
        "| " + " | ".join([name, *(f"{e.value:.3f} ± {e.error:.3f}" for e in row.values())]) + " |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--drafter", choices=("eagle", "independent"), default="eagle")
    parser.add_argument("--length", type=int, default=4, help="L, drafts of a chain")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "theory.json"
    )
    args = parser.parse_args()
    models = load_folder()
    requests = held_out_requests(models, args.images)
    print(
        "| rule | E[N], exact's rounds | E[N], own rounds | N measured | B | B* "
        "|\n|---|---|---|---|---|---|"
    )
    rows, exact = {}, None
    for name, acceptance in RULES.items():
        config = setting(acceptance, args.drafter, args.length)
        own, tables = record(models, config, requests)
        exact = exact or own  # the first rule's
        row = compare(config, exact, own, tables)
        print(line(name, row), flush=True)
        rows[name] = {
            "config": config.flat(),
            **{key: asdict(value) for key, value in row.items()},
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(
            json.dumps({"images": args.images, "drafter": args.drafter, "rows": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
