"""Verification of chains against enumeration: every sequence of drafts, tokens of a round completed
by the target.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from search_spaces.acceptance import AcceptanceRule
from search_spaces.neighbourhoods import Additive
from search_spaces.params import ConfigError
from search_spaces.schedules import Constant
from search_spaces.verification import (
    VERIFICATIONS,
    BlockVerification,
    ChainTests,
    JointVerification,
    TokenVerification,
    Verification,
)
from tests.oracles.rounds import Table, completed, target_distribution, total_variation

CODES, DRAFTS = 3, 3
TOKEN, BLOCK, JOINT = TokenVerification(), BlockVerification(), JointVerification()
Context = tuple[int, ...]


def tables(seed: int, *, chosen: bool = False) -> tuple[Table, Table]:
    """Random probs of the target and of a drafter after every context; chosen: the drafter's are
    point masses.
    """
    generator = np.random.default_rng(seed)
    contexts = [c for n in range(DRAFTS + 1) for c in itertools.product(range(CODES), repeat=n)]
    target = {c: generator.dirichlet(np.full(CODES, 0.7)).tolist() for c in contexts}
    drafter = {
        c: generator.dirichlet(np.full(CODES, 0.7)).tolist() for c in contexts if len(c) < DRAFTS
    }
    if chosen:
        drafter = {c: np.eye(CODES)[np.argmax(p)].tolist() for c, p in drafter.items()}
    return target, drafter


def chain_of(
    q: Table, p: Table, x: Context, *, eligible: int = DRAFTS, chosen: bool = False
) -> ChainTests:
    """The tests of one chain of drafts x."""
    target, proposal = (
        torch.tensor([[table[x[:i]] for i in range(len(x))]], dtype=torch.float64)
        for table in (q, p)
    )
    tokens = torch.tensor([x])
    at = [probs.gather(2, tokens[..., None])[..., 0] for probs in (target, proposal)]
    allowed = torch.tensor([[i < eligible for i in range(len(x))]])
    return ChainTests(
        allowed, tokens, allowed * at[0] / at[1], target, None if chosen else proposal
    )


def round_of(
    verification: Verification, q: Table, p: Table, *, eligible: int = DRAFTS, chosen: bool = False
) -> tuple[dict[Context, float], float]:
    """The distribution of the tokens that a round emits, and the expected number of accepted
    drafts.
    """
    emitted: dict[Context, float] = {}
    expected = 0.0
    for x in itertools.product(range(CODES), repeat=DRAFTS):
        drafted = math.prod(p[x[:i]][x[i]] for i in range(DRAFTS))
        if drafted == 0:
            continue
        tests = chain_of(q, p, x, eligible=eligible, chosen=chosen)
        chances, weights = verification.lengths(tests)
        at_least = [1.0, *chances[0].tolist(), 0.0]
        assert all(a >= b for a, b in itertools.pairwise(at_least))
        expected += drafted * sum(at_least[1:])
        for count in range(eligible + 1):
            weight = 1.0 if weights is None else float(weights[0, count])
            after = np.array(q[x[:count]])
            if count < eligible:
                left = np.maximum(weight * after - np.array(p[x[:count]]), 0)
                after = left / left.sum() if left.sum() > 0 else after
            for token, mass in enumerate(after):
                context = (*x[:count], token)
                share = drafted * (at_least[count] - at_least[count + 1]) * float(mass)
                emitted[context] = emitted.get(context, 0.0) + share
    return completed(emitted, q, DRAFTS + 1), expected


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("eligible", [1, 2, 3])
def test_block_is_exact_and_never_shorter(eligible: int, chosen: bool) -> None:
    """Also where the image ends within the chain; as long as testing each alone where one draft is
    left.
    """
    longer = 0.0
    for seed in range(30):
        q, p = tables(seed, chosen=chosen)
        found, length = round_of(BLOCK, q, p, eligible=eligible, chosen=chosen)
        assert total_variation(found, target_distribution(q, DRAFTS + 1)) < 1e-12
        alone, alone_length = round_of(TOKEN, q, p, eligible=eligible, chosen=chosen)
        assert total_variation(alone, target_distribution(q, DRAFTS + 1)) < 1e-12
        assert length >= alone_length - 1e-12
        longer += (length - alone_length) / 30
    if eligible == 1:
        assert longer == pytest.approx(0, abs=1e-12)
    elif not chosen:
        assert longer > 0.02


@pytest.mark.parametrize("alpha", [0.8, 1.0])
def test_joint_is_biased(alpha: float) -> None:
    distances = []
    for seed in range(10):
        q, p = tables(seed)
        distances.append(
            total_variation(round_of(JointVerification(alpha), q, p)[0], target_distribution(q, 4))
        )
    assert not JOINT.exact
    assert np.mean(distances) > 0.02


@pytest.mark.parametrize("chosen", [False, True])
def test_joint_is_exact_for_a_single_draft(chosen: bool) -> None:
    for seed in range(10):
        q, p = tables(seed, chosen=chosen)
        found, _ = round_of(JOINT, q, p, eligible=1, chosen=chosen)
        assert total_variation(found, target_distribution(q, DRAFTS + 1)) < 1e-12


@pytest.mark.parametrize("kind", VERIFICATIONS)
def test_drafts_from_the_targets_own_probs_are_all_accepted(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    probs = torch.randn(50, 8, 40, generator=generator).softmax(2)
    tokens = probs.flatten(0, 1).multinomial(1, generator=generator).view(50, 8)
    eligible, ratios = torch.ones(50, 8, dtype=torch.bool), torch.ones(50, 8)
    assert (
        VERIFICATIONS[kind]()
        .lengths(ChainTests(eligible, tokens, ratios, probs, probs))
        .at_least.eq(1)
        .all()
    )


@pytest.mark.parametrize("kind", VERIFICATIONS)
def test_no_draft_that_the_target_cannot_emit_is_accepted(kind: str) -> None:
    """Nor any behind it, nor one past the image's end."""
    target = torch.tensor([[[0.5, 0.5, 0.0], [0.6, 0.4, 0.0], [0.2, 0.8, 0.0], [0.3, 0.7, 0.0]]])
    proposal = torch.full_like(target, 1 / 3)
    for tokens, eligible in (([0, 2, 1, 1], 4), ([0, 1, 1, 1], 1), ([0, 2, 2, 1], 4)):
        x = torch.tensor([tokens])
        ratios = target.gather(2, x[..., None])[..., 0] * 3
        allowed = torch.tensor([[i < eligible for i in range(4)]])
        at_least, _ = VERIFICATIONS[kind]().lengths(
            ChainTests(allowed, x, ratios * allowed, target, proposal)
        )
        assert at_least[0].tolist() == [pytest.approx(1), 0, 0, 0]


def plain_joint(q: Sequence[float], ratios: Sequence[float], alpha: float) -> list[float]:
    """SJD-SV as it is stated: one run after the other."""
    at_least, runs, whole = [0.0] * len(q), list[list[int]](), 1.0
    for i in range(len(q)):
        if i and q[i] >= q[i - 1] > 0:
            runs[-1].append(i)
        else:
            runs.append([i])
    for run in runs:
        enough = [b for b in run if sum(q[b : run[-1] + 1]) >= alpha * sum(q[i] for i in run)]
        chances = {
            end: min(1.0, math.prod(ratios[enough[-1] : end + 1]))
            for end in run
            if end >= enough[-1]
        }
        for i in run:
            at_least[i] = whole * (
                1.0 if i < enough[-1] else max(chances[end] for end in chances if end >= i)
            )
        whole *= chances[run[-1]]
    return at_least


@pytest.mark.parametrize("alpha", [0.3, 0.8, 1.0])
def test_joint_accepts_run_by_run(alpha: float) -> None:
    generator = torch.Generator().manual_seed(1)
    target, proposal = (
        torch.randn(200, 9, 4, generator=generator).double().softmax(2) for _ in range(2)
    )
    target[::3] = target[::3].masked_fill(target[::3] < 0.1, 0)
    tokens = torch.randint(4, (200, 9), generator=generator)
    q = target.gather(2, tokens[..., None])[..., 0]
    ratios = q / proposal.gather(2, tokens[..., None])[..., 0]
    tests = ChainTests(torch.ones(200, 9, dtype=torch.bool), tokens, ratios, target, proposal)
    found = JointVerification(alpha).lengths(tests).at_least
    expected = [plain_joint(q[row].tolist(), ratios[row].tolist(), alpha) for row in range(200)]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("kind", ["block", "joint"])
def test_probs_that_are_not_finite_accept_nothing(kind: str) -> None:
    target = torch.full((1, 4, 5), torch.nan)
    one = torch.ones(1, 4, dtype=torch.bool)
    at_least, _ = VERIFICATIONS[kind]().lengths(
        ChainTests(
            one,
            torch.zeros(1, 4, dtype=torch.int64),
            target[..., 0],
            target,
            torch.full_like(target, 0.2),
        )
    )
    assert not (torch.zeros(1, 1) < at_least).any()


@pytest.mark.parametrize("rule", [{"neighbourhood": Additive(9, 0.1)}, {"schedule": Constant(1.1)}])
@pytest.mark.parametrize("verification", [BLOCK, JOINT])
def test_only_the_exact_rule_is_verified_together(
    verification: Verification, rule: dict[str, object]
) -> None:
    AcceptanceRule(Additive(9, 0.0), verification=verification)
    with pytest.raises(
        ConfigError,
        match=f"^verification: '{verification.kind}' is defined for the exact rule alone",
    ):
        AcceptanceRule(**rule, verification=verification)  # type: ignore[arg-type]
