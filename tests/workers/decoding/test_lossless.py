"""Lossless means lossless: under the exact rule every drafter and tree draws images from the
target's own distribution.

Whole images of 3 to 6 tokens over 3 to 6 codes, 50,000 for each config (80,000 for a few, with more
kinds of images or where correlated random numbers must show), are compared with the enumerated
distribution of the *processed* target (guidance, temperature, top-k, top-p) by chi-square. Rounds
follow each other, so random numbers that leak from one into the next would show. Images that are
off by a chi-square distance of 0.004 are found with a probability of 0.99. The planted faults are
off by 0.03 and more, and drafts that share the target's noise by 0.0028: found with 0.9999. The
models are tables (tests/oracles/tabular.py), whose drafter has a distribution for every path, as
EAGLE and the independent model have; small real transformers repeat every pair with 4,000 images. A
test fails at p < 1e-5: with about 50 configs, a correct engine would fail for one seed in 2,000,
and the seed is fixed. Planted faults show that the same tests find mistakes.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.drafters import (
    DRAFTERS,
    DrafterChoice,
    Eagle,
    Eagle3,
    Independent,
    Jacobi,
    JacobiRows,
    Medusa,
    NoDrafter,
    Rows,
    Vertical,
    Window,
)  # fmt: skip
from search_spaces.rules.traversal import TraversalVerification
from search_spaces.schedules import Constant
from search_spaces.temperatures import EntropyTemperature
from search_spaces.trees import POLICIES as TREES
from search_spaces.trees import (
    Adjacency,
    BestFirst,
    Branching,
    Chain,
    Dynamic,
    NoTree,
    Static,
    TreePolicy,
)
from search_spaces.trial import DecodingConfig, Sampling
from search_spaces.verification import BlockVerification, JointVerification
from tests.fakes.toys import BASE, toy_drafter, toy_target
from tests.oracles import tabular
from workers.decoding import accept
from workers.decoding.engine import Engine
from workers.decoding.fixed_tree import FixedTree
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.rng import CounterRNG, Purpose
from workers.decoding.sampling import to_probs
from workers.decoding.state import Request
from workers.drafters.independent import IndependentDrafter
from workers.models.target import Prompt, Target

DRAWS, MANY_DRAWS, AT_ONCE, ALARM = 50_000, 80_000, 10_000, 1e-5
PLAIN = Sampling()
ENTROPY = Sampling(
    temperature=0.9, top_k=3, top_p=0.95, cfg=1.5, dynamic_temperature=EntropyTemperature(scale=1.0)
)
FILTERED = Sampling(temperature=1.2, top_k=3, top_p=0.9, cfg=1.5)
BUSHY = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
STARTS = ("vertical", "random", "tokenflock")
TWO_CHAINS = ((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0))
SURPLUS = ((0,), (1,), (2,), (3,), (0, 0), (0, 1), (0, 2), (0, 3))
TWINS = ((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1))


def adjacency(initialisation: str) -> Adjacency:
    assert initialisation in ("horizontal", "vertical", "random", "tokenflock")
    return Adjacency(
        initialisation=initialisation,  # type: ignore[arg-type]
        width_step=1, depth_range=(1, 3), width_range=(1, 3), start_depth=2, start_width=2, nodes=6,
    )  # fmt: skip


POLICIES: dict[str, TreePolicy] = {
    "chain": Chain(3),
    "chain, top": Chain(3, children="top"),
    "static": Static(paths=BUSHY),
    "static, top": Static(paths=BUSHY, children="top"),
    "dynamic": Dynamic(depth=3, width=2, nodes=6),
    "window": Window(3),
    "adjacency": adjacency("horizontal"),
}
CASES: dict[str, tuple[DrafterChoice, TreePolicy, Sampling, int, int]] = {
    # name: drafter, policy, sampling, codes, tokens of an image
    "vanilla": (NoDrafter(), NoTree(), FILTERED, 4, 5),
    **{f"eagle, {name}": (Eagle(), policy, PLAIN, 3, 5) for name, policy in POLICIES.items()},
    **{
        f"eagle, {name}, filtered": (Eagle(), policy, FILTERED, 4, 5)
        for name, policy in POLICIES.items()
    },
    **{
        f"eagle3, {name}": (Eagle3(), POLICIES[name], PLAIN, 4, 5)
        for name in ("chain", "static", "dynamic")
    },
    **{
        f"eagle3, {name}, filtered": (Eagle3(), POLICIES[name], FILTERED, 4, 5)
        for name in ("chain", "static, top")
    },
    **{f"medusa, {name}": (Medusa(), policy, FILTERED, 4, 5) for name, policy in POLICIES.items()},
    **{f"adjacency, {name}": (Eagle(), adjacency(name), PLAIN, 3, 6) for name in STARTS},
    "medusa, best first": (Medusa(), BestFirst(depth=3, nodes=7), FILTERED, 4, 5),
    "medusa, best first, plain": (Medusa(), BestFirst(depth=2, nodes=5), PLAIN, 3, 5),
    "eagle, six codes": (Eagle(), Static(paths=((0,), (1,), (0, 0))), PLAIN, 6, 3),
    "more children than codes": (Eagle(), Static(paths=SURPLUS), Sampling(top_k=2), 6, 4),
    "vanilla, entropy": (NoDrafter(), NoTree(), ENTROPY, 4, 5),
    **{
        f"eagle, {name}, entropy": (Eagle(), POLICIES[name], ENTROPY, 4, 5)
        for name in ("chain", "static", "dynamic")
    },
    "jacobi, entropy": (Jacobi(), Chain(3), ENTROPY, 4, 5),
    "eagle, window, maximal": (Eagle(), Window(4, "maximal"), PLAIN, 3, 5),
    "eagle, window, fresh": (Eagle(), Window(4, "fresh"), PLAIN, 3, 5),
    "eagle3, window": (Eagle3(), Window(3, "maximal"), FILTERED, 4, 5),
    "two codes, drafted window": (Eagle(), Window(4), PLAIN, 2, 6),
    "two codes, chain": (Eagle(), Chain(4), PLAIN, 2, 6),
    "two codes, window": (Jacobi(), Chain(4), PLAIN, 2, 6),
    "two codes, tree": (Eagle(), Static(paths=TWINS), PLAIN, 2, 6),
    "jacobi, uniform": (Jacobi(), Chain(3), PLAIN, 3, 5),
    "jacobi, random": (Jacobi("random"), Chain(3), PLAIN, 3, 5),
    "jacobi, random, filtered": (Jacobi("random", "coupled"), Chain(3), FILTERED, 4, 5),
    "jacobi, maximal": (Jacobi(redraw="maximal"), Chain(4), PLAIN, 3, 5),
    "jacobi, maximal, filtered": (Jacobi("random", "maximal"), Chain(3), FILTERED, 4, 5),
    "jacobi, reuse": (Jacobi(redraw="reuse"), Chain(4), PLAIN, 3, 5),
    "jacobi, reuse, filtered": (Jacobi("repeat_left", "reuse", 0.9), Chain(3), FILTERED, 4, 5),
    "jacobi, branching": (Jacobi(redraw="maximal"), Branching(4, 2, 2), PLAIN, 3, 5),
    "jacobi, branching, fresh": (Jacobi("random"), Branching(3, 3, 1), PLAIN, 3, 5),
    "jacobi, branching, filtered": (
        Jacobi("repeat_left", "reuse"),
        Branching(3, 3, 2),
        FILTERED,
        4,
        5,
    ),
    "jacobi, two chains": (Jacobi(redraw="maximal"), Static(paths=TWO_CHAINS), FILTERED, 4, 5),
    "eagle, branching": (Eagle(), Branching(3, 2, 2), PLAIN, 3, 5),
    "jacobi, repeat": (Jacobi("repeat_left", "coupled"), Chain(2), PLAIN, 3, 5),
    "jacobi, sample": (Jacobi("sample_left"), Chain(3), FILTERED, 4, 5),
}


def tables(
    codes: int, length: int, sampling: Sampling, images: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """A target, and a drafter that knows something of it."""
    streams = 1 if sampling.cfg == 1 else 2
    target = tabular.random_logits(codes, length, 11, streams, images)
    return target, 0.5 * target + 0.7 * tabular.random_logits(codes, length, 12, streams, images)


def limits(drafter: DrafterChoice, codes: int) -> dict[str, Any]:
    """What a table leaves out, as a drafter of this kind does. An EAGLE-3 layer here never drafts
    the last code.
    """
    return {
        "blind": isinstance(drafter, Medusa),
        "drafted": codes - 1 if isinstance(drafter, Eagle3) else None,
    }


def p_of_draws(
    drafter: DrafterChoice,
    policy: TreePolicy,
    sampling: Sampling,
    codes: int,
    length: int,
    draws: int = DRAWS,
    rule: AcceptanceRule = EXACT,
) -> float:
    return tabular.p_value(*counts_of_draws(drafter, policy, sampling, codes, length, draws, rule))


def counts_of_draws(
    drafter: DrafterChoice,
    policy: TreePolicy,
    sampling: Sampling,
    codes: int,
    length: int,
    draws: int,
    rule: AcceptanceRule,
) -> tuple[np.ndarray, np.ndarray]:
    """How often each image was drawn, and its probability under the target."""
    target, draft = tables(codes, length, sampling)
    config = DecodingConfig(drafter, policy, rule, sampling)
    engine = tabular.TabularEngine(config, target, draft, length, **limits(drafter, codes))
    counts = np.zeros(codes**length)
    weights = codes ** torch.arange(length - 1, -1, -1)
    for start in range(0, draws, AT_ONCE):
        cells = (engine.images(AT_ONCE, start) * weights).sum(1)
        counts += torch.bincount(cells, minlength=len(counts)).numpy()
    return counts, tabular.exact_distribution(target, sampling, length)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_images_follow_the_targets_distribution(name: str) -> None:
    draws = (
        MANY_DRAWS
        if name in ("eagle, chain", *(f"adjacency, {start}" for start in STARTS))
        else DRAWS
    )
    assert p_of_draws(*CASES[name], draws) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("redraw", ["maximal", "reuse"])
@pytest.mark.parametrize("initialisation", ["uniform", "random"])
def test_windows_that_keep_the_published_probs_are_biased(
    redraw: Literal["maximal", "reuse"], initialisation: Literal["uniform", "random"]
) -> None:
    drafter = Jacobi(initialisation, redraw, probs="published")
    assert not DecodingConfig(drafter, Chain(4), sampling=PLAIN).is_lossless(PLAIN)
    assert p_of_draws(drafter, Chain(4), PLAIN, 3, 5) < ALARM


TOGETHER = (
    "eagle, chain",
    "eagle, chain, top",
    "eagle, chain, filtered",
    "eagle3, chain",
    "medusa, chain",
    "two codes, chain",
    "jacobi, uniform",
    "jacobi, random",
    "jacobi, sample",
    "two codes, window",
)


@pytest.mark.slow
@pytest.mark.parametrize("name", TOGETHER)
def test_chains_that_are_verified_together_follow_it_in_blocks_only(name: str) -> None:
    case = CASES[name]
    for verification, follows in ((BlockVerification(), True), (JointVerification(), False)):
        config = DecodingConfig(*case[:2], AcceptanceRule(verification=verification), case[2])
        assert config.is_lossless(case[2]) == follows
        assert (p_of_draws(*case, rule=config.acceptance) > ALARM) == follows


WHOLE = (
    "eagle, chain",
    "eagle, static",
    "eagle, static, filtered",
    "eagle3, static",
    "medusa, static",
    "eagle, branching",
    "more children than codes",
    "two codes, tree",
    "jacobi, uniform",
)
TRAVERSAL = AcceptanceRule(verification=TraversalVerification())


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_trees_that_are_verified_together_follow_it(name: str) -> None:
    case = CASES[name]
    assert DecodingConfig(*case[:2], TRAVERSAL, case[2]).is_lossless(case[2])
    assert p_of_draws(*case, rule=TRAVERSAL) > ALARM


@pytest.mark.slow
def test_fault_branches_of_a_traversal_share_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That a branch is rejected says something of the drafts of the next one."""
    noise = FixedTree._noise
    monkeypatch.setattr(
        FixedTree, "_noise", lambda self, batch: [part[:, :1] for part in noise(self, batch)]
    )
    assert p_of_draws(*CASES["two codes, tree"], rule=TRAVERSAL) < ALARM


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "distance"),
    [("jacobi, random", 0.24), ("eagle, chain", 0.15), ("medusa, chain", 0.04)],
)
def test_how_far_joint_verification_is_from_the_target(name: str, distance: float) -> None:
    """The total variation over images that docs/methods_and_papers.md states. That of draws by an
    exact rule is 0.02.
    """
    joint = AcceptanceRule(verification=JointVerification())
    counts, probs = counts_of_draws(*CASES[name], DRAWS, joint)
    assert np.abs(counts / DRAWS - probs).sum() / 2 == pytest.approx(distance, abs=0.01)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["eagle, chain", "eagle, static", "eagle, dynamic", "jacobi, reuse"]
)
def test_images_of_rules_that_accept_less_often_follow_it(name: str) -> None:
    case, rule = CASES[name], AcceptanceRule(schedule=Constant(0.6))
    assert DecodingConfig(*case[:2], rule, case[2]).is_lossless(case[2])
    assert p_of_draws(*case, rule=rule) > ALARM


@pytest.mark.slow
def test_windows_of_one_draft_follow_it_whatever_probs_they_would_keep() -> None:
    drafter = Jacobi("random", "reuse", probs="published")
    assert DecodingConfig(drafter, Chain(1), sampling=PLAIN).is_lossless(PLAIN)
    assert p_of_draws(drafter, Chain(1), PLAIN, 3, 5) > ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two codes, chain", "two codes, window"])
def test_fault_drafts_of_a_block_are_not_fresh(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that is cut short says something of the drafts behind: their numbers must not come
    again.
    """
    drafter, policy, sampling, codes, length = CASES[name]
    if isinstance(drafter, Jacobi):
        monkeypatch.setattr(Jacobi, "draws_afresh", True)
        drafter = Jacobi("random", "coupled")
    monkeypatch.setattr(FixedTree, "_noise", lambda self, batch: batch.rng.exponential_noise(
        Purpose.DRAFT, batch.token_positions[:, : self.max_levels], self._codes
    ).split(1, 1))  # fmt: skip
    p = p_of_draws(
        drafter,
        policy,
        sampling,
        codes,
        length,
        4 * DRAWS,
        AcceptanceRule(verification=BlockVerification()),
    )
    assert p < ALARM


def test_what_is_called_lossless_is_tested_here() -> None:
    """Every drafter and tree of the project, under the rule and sampling that
    `DecodingConfig.is_lossless` demands.
    """
    kinds = [
        {kind for kind, part in parts.items() if part.__module__.startswith("search_spaces.")}
        for parts in (DRAFTERS, TREES)
    ]
    in_raster_order = kinds[0] - {Rows.kind, JacobiRows.kind, Vertical.kind}
    assert {drafter.kind for drafter, *_ in CASES.values()} | {Independent.kind} == in_raster_order
    assert {policy.kind for _, policy, *_ in CASES.values()} == kinds[1]
    for drafter, policy, sampling, *_ in CASES.values():
        assert DecodingConfig(drafter, policy, sampling=sampling).is_lossless(sampling)
        other = replace(sampling, dynamic_temperature=EntropyTemperature(theta=0.5))
        assert not DecodingConfig(drafter, policy, sampling=sampling).is_lossless(other)


class OneCaption(nn.Module):
    """A conditioner that reads a caption once, however often it is asked for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, captions: Sequence[str]) -> Prompt:
        prompt: Prompt = self.inner(captions[:1])
        return Prompt(
            prompt.embeds.expand(len(captions), -1, -1), prompt.valid.expand(len(captions), -1)
        )

    def null(self, prompt: Prompt) -> Prompt:
        nothing: Prompt = self.inner.null(prompt)  # type: ignore[operator]
        return nothing


@torch.inference_mode()
def model_distribution(target: Target, sampling: Sampling) -> np.ndarray:
    """The distribution of whole images of a real target, from plain causal passes over every image
    there is.
    """
    codes, length = target.vocab_size, target.grid.tokens
    images = torch.cartesian_prod(*[torch.arange(codes)] * length)
    prompt = target.encode(["ab"] * len(images), guided=True)
    x = torch.cat([prompt.embeds, target.embed(images.repeat(2, 1))], dim=1)
    logits = target.head(target.transformer(x, torch.arange(x.shape[1])))[
        :, target.prompt_len - 1 : -1
    ].double()
    conditional, unconditional = logits.chunk(2)
    guided = unconditional + sampling.cfg * (conditional - unconditional)
    joint = np.ones(len(images))
    for place in range(length):
        all_probs = tabular.processed(guided[:, place].numpy(), sampling)
        joint *= all_probs[np.arange(len(images)), images[:, place].numpy()]
    return joint


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        *itertools.product(["eagle", "eagle3", "medusa", "independent"], POLICIES),
        ("jacobi", "chain"),
    ],
)
def test_real_models_follow_the_targets_distribution(kind: str, policy: str) -> None:
    """The whole engine with small random transformers: caches, tree masks, commits and catch-ups
    included.
    """
    config = replace(
        BASE, dim=8, n_layers=1, n_heads=1, ffn_dim=8, vocab_size=3, prompt_len=2, rows=2, cols=2,
    )  # fmt: skip
    if policy in ("static", "chain"):
        sampling = Sampling(cfg=1.5)
    else:
        sampling = (
            Sampling(cfg=1.5, top_k=2)
            if policy == "dynamic"
            else Sampling(0.9, top_p=0.95, cfg=1.5)
        )
    target = toy_target(4, temper=4.0, config=config)
    target.conditioner = OneCaption(target.conditioner)
    drafter = toy_drafter(kind, target, heads=3)
    if isinstance(drafter, IndependentDrafter):
        drafter.conditioner = OneCaption(drafter.conditioner)
    choice = {
        "eagle": Eagle(),
        "eagle3": Eagle3(),
        "medusa": Medusa(),
        "independent": Independent(),
        "jacobi": Jacobi(),
    }[kind]
    draws, weights = 4_000, 3 ** torch.arange(3, -1, -1)
    engine = Engine(
        target,
        DecodingConfig(choice, POLICIES[policy], sampling=sampling),
        drafter,
        batch_size=draws,
    )
    cells = (
        torch.stack(
            [result.tokens for result in engine.run(Request(i, "ab") for i in range(draws))]
        )
        @ weights
    )
    counts = torch.bincount(cells, minlength=81).numpy().astype(float)
    assert tabular.p_value(counts, model_distribution(target, sampling)) > ALARM


@pytest.mark.slow
def test_fault_residual_not_updated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptanceRule, "residual", lambda self, r, *_: r)
    assert p_of_draws(*CASES["eagle, chain"]) < ALARM
    assert p_of_draws(*CASES["eagle, dynamic"]) < ALARM


@pytest.mark.slow
def test_fault_bonus_token_unfiltered(monkeypatch: pytest.MonkeyPatch) -> None:
    def unfiltered_below_the_root(logits: Tensor, sampling: Sampling) -> Tensor:
        return torch.cat([to_probs(logits[:, :1], sampling), logits[:, 1:].softmax(-1)], dim=1)

    # in a chain of one, the second distribution is the bonus token's
    monkeypatch.setattr(accept, "to_probs", unfiltered_below_the_root)
    assert p_of_draws(Eagle(), Chain(1), Sampling(top_p=0.95), 4, 4) < ALARM


@pytest.mark.slow
def test_fault_siblings_probs_not_renormalised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        accept,
        "remove_and_renormalise",
        lambda probs, x, where: torch.where(where[:, None], probs.scatter(1, x[:, None], 0), probs),
    )
    assert p_of_draws(*CASES["eagle, static"]) < ALARM


@pytest.mark.slow
def test_fault_rejected_sibling_left_in_the_drafters_probs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accept, "remove_and_renormalise", lambda probs, x, where: probs)
    assert p_of_draws(*CASES["eagle, static"]) < ALARM


@pytest.mark.slow
def test_fault_drafts_share_the_targets_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = CounterRNG.exponential_noise
    monkeypatch.setattr(
        CounterRNG, "exponential_noise", lambda self, _, *args: noise(self, Purpose.TARGET, *args)
    )
    assert p_of_draws(*CASES["eagle, chain"], MANY_DRAWS) < ALARM


@pytest.mark.slow
def test_fault_siblings_share_a_uniform(monkeypatch: pytest.MonkeyPatch) -> None:
    uniforms = CounterRNG.uniforms
    monkeypatch.setattr(
        CounterRNG, "uniforms", lambda self, places, n: uniforms(self, places, 1).expand(-1, -1, n)
    )
    assert p_of_draws(*CASES["eagle, static"]) < ALARM


@pytest.mark.slow
def test_fault_window_forgets_the_probs_a_token_was_sampled_from(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = JacobiWindow.commit

    def forget(self, *args):  # type: ignore[no-untyped-def]
        commit(self, *args)
        self.probs = torch.full_like(self.probs, 1 / self.probs.shape[-1])

    monkeypatch.setattr(JacobiWindow, "commit", forget)
    assert p_of_draws(*CASES["jacobi, random"]) < ALARM


@pytest.mark.parametrize("name", [name for name in CASES if "filtered" not in name])
def test_greedy_tokens_are_vanillas(name: str) -> None:
    """300 random tables at once, each its own image; in a third of them the two most likely codes
    tie, exactly or so nearly that a softmax cannot tell them apart.
    """
    drafter, policy, _, codes, length = CASES[name]
    for sampling in (
        Sampling(temperature=0.0),
        Sampling(temperature=0.0, top_k=2, top_p=0.5, cfg=1.6),
    ):
        target, draft = tables(codes, length, sampling, images=300)
        target -= target.amax(-1, keepdim=True) - 0.1
        second = target[:, :100].topk(2, dim=-1).indices[..., 1:]
        gap = torch.tensor([0.0, 1.5e-8]).repeat(50)[None, :, None, None]
        target[:, :100] = target[:, :100].scatter(-1, second, (0.1 - gap).expand(second.shape))
        rules = [AcceptanceRule(), AcceptanceRule(schedule=Constant(0.9))]
        rules = rules if drafter.has_drafts else rules[:1]
        if name in TOGETHER:
            rules += [
                AcceptanceRule(verification=part)
                for part in (BlockVerification(), JointVerification())
            ]
        if name in WHOLE:
            rules.append(TRAVERSAL)
        configs = [DecodingConfig(sampling=sampling)]
        configs += [DecodingConfig(drafter, policy, rule, sampling) for rule in rules]
        vanilla, *made = [
            tabular.TabularEngine(config, target, draft, length, **limits(drafter, codes)).images(
                300
            )
            for config in configs
        ]
        assert all(torch.equal(images, vanilla) for images in made)
