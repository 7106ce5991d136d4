"""What only an accelerator runs, run without one.

There loops go to their fixed bounds where a CPU stops early, trees are padded, and nothing may be
read back within a round. The first test takes the CPU's shortcuts away, repeats captured rounds as
CUDA graphs would, and compares tokens and statistics with those of eager rounds. The second runs
rounds on the meta device, which has shapes but no values: whatever reads one raises, and so does
whatever mixes devices.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import (
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
)
from search_spaces.neighbourhoods import Additive, Multiplicative
from search_spaces.presets import CATALOGUE
from search_spaces.rules.entropy import EntropyModulation
from search_spaces.rules.grouped import Grouped
from search_spaces.rules.margin import MarginModulation
from search_spaces.rules.row import RowModulation
from search_spaces.rules.traversal import TraversalVerification
from search_spaces.schedules import Constant, Exponential
from search_spaces.temperatures import CONSTANT_TEMPERATURE, EntropyTemperature
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
from search_spaces.verification import (
    BlockVerification,
    DynamicSkipping,
    JointVerification,
    UniformSkipping,
)
from tests.fakes import tape
from tests.fakes.toys import BASE, ROW_ENDS, code_path, toy_drafter, toy_target
from workers.decoding import build, state
from workers.decoding.drafter import TrainedPart
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.drafters.independent import IndependentDrafter
from workers.loading.dry_run import call_on_meta
from workers.models.target import Prompt, Target
from workers.models.transformer import TransformerConfig

META = torch.device("meta")
REQUESTS = [Request(n, caption) for n, caption in enumerate(["abc", "defgh", "i", "jk", "lmno"])]
EXACT, LANTERN = AcceptanceRule(), AcceptanceRule(Additive(8, 0.3), Exponential(1.2, 0.3))
LANTERN_PP, GSD = AcceptanceRule(Multiplicative(8, 2.0)), AcceptanceRule(Grouped())
BLOCK = AcceptanceRule(verification=BlockVerification())
JOINT = AcceptanceRule(verification=JointVerification())
TRAVERSAL = AcceptanceRule(verification=TraversalVerification())
UNIFORM = AcceptanceRule(Additive(8, 0.3), verification=UniformSkipping(2))
SIMILAR = AcceptanceRule(verification=DynamicSkipping(-1.0))
FLAT = AcceptanceRule(schedule=Constant(1.5), modulation=EntropyModulation(2.0))
PEAKED = AcceptanceRule(Additive(8, 0.1), modulation=MarginModulation(-1.0))
LOW = AcceptanceRule(Grouped(), Constant(1.2), modulation=RowModulation())


def adjacency(
    initialisation: Literal["horizontal", "vertical", "random", "tokenflock"],
) -> Adjacency:
    return Adjacency(
        initialisation,
        beta=0.5,
        width_step=1,
        depth_range=(1, 4),
        width_range=(1, 5),
        start_depth=3,
        start_width=3,
        nodes=12,
    )


FAMILIES: dict[str, tuple[DrafterChoice, TreePolicy, AcceptanceRule]] = {
    "vanilla": (NoDrafter(), NoTree(), EXACT),
    "chain": (Independent(), Chain(4), LANTERN),
    "chain of top tokens": (Eagle(), Chain(4, children="top"), EXACT),
    "chain, block": (Independent(), Chain(4), BLOCK),
    "chain, joint": (Eagle(), Chain(4), JOINT),
    "static, traversal": (Eagle(), Static(name="eagle1_26"), TRAVERSAL),
    "static of heads, traversal": (Medusa(), Static(name="balanced_26"), TRAVERSAL),
    "chain of top tokens, block": (Eagle(), Chain(4, children="top"), BLOCK),
    "static": (Eagle(), Static(name="eagle1_26"), LANTERN_PP),
    "chain, by entropy": (Independent(), Chain(4), FLAT),
    "static, by margin": (Eagle(), Static(name="eagle1_26"), PEAKED),
    "window, by row": (Jacobi(), Chain(6), LOW),
    "static of top tokens": (Medusa(), Static(name="eagle1_26", children="top"), LANTERN),
    "taps, chain": (Eagle3(), Chain(4), LANTERN),
    "taps, dynamic": (Eagle3(), Dynamic(depth=4, width=4, nodes=12), EXACT),
    "dynamic": (Eagle(), Dynamic(depth=4, width=4, nodes=12), LANTERN),
    "best first": (Medusa(), BestFirst(depth=4, nodes=12), LANTERN),
    "chain, skipping": (Eagle(), Chain(2), SIMILAR),
    "static, skipping": (Eagle(), Static(name="eagle1_26"), SIMILAR),
    "dynamic, skipping": (Eagle(), Dynamic(depth=3, width=3, nodes=8), UNIFORM),
    "adjacency, horizontal": (Eagle(), adjacency("horizontal"), EXACT),
    "adjacency, vertical": (Eagle(), adjacency("vertical"), LANTERN),
    "adjacency, random": (Independent(), adjacency("random"), LANTERN),
    "adjacency, tokenflock": (Eagle(), adjacency("tokenflock"), EXACT),
    "window": (Jacobi(), Chain(6), EXACT),
    "window, maximal": (Jacobi(redraw="maximal"), Chain(6), EXACT),
    "window, reuse": (Jacobi("random", "reuse"), Chain(6), EXACT),
    "window, block": (Jacobi(), Chain(6), BLOCK),
    "window, joint": (Jacobi("random"), Chain(6), JOINT),
    "window that branches": (Jacobi(redraw="maximal"), Branching(5, 3, 2), EXACT),
    "window of groups": (Jacobi("sample_left", "coupled"), Chain(6), GSD),
    "drafted window": (Eagle(), Window(6), EXACT),
    "drafted window, maximal": (Independent(), Window(3, "maximal"), EXACT),
    "rows": (Rows(1), NoTree(), EXACT),
    "diagonals": (Vertical(), NoTree(), EXACT),
    "rows of windows": (JacobiRows(redraw="maximal", lag=2), Chain(3), EXACT),
    "rows of windows, published": (
        JacobiRows("random", "reuse", probs="published", lag=1, lower="redrawn"),
        Chain(3),
        GSD,
    ),
}


def decoded(engine: Engine) -> list[list[list[int]]]:
    """Tokens, and what every round emitted and drafted, of all captions; images of three rows."""
    results = sorted(engine.run(REQUESTS), key=lambda result: result.request.caption_id)
    kept = [
        (r.tokens, r.statistics.emitted, r.statistics.depth, r.statistics.nodes) for r in results
    ]
    return [[part.tolist() for part in parts] for parts in kept]


@pytest.mark.parametrize(
    ("sizes", "name", "temperature"),
    [
        *((sizes, name, 1.0) for sizes in (BASE, ROW_ENDS) for name in FAMILIES),
        *(
            (BASE, name, 0.0)
            for name in ("vanilla", "chain", "static", "dynamic", "window", "dynamic, skipping")
        ),
    ],
)
def test_captured_rounds_give_the_tokens_of_eager_ones(
    sizes: TransformerConfig, name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the CPU's shortcuts; in a batch that halves, and in a second run on the same
    memory.
    """
    dynamic = (
        EntropyTemperature()
        if name in ("chain of top tokens", "window, maximal")
        else CONSTANT_TEMPERATURE
    )
    config = DecodingConfig(
        *FAMILIES[name], sampling=Sampling(temperature, 14, cfg=2.0, dynamic_temperature=dynamic)
    )
    target = toy_target(config=replace(sizes, rows=3))
    eager, captured = (
        Engine(target, config, toy_drafter(config.drafter.kind, target), batch_size=4)
        for _ in range(2)
    )
    expected = decoded(eager)
    tape.without_shortcuts(monkeypatch)
    captured.new_capture = lambda: tape.capture
    monkeypatch.setattr(state, "_MIN_SPAN_STEP", 4)
    assert decoded(captured) == expected
    batch = captured._batch
    assert batch is not None
    assert batch.graphs is not None
    assert captured.uses_graphs
    assert batch.graphs.keys
    assert decoded(captured) == expected
    assert captured._batch is batch


class Shapeless(nn.Module):
    """A conditioner without values."""

    def __init__(self, prompt_len: int, dim: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.prompt_len, self.dim, self.dtype = prompt_len, dim, dtype

    def forward(self, captions: Sequence[str]) -> Prompt:
        rows = len(captions)
        valid = torch.ones(rows, self.prompt_len, dtype=torch.bool, device=META)
        return Prompt(
            torch.zeros(rows, self.prompt_len, self.dim, dtype=self.dtype, device=META), valid
        )

    def null(self, prompt: Prompt) -> Prompt:
        return prompt


class AllOnMeta(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Raises at an operation that touches a tensor elsewhere: indices on the host, too, stall an
    accelerator.

    setup: it may, while models and tables are moved to the device.
    """

    def __init__(self, *, setup: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.setup = setup

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = call_on_meta(func, args, kwargs or {})
        for part in (*args, *(kwargs or {}).values(), out):
            for leaf in part if isinstance(part, list | tuple) else (part,):
                elsewhere = isinstance(leaf, Tensor) and leaf.device != META
                assert self.setup or not elsewhere, f"{func} touches a tensor on {leaf.device}"
        return out


def empty_table(codebook: Tensor, proximity: str, k: int) -> Tensor:
    return torch.zeros(len(codebook), k, dtype=torch.int64, device=META)


@cache
def models_on_meta(
    kind: str, dtype: torch.dtype, base: TransformerConfig
) -> tuple[Target, TrainedPart | None]:
    """A target and its drafter without values. 1,024 codes, so that every preset fits as it is."""
    sizes = replace(base, vocab_size=1024)
    target = toy_target(config=sizes).to(META, dtype)
    target.conditioner = Shapeless(sizes.prompt_len, sizes.dim, dtype)
    drafter = toy_drafter(kind, target)
    if drafter is not None:
        drafter.to(META, dtype)
    if isinstance(drafter, IndependentDrafter):
        drafter.conditioner = Shapeless(sizes.prompt_len, drafter.decoder.config.dim, dtype)
    return target, drafter


def on_meta(
    config: DecodingConfig, dtype: torch.dtype, base: TransformerConfig
) -> tuple[Engine, Batch]:
    """An engine without values, and its batch after the prefill."""
    target, drafter = models_on_meta(config.drafter.kind, dtype, base)
    engine = Engine(target, config, drafter, batch_size=3)
    return engine, engine.open(deque(REQUESTS))[0]


def short(config: DecodingConfig) -> DecodingConfig:
    """With a path that fits the toy's images."""
    policy = config.policy
    if isinstance(policy, Branching | Chain | Window):
        return replace(config, policy=replace(policy, length=min(policy.length, 15)))
    return config


# mostly in bf16, which shows all that fp32 does, and mixed dtypes besides
ROUNDS: dict[str, DecodingConfig] = {
    **{
        name: short(preset.config)
        for name, preset in {code_path(p.config): (n, p) for n, p in CATALOGUE.items()}.values()
    },
    **{f"{name}, row ends": DecodingConfig(*family) for name, family in FAMILIES.items()},
    **{
        f"{name}, fp32": DecodingConfig(*FAMILIES[name])
        for name in ("chain", "dynamic", "window of groups")
    },
}


@pytest.mark.parametrize(
    ("name", "temperature"),
    [
        (name, temperature)
        for name, config in ROUNDS.items()
        for temperature in (0.0, 1.0)
        if temperature or not config.acceptance.modulation.reads_probs
    ],
)
def test_a_round_reads_nothing_back_and_stays_on_its_device(
    name: str, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neighbours are found once per run, elsewhere. The bounds of adjacency trees are read with the
    round's counts.
    """
    monkeypatch.setattr(build, "neighbour_table", empty_table)
    sampling = Sampling(temperature=temperature, top_k=100, top_p=0.9, cfg=2.0)
    base = ROW_ENDS if "row ends" in name else BASE
    dtype = torch.float32 if "fp32" in name else torch.bfloat16
    with AllOnMeta(setup=True):
        engine, batch = on_meta(replace(ROUNDS[name], sampling=sampling), dtype, base)
    with torch.inference_mode(), AllOnMeta():
        for max_emitted in (1, 4):
            batch.sync_host_counts([max_emitted])  # in the fourth cell of four, rows end
            if engine.drafting.next_bounds(batch) is not None:
                engine.drafting.set_bounds([4, 6])
            assert {engine.step(batch).device, batch.emitted.device} == {META}


READS: dict[str, Callable[[Tensor], object]] = {
    "a flag": lambda x: bool((x > 0).any()),
    "a number": lambda x: int(x.max()),
    "a list": lambda x: x.tolist(),
    "a mask's size": lambda x: x[x > 0],
    "the host's indices": lambda x: x[torch.tensor([0])],
    "the host's numbers": lambda x: x + torch.ones(3),
    "a transfer": lambda x: x.cpu(),
}


@pytest.mark.parametrize("name", READS)
def test_host_reads_are_detected(name: str) -> None:
    with pytest.raises((RuntimeError, NotImplementedError, AssertionError)), AllOnMeta():
        READS[name](torch.ones(3, device=META))
