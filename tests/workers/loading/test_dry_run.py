"""The dry run against real runs: bytes of real parameters, caches and peaks, at several small sizes
and from there to published ones; work against what can be counted by hand.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from search_spaces.drafters import Vertical
from search_spaces.presets import CATALOGUE, preset
from search_spaces.trees import Adjacency
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_llamagen import Size, official, write_models
from tests.fakes.toys import BASE, code_path, toy_branch, toy_drafter, toy_target
from workers.decoding.drafter import CachedDrafter
from workers.decoding.drafting import TreeDrafting
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.drafters.vertical import VerticalHead
from workers.loading.dry_run import MAX_BATCH, Footprint, footprint, largest_batch, parameter_bytes
from workers.loading.models import Models
from workers.loading.models_yaml import (
    add_drafter,
    load_entry,
    load_on_meta,
    published_entries,
    read_entry,
    shape_only_models,
)
from workers.models.families.llamagen import SIZES
from workers.models.target import Target
from workers.models.transformer import Transformer
from workers.runtime.peak_memory import _weight

CPU = torch.device("cpu")
CFG = Sampling(temperature=1.0, cfg=2.0)
CHAIN = DecodingConfig.from_mapping(
    {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
).with_sampling(CFG)
TREE = DecodingConfig.from_mapping(
    {"drafter": "eagle", "tree": {"policy": "dynamic", "depth": 3, "width": 4, "nodes": 12}}
).with_sampling(CFG)
ADT = DecodingConfig.from_mapping(  # its shallowest tree is wider than its range of widths
    {
        "drafter": "eagle",
        "tree": {
            "policy": "adjacency",
            "depth_range": [2, 6],
            "width_range": [2, 4],
            "start_width": 3,
            "start_depth": 4,
            "nodes": 16,
        },
    }
).with_sampling(CFG)


def stack(target: Target) -> nn.Module:
    """The target's transformer without embedding and head."""
    assert isinstance(target.transformer, Transformer)
    return target.transformer.layers


def on_meta(models: Models) -> Models:
    target = models.target.to("meta")
    drafters = {kind: drafter.to("meta") for kind, drafter in models.drafters.items()}
    if "vertical" in drafters:  # it shares weights with the target
        drafters["vertical"] = VerticalHead(target, toy_branch(target).to("meta")).to("meta")
    return Models(target, drafters, {})


def toys(**changes: Any) -> Models:
    target = toy_target(config=replace(BASE, **changes))
    made = {
        kind: toy_drafter(kind, target)
        for kind in ("eagle", "eagle3", "medusa", "independent", "vertical")
    }
    # as they are loaded: each transformer has a rotation table of its own
    drafters = {kind: drafter.to("cpu") for kind, drafter in made.items() if drafter is not None}
    return Models(target, drafters, {})


def held(thing: object, seen: dict[int, int]) -> dict[int, int]:
    """Bytes of every storage that an object leads to, by address; modules are left out."""
    if isinstance(thing, Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, Mapping):
        for part in thing.values():
            held(part, seen)
    elif isinstance(thing, Sequence) and not isinstance(thing, str):
        for part in thing:
            held(part, seen)
    elif not isinstance(thing, nn.Module) and hasattr(thing, "__dict__"):
        held(vars(thing), seen)
    return seen


def real_caches(models: Models, config: DecodingConfig, batch: int) -> int:
    """Bytes of the keys and values that a real engine has allocated for target and drafter, masks
    included.
    """
    drafter = models.drafters.get(config.drafter.kind)
    engine = Engine(models.target, config, drafter, batch_size=batch)
    state = engine.allocate(batch)
    kept: dict[int, int] = held([state.cache.storage, state.attention_mask, state._tokens], {})
    if isinstance(engine.drafting, TreeDrafting) and isinstance(
        own := engine.drafting.drafter, CachedDrafter
    ):
        kept |= held([own.cache.storage, own.attention_mask], {})
    return sum(kept.values())


@pytest.mark.parametrize(
    "config",
    [DecodingConfig(sampling=CFG), CHAIN, TREE, ADT, DecodingConfig(Vertical(), sampling=CFG)],
    ids=["vanilla", "chain", "dynamic", "adjacency", "diagonals"],
)
def test_caches_and_parameters_are_the_real_ones(config: DecodingConfig) -> None:
    shapes: list[tuple[int, dict[str, Any]]] = [
        (1, {"dim": 64}),
        (6, {"n_layers": 4, "n_kv_heads": 1, "rows": 9}),
    ]
    for batch, changes in shapes:
        models = toys(**changes)
        tensors = [*models.target.parameters(), *models.target.buffers()]
        tensors += [p for d in models.drafters.values() for p in (*d.parameters(), *d.buffers())]
        parameters = sum({t.data_ptr(): t.nbytes for t in tensors}.values())
        caches = real_caches(models, config, batch)
        found = footprint(on_meta(models), config, batch, 1)
        assert found.parameters == parameters
        # trees' little tables are beside the caches
        assert found.cache == pytest.approx(caches, rel=0.1, abs=4096)


def profiled_peak(
    models: Models, config: DecodingConfig, batch: int, *, groups_prompts: bool = False
) -> int:
    """The most that torch's own allocator has handed out at once during prefill and two rounds at
    full caches.
    """
    engine = Engine(
        models.target, config, models.drafters.get(config.drafter.kind), batch_size=batch
    )
    engine.groups_prompts = groups_prompts
    queue = deque([Request(i, "caption") for i in range(2 * batch)])
    with (
        torch.inference_mode(),
        profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found,
    ):
        state, recorder = engine.open(queue)
        engine.admit(state, recorder, [0], queue)
        state.max_emitted = engine.image_len
        engine.step(state)
        engine.step(state)
    live = peak = 0
    for event in found.profiler.kineto_results.events():
        if event.name() == "[memory]":
            live += event.nbytes()
            peak = max(peak, live)
    return peak


@pytest.mark.parametrize("config", [DecodingConfig(sampling=CFG), TREE], ids=["vanilla", "dynamic"])
def test_peaks_are_the_real_ones(config: DecodingConfig) -> None:
    """Against torch's own record of its allocations, prefill and rounds together."""
    changes: dict[str, Any] = {
        "dim": 128,
        "n_heads": 4,
        "ffn_dim": 344,
        "n_layers": 6,
        "vocab_size": 512,
        "prompt_len": 40,
    }
    peak = profiled_peak(toys(**changes), config, 8)
    found = footprint(on_meta(toys(**changes)), config, 8, 1)
    assert found.cache + found.activations == pytest.approx(peak, rel=0.1)


def test_captions_that_wait_on_an_accelerator_are_in_the_peak() -> None:
    """Their prompts have keys and values of their own, beside which the passes of a batch run."""
    changes: dict[str, Any] = {"n_layers": 60, "prompt_len": 40}
    config = DecodingConfig(sampling=CFG)
    alone, grouped = (
        profiled_peak(toys(**changes), config, 16, groups_prompts=groups)
        for groups in (False, True)
    )
    found = footprint(on_meta(toys(**changes)), config, 16, 1)
    assert grouped > 1.1 * alone
    assert found.cache + found.activations == pytest.approx(grouped, rel=0.05)


def test_the_longest_pass_is_planned_for() -> None:
    """Of rounds that are skipped by turns, the one with a second tree: as if every pass had one."""
    kinds = ("token", "uniform_skipping", "dynamic_skipping")
    chain = {"drafter": "eagle", "tree": {"policy": "chain", "length": 5}}
    parts = [{**chain, "acceptance": {"verification": kind}} for kind in kinds]
    configs = [DecodingConfig.from_mapping(each).with_sampling(CFG) for each in parts]
    plain, uniform, similar = (
        footprint(on_meta(toys(vocab_size=512)), config, 8, 1).activations for config in configs
    )
    assert uniform == similar > 1.1 * plain
    labelled = [(str(number), config) for number, config in enumerate(configs)]
    assert min(labelled, key=_weight) == labelled[0]


def test_passes_with_a_second_tree_are_as_many_as_the_interval_says() -> None:
    """Of an image's 3 passes in 4 rounds, one; of two images' passes, 1 - (2/3)^2, as they do not
    skip in step.
    """
    chain = {"drafter": "eagle", "tree": {"policy": "chain", "length": 5}}
    for images, share in ((1, 1 / 3), (2, 5 / 9)):
        always, never, found = (
            footprint(
                on_meta(toys(vocab_size=512)),
                DecodingConfig.from_mapping({**chain, "acceptance": acceptance}).with_sampling(CFG),
                images,
                1,
            ).one_pass
            for acceptance in (
                {"verification": "uniform_skipping", "interval": 2},
                {"verification": "uniform_skipping", "interval": 10**9},
                {"verification": "uniform_skipping", "interval": 4},
            )
        )
        for one, two, mean in zip(
            *((w.flops, w.moved, w.kernels) for w in (always, never, found)), strict=True
        ):
            assert mean == pytest.approx(share * one + (1 - share) * two, abs=2)


@pytest.mark.slow
def test_small_models_lead_to_published_sizes(tmp_path: Path) -> None:
    """Parameters and caches of real small LlamaGens are polynomials of width and depth: fitted
    there, they say what the plan says of B and XL.
    """
    measured = {}
    for dim in (96, 192, 288):
        for layers in (1, 3):
            entry = read_entry(
                write_models(tmp_path / f"{dim}-{layers}", Size(dim, layers, 2)), "classes"
            )
            models = load_entry(entry, CPU)
            body = sum(p.nbytes for p in stack(models.target).parameters())
            measured[dim, layers] = (body, real_caches(models, DecodingConfig(sampling=CFG), 2))
    for name in ("llamagen-b-c2i", "llamagen-xl-c2i"):
        entry = published_entries()[name]
        outline = shape_only_models(entry, torch.float32)
        size, target = SIZES[entry.family.size], outline.target  # type: ignore[attr-defined]
        # one layer is a d^2 + b d (ffn being 8/3 of the width), from three widths by least squares
        widths = torch.tensor(
            [[float(d * d), float(d)] for d in (96, 192, 288)], dtype=torch.float64
        )
        each = torch.tensor(
            [(measured[d, 3][0] - measured[d, 1][0]) / 2 for d in (96, 192, 288)],
            dtype=torch.float64,
        )
        ffn = torch.tensor([Size(d).ffn / d for d in (96, 192, 288)], dtype=torch.float64)
        gates = (
            3 * 4 * widths[:, 0] * ffn
        )  # rounding to 256 matters at small widths: take the gates out and put them back
        rest = torch.linalg.lstsq(widths, (each - gates)[:, None]).solution[:, 0]
        wide = (
            float(rest[0] * size.dim**2 + rest[1] * size.dim + 3 * 4 * size.dim * size.ffn)
            * size.layers
        )
        assert sum(p.nbytes for p in stack(target).parameters()) == pytest.approx(wide, rel=0.02)
        # a cache grows with layers x width x positions
        # 1 + 9 + 1 columns, aligned to 8
        unit = (measured[192, 3][1] - measured[192, 1][1]) / (2 * 192 * 16)
        found = footprint(outline, DecodingConfig(sampling=CFG), 2, 1)
        assert found.cache == pytest.approx(unit * size.layers * size.dim * 584, rel=0.1)


def test_work_of_a_round() -> None:
    """A guided round of plain decoding reads each weight of the transformer and head once, and
    multiplies by each.
    """
    models = toys(dim=256, n_heads=4, ffn_dim=688, n_layers=6, vocab_size=512)
    weights = (
        sum(p.numel() for p in models.target.transformer.parameters() if p.dim() == 2) - 512 * 256
    )
    found = footprint(on_meta(models), DecodingConfig(sampling=CFG), 3, 1)
    assert found.one_pass.flops == pytest.approx(2 * 2 * 3 * weights, rel=0.05)
    # and what lies between the layers
    assert 4 * weights < found.one_pass.moved < 1.25 * 4 * weights
    assert found.prefill.flops == pytest.approx(BASE.prompt_len * 2 * 2 * 3 * weights, rel=0.15)
    assert found.one_pass.kernels > 6 * 8
    double = footprint(on_meta(models), DecodingConfig(sampling=CFG), 6, 1)
    assert double.one_pass.flops == pytest.approx(2 * found.one_pass.flops, rel=0.01)


# presets of one code path need one dry run; of ADT-Tree's, which grow large, one with smaller
# ranges
DRY = {
    code_path(preset.config): name
    for name, preset in CATALOGUE.items()
    if not name.startswith("adt")
}
SMALLER = {
    "depth_range": (2, 3),
    "width_range": (2, 4),
    "start_width": 3,
    "start_depth": 3,
    "nodes": 12,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*DRY.values(), "adt_lantern"])
def test_every_preset_can_be_run_dry(name: str) -> None:
    config = preset(name)
    if isinstance(config.policy, Adjacency):
        config = replace(config, policy=replace(config.policy, **SMALLER))  # type: ignore[arg-type]
    models = on_meta(toys(vocab_size=1200, rows=10, cols=10))
    ready = add_drafter(models, config)
    assert ready is not None
    found = footprint(ready, config.with_sampling(CFG), 2, 1)
    body = models.target.transformer.config
    assert found.cache >= 4 * body.n_layers * 2 * 4 * (5 + 100) * body.dim
    assert found.one_pass.flops >= 2 * 4 * sum(p.numel() for p in stack(models.target).parameters())


def test_pictures_are_counted(tmp_path: Path) -> None:
    """Convolutions count, and twice the images take twice the room."""
    entry = read_entry(write_models(tmp_path / "made"), "classes")
    models = load_on_meta(entry)
    one, two = (footprint(models, DecodingConfig(sampling=CFG), 1, count) for count in (8, 16))
    assert two.pictures == pytest.approx(2 * one.pictures, rel=0.05)
    assert two.picture.flops == pytest.approx(2 * one.picture.flops, rel=0.01)
    assert one.picture.flops > 8 * 2 * 9 * 32 * 32 * 48 * 48  # its last level alone, at full size
    assert one.bytes == one.parameters + one.cache + max(one.activations, one.pictures)


def test_what_parts_share_counts_once(tmp_path: Path) -> None:
    models = load_on_meta(read_entry(write_models(tmp_path / "made"), "captions"))
    alone = Models(models.target, {}, {})
    layer = sum(p.nbytes for p in models.drafters["eagle"].parameters())
    tables = sum(b.nbytes for b in models.drafters["eagle"].buffers())
    assert parameter_bytes(models) == parameter_bytes(alone) + layer + tables
    state = sum(value.nbytes for value in official("t2i", Size()).values())
    encoder = int(cast("Any", models.target.conditioner).encoder_bytes)
    assert parameter_bytes(alone) > state + encoder  # the codec comes to that


def test_the_largest_batch() -> None:
    def measured(batch: int) -> tuple[int, int]:
        return batch, 100 + 7 * batch

    assert largest_batch(measured(3), measured(9), 106) == 0
    for room in (107, 120, 135, 5000):
        assert largest_batch(measured(9), measured(1), room) == (room - 100) // 7
    assert largest_batch((1, 100), (2, 100), 99) == 0
    assert (
        largest_batch((1, 100), (2, 100), 100)
        == MAX_BATCH
        == largest_batch(measured(1), measured(2), 10**9)
    )


def test_footprints_add_up() -> None:
    found = footprint(on_meta(toys()), CHAIN, 2, 4)
    assert isinstance(found, Footprint)
    assert found.bytes >= found.parameters + found.cache
