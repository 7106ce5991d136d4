"""The engine on toy models: every preset and unpublished product runs; common random numbers;
greedy identity; bookkeeping.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Literal

import pytest
import torch

from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes import tape
from tests.fakes.toys import BASE, code_path, toy_drafter, toy_target
from workers.decoding import engine as engine_module
from workers.decoding.engine import DecodingError, Engine
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.drafters.eagle import EagleDrafter
from workers.drafters.independent import IndependentDrafter
from workers.drafters.medusa import MedusaDrafter, MedusaHeads
from workers.models.target import Prompt, Target

CAPTIONS = ["abc", "defgh", "i", "kk", "lmnop", "qr", "stu"]
GREEDY = Sampling(cfg=2.0, temperature=0.0)
REQUESTS = [Request(caption_id=n, caption=CAPTIONS[n % len(CAPTIONS)]) for n in range(6)]
SMALL = replace(BASE, rows=3)  # images of twelve tokens, the first of which is the prefill's
LOSSLESS = [
    "speculative",
    "speculative_block",
    "medusa",
    "medusa_best_first",
    "eagle1",
    "eagle1_58",
    "eagle1_traversal",
    "eagle2",
    "eagle3",
    "eagle3_static",
    "eagle3_chain",
    "adt",
    "adt_vertical",
    "adt_random",
    "adt_tokenflock",
    "sjd",
    "scd",
    "sjd_plus",
    "sjd_maximal",
    "sjd_block",
    "sjd_pac",
    "eagle_window",
]


def fitted(config: DecodingConfig, sampling: Sampling | None = None) -> DecodingConfig:
    """A preset, made to fit the toy's 24 codes and its images of 12 tokens."""
    mapping = config.to_mapping()
    acceptance, tree, drafter = (
        dict(mapping[section]) for section in ("acceptance", "tree", "drafter")
    )
    if acceptance.get("k", 0) > 12:
        acceptance["k"] = 12
    if "lag" in drafter:
        drafter["lag"] = 2
    if tree.get("policy") in ("chain", "branching", "window"):
        tree["length"] = min(tree["length"], 10)
    if tree.get("policy") == "dynamic":
        tree["width"] = min(tree["width"], 6)
    if tree.get("policy") == "best_first":
        tree["nodes"] = min(tree["nodes"], 20)
    if tree.get("policy") == "adjacency":
        tree.update(width_range=[2, 6], start_width=4, nodes=20)
    parts = {"acceptance": acceptance, "tree": tree, "drafter": drafter}
    return replace(DecodingConfig.from_mapping({**mapping, **parts}), sampling=sampling)


def draw(
    target: Target,
    config: DecodingConfig,
    *,
    batch: int = 4,
    seed: int = 0,
    requests: list[Request] | None = None,
) -> dict[int, Result]:
    engine = Engine(
        target, config, toy_drafter(config.drafter.kind, target), seed=seed, batch_size=batch
    )
    return {r.request.caption_id: r for r in engine.run(REQUESTS if requests is None else requests)}


# of presets that run the same code, the last
EACH = {code_path(config): name for name, config in PRESETS.items()}.values()


@pytest.mark.parametrize(("name", "cfg"), [*((name, 1.0) for name in EACH), ("lantern", 2.5)])
def test_every_preset_draws_whole_images(name: str, cfg: float) -> None:
    target = toy_target(config=SMALL)
    for sampling in (
        Sampling(cfg=cfg, top_k=7, top_p=0.9, temperature=0.8),
        Sampling(cfg=2.5),
        Sampling(cfg=2.5, temperature=0.0),
    ):
        config = fitted(PRESETS[name], sampling)
        rows = 1 if config.drafter.row_lag is None else 3  # at once
        results = draw(target, config, batch=2, requests=REQUESTS[:3])
        assert sorted(results) == [0, 1, 2]
        for result in results.values():
            stats = result.statistics
            assert result.tokens.shape == (12,)
            assert result.tokens.min() >= 0
            assert result.tokens.max() < 24
            # the prefill's token apart, each token once and none past the end
            assert int(stats.emitted.sum()) == 11
            assert stats.position.tolist() == [
                1 + int(stats.emitted[:i].sum()) for i in range(stats.passes)
            ]
            assert (stats.emitted <= rows * (stats.depth + 1)).all()
            assert stats.step_compression == pytest.approx(12 / (stats.passes + 1))


ANNEALED: dict[str, object] = {
    "schedule": "exponential",
    "budget": 1.5,
    "nu": 0.2,
    "resampling": "optimal",
}
PRODUCTS: dict[str, dict[str, object]] = {
    "annealed LANTERN++ on adjacency trees, optimal resampling": {
        "drafter": "eagle",
        "tree": {
            "policy": "adjacency",
            "initialisation": "vertical",
            "width_range": [2, 6],
            "start_width": 4,
            "nodes": 20,
        },
        "acceptance": {"neighbourhood": "multiplicative", "k": 8, "lambda": 2.0, **ANNEALED},
    },
    "LANTERN by JSD and cosine on Medusa's dynamic tree": {
        "drafter": "medusa",
        "tree": {"policy": "dynamic", "depth": 4, "width": 4, "nodes": 12},
        "acceptance": {
            "neighbourhood": "additive",
            "k": 8,
            "delta": 0.2,
            "divergence": "jsd",
            "proximity": "cosine",
        },
    },
    "random neighbours, annealed below 1, on an independent drafter's static tree": {
        "drafter": "independent",
        "tree": {"policy": "static", "name": "eagle1_26"},
        "acceptance": {
            "neighbourhood": "additive",
            "k": 8,
            "delta": 0.2,
            "proximity": "random",
            "resampling": "optimal",
            "schedule": "linear",
            "budget": 0.8,
            "slope": 0.1,
        },
    },
    "GSD, annealed, on a coupled window": {
        "drafter": {"kind": "jacobi", "initialisation": "repeat_left", "redraw": "coupled"},
        "tree": {"policy": "chain", "length": 7},
        "acceptance": {"neighbourhood": "grouped", **ANNEALED},
    },
    "LANTERN++ on a chain of top tokens": {
        "drafter": "eagle",
        "tree": {"policy": "chain", "length": 4, "children": "top"},
        "acceptance": {
            "neighbourhood": "multiplicative",
            "k": 8,
            "lambda": 3.0,
            "resampling": "paper",
        },
    },
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_unpublished_combinations_run(name: str) -> None:
    config = replace(DecodingConfig.from_mapping(PRODUCTS[name]), sampling=Sampling(cfg=2.0))
    results = draw(toy_target(config=SMALL), config)
    assert sum(int(r.statistics.emitted.sum()) for r in results.values()) == 6 * 11


@pytest.mark.parametrize(
    "name", ["vanilla", *LOSSLESS, "lantern", "lantern_pp", "cool", "adt_lantern", "gsd", "sjd_sv"]
)
def test_images_do_not_depend_on_their_batch(name: str) -> None:
    """Batch 6, 4 (reversed) and 1: same tokens, same rounds."""
    target = toy_target(config=SMALL)
    config = fitted(PRESETS[name], Sampling(cfg=2.0, top_k=12))
    together = draw(target, config, batch=6)
    for batch, requests in ((4, REQUESTS[::-1]), (1, REQUESTS[4:5])):
        for key, result in draw(target, config, batch=batch, requests=requests).items():
            assert torch.equal(result.tokens, together[key].tokens)
            assert torch.equal(result.statistics.emitted, together[key].statistics.emitted)
    other_seed = draw(target, config, seed=1, requests=REQUESTS[:2])
    assert any(
        not torch.equal(together[key].tokens, result.tokens) for key, result in other_seed.items()
    )


@pytest.mark.parametrize("name", ["speculative", "medusa", "eagle2", "adt", "sjd"])
def test_prompts_are_read_in_groups_ahead_of_free_rows(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on an accelerator: a quarter of a batch of 16, or as many as there are free rows, with the
    images of captions that are read alone. The size of the batch is set after the engine is made,
    as `Engines` does.
    """
    target = toy_target(config=SMALL)
    config, requests = (
        fitted(PRESETS[name], Sampling(cfg=2.0)),
        [Request(n, CAPTIONS[n % 7]) for n in range(40)],
    )
    alone = draw(target, config, batch=3, requests=requests)
    read, sizes = target.encode, list[int]()

    def counted(captions: Sequence[str], *, guided: bool) -> Prompt:
        sizes.append(len(captions))
        return read(captions, guided=guided)

    monkeypatch.setattr(target, "encode", counted)
    engine = Engine(target, config, toy_drafter(config.drafter.kind, target))
    engine.batch_size = 16
    tape.without_shortcuts(monkeypatch)
    engine.new_capture = lambda: tape.capture
    engine.groups_prompts = True
    for result in engine.run(requests):
        expected = alone[result.request.caption_id]
        assert torch.equal(result.tokens, expected.tokens)
        assert torch.equal(result.statistics.emitted, expected.statistics.emitted)
        assert result.statistics.seconds["prefill"] > 0
    assert (sizes[0], sum(sizes)) == (16, 40)
    assert all(size >= 4 for size in sizes[:-1])


@cache
def peaked_target(rope: Literal["zero", "identity"]) -> Target:
    return toy_target(config=replace(SMALL, prompt_rope=rope), temper=8.0)


@cache
def vanillas_greedy(rope: Literal["zero", "identity"]) -> dict[int, Result]:
    return draw(peaked_target(rope), fitted(PRESETS["vanilla"], GREEDY))


@pytest.mark.parametrize("name", LOSSLESS)
@pytest.mark.parametrize("rope", ["zero", "identity"])
def test_greedy_equals_vanilla(name: str, rope: Literal["zero", "identity"]) -> None:
    fast = draw(peaked_target(rope), fitted(PRESETS[name], GREEDY))
    for key, result in vanillas_greedy(rope).items():
        assert torch.equal(result.tokens, fast[key].tokens)
        assert result.statistics.mean_accepted_length == 1
        assert result.statistics.step_compression == 1


@pytest.mark.parametrize("verification", ["token", "block", "joint"])
def test_a_perfect_drafter_is_always_accepted(verification: str) -> None:
    """The target as its own independent drafter: every draft of a chain is accepted."""
    target = toy_target()
    config = DecodingConfig.from_mapping(
        {
            "drafter": "independent",
            "tree": {"policy": "chain", "length": 3},
            "acceptance": {"verification": verification},
        }
    )
    config = replace(config, sampling=Sampling(cfg=2.0, top_k=9))
    twin = IndependentDrafter(target, target.transformer, target.conditioner)
    for result in Engine(target, config, twin, batch_size=4).run(REQUESTS):
        assert result.statistics.emitted.tolist() == [4, 4, 4, 3]


def test_samples_of_one_caption_differ_and_seeds_matter() -> None:
    target = toy_target()
    requests = [Request(0, "abc", sample=n) for n in range(4)]
    images: list[tuple[int, ...]] = []
    for seed in (0, 1):
        engine = Engine(target, fitted(PRESETS["vanilla"], Sampling()), seed=seed, batch_size=4)
        images += [tuple(result.tokens.tolist()) for result in engine.run(requests)]
    assert len(set(images)) == 8


def test_a_target_with_nan_weights_is_an_error() -> None:
    target = toy_target()
    dict(target.transformer.named_parameters())["layers.1.feed_forward.w2.weight"].data[0, 0] = (
        torch.nan
    )
    with pytest.raises(DecodingError, match="not finite"):
        list(Engine(target, fitted(PRESETS["vanilla"], Sampling())).run(REQUESTS))
    with pytest.raises(DecodingError, match="not finite"):
        list(Engine(target, fitted(PRESETS["vanilla"], Sampling(temperature=0.0))).run(REQUESTS))


@pytest.mark.parametrize("name", ["speculative", "medusa", "eagle1", "eagle2", "eagle3", "adt"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_drafter_with_nan_weights_is_an_error(name: str, temperature: float) -> None:
    target = toy_target()
    drafter = toy_drafter(PRESETS[name].drafter.kind, target)
    assert drafter is not None
    next(weight for weight in drafter.parameters() if weight.dim() == 2).data[0, 0] = torch.nan
    engine = Engine(target, fitted(PRESETS[name], Sampling(temperature=temperature)), drafter)
    with pytest.raises(DecodingError, match=rf"{drafter.kind} drafter .*not finite"):
        list(engine.run(REQUESTS))


@pytest.mark.parametrize("kind", ["eagle", "eagle3", "medusa", "independent"])
def test_drafts_may_extend_far_past_the_image(kind: str) -> None:
    """Deeper than the rotation table has spare positions, from the image's start to its last
    tokens: the loose rule accepts nearly all drafts, so that a round begins there.
    """
    target = toy_target(config=replace(BASE, rows=9, cols=9))
    loose = {"neighbourhood": "additive", "k": 24, "delta": 1.0}
    tree = {"policy": "chain", "length": 75}
    config = DecodingConfig.from_mapping({"drafter": kind, "tree": tree, "acceptance": loose})
    drafter = toy_drafter(kind, target, heads=75)
    results = list(
        Engine(target, replace(config, sampling=Sampling()), drafter, batch_size=2).run(
            REQUESTS[:2]
        )
    )
    assert [int(r.statistics.emitted.sum()) for r in results] == [80, 80]
    assert all(2 <= r.statistics.passes < 10 for r in results)


def test_latency_leaves_out_the_reading_of_captions(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock of which each look takes a second, and reading a thousand."""
    target, clock = toy_target(), itertools.count()
    read = target.encode

    def slowly(captions: Sequence[str], *, guided: bool) -> Prompt:
        for _ in range(1000):
            next(clock)
        return read(captions, guided=guided)

    monkeypatch.setattr(target, "encode", slowly)
    monkeypatch.setattr(time, "thread_time", lambda: float(next(clock)))
    (result,) = Engine(target, fitted(PRESETS["vanilla"], Sampling())).run(REQUESTS[:1])
    assert next(clock) > 1000
    assert 0 < result.statistics.seconds["prefill"] < 100


def test_a_drafter_of_another_kind_or_shape_is_refused() -> None:
    target = toy_target()
    for expected, given in (
        ("eagle", "medusa"),
        ("medusa", "independent"),
        ("independent", "eagle"),
    ):
        config = DecodingConfig.from_mapping(
            {"drafter": expected, "tree": {"policy": "chain", "length": 3}}
        )
        with pytest.raises(
            ValueError, match=f"needs the {expected} drafter's weights, but {given}'s were given"
        ):
            Engine(target, config, toy_drafter(given, target))
    others = {"rows": replace(BASE, rows=2, cols=8), "prompt_len": replace(BASE, prompt_len=6)}
    for what, shape in others.items():
        other = toy_target(config=shape)
        twin = toy_drafter("eagle", other)
        assert isinstance(twin, EagleDrafter)
        with pytest.raises(ValueError, match=f"eagle drafter: its {what} is"):
            EagleDrafter(target, twin.layer)
        with pytest.raises(ValueError, match=f"independent drafter: its {what} is"):
            IndependentDrafter(target, other.transformer, other.conditioner)
    with pytest.raises(ValueError, match="medusa drafter: its dim is 16, the target's 32"):
        MedusaDrafter(target, MedusaHeads(16, 24, 2, shared_head=False))
    with pytest.raises(ValueError, match="medusa drafter: its vocab_size is 30"):
        MedusaDrafter(target, MedusaHeads(32, 30, 2, shared_head=False))


def test_configs_that_do_not_fit_are_errors() -> None:
    target = toy_target()
    lantern = replace(PRESETS["lantern"], sampling=Sampling())
    with pytest.raises(ValueError, match=r"k.*24"):
        Engine(target, lantern, toy_drafter("eagle", target))
    with pytest.raises(ValueError, match="needs the eagle drafter"):
        Engine(target, fitted(PRESETS["eagle1"]))
    with pytest.raises(ValueError, match="the 2 that the medusa drafter"):
        Engine(target, fitted(PRESETS["medusa"]), toy_drafter("medusa", target, heads=2))
    with pytest.raises(ValueError, match="batch size"):
        Engine(target, fitted(PRESETS["vanilla"]), batch_size=0)


@pytest.mark.parametrize("kept", [[0, 2, 5, 7], [4, 5, 6, 7], [0, 1, 2], [7], []])
def test_rows_that_are_kept_stay_where_they_are(kept: list[int]) -> None:
    """A batch that shrinks copies the others alone."""
    order = engine_module._in_place(kept)
    assert sorted(order) == kept
    assert all(order[row] == row for row in kept if row < len(kept))
