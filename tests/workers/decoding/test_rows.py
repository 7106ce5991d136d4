"""Several rows at once: against a plain computation of all that was fed, and against enumerated
images.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from search_spaces.drafters import Jacobi, JacobiRows, NoDrafter, Rows
from search_spaces.params import ConfigError
from search_spaces.trees import Chain, NoTree
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import BASE, ROW_ENDS, toy_target
from tests.oracles import tabular
from tests.oracles.rows import PlainRows, image_probs, neighbour_target
from workers.data.grid import Grid
from workers.decoding.engine import Engine
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.jacobi_rows import RowWindows
from workers.decoding.redraws import Redraw
from workers.decoding.rng import CounterRNG, Purpose
from workers.decoding.rows import RowsBatch, WavefrontRNG, wavefront_count
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result
from workers.decoding.tree import DraftTree
from workers.models.target import Target

ALARM = 1e-5
ROWS, COLS = 4, 5
FAMILIES = {
    "stand-ins": replace(BASE, rows=ROWS, cols=COLS),
    "row ends": replace(ROW_ENDS, rows=ROWS, cols=COLS),
}
REQUESTS = [
    Request(number, text) for number, text in enumerate(["abc", "defgh", "i", "kk", "lmnop"])
]
GUIDED, PLAIN, GREEDY = Sampling(cfg=2.0, top_k=9), Sampling(), Sampling(cfg=2.0, temperature=0.0)


def decoded(target: Target, config: DecodingConfig, batch: int = 2) -> list[Result]:
    results = list(Engine(target, config, batch_size=batch).run(REQUESTS))
    return sorted(results, key=lambda result: result.request.caption_id)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [GUIDED, PLAIN, GREEDY], ids=["guided", "plain", "greedy"])
@pytest.mark.parametrize("lag", [1, 2, 4])
def test_tokens_and_passes_are_those_of_the_plain_computation(
    family: str, sampling: Sampling, lag: int
) -> None:
    """In batches of two of five images, so that later ones take the rows of others."""
    target = toy_target(config=FAMILIES[family])
    for result in decoded(target, DecodingConfig(Rows(lag), sampling=sampling)):
        tokens, passes = PlainRows(target, result.request, sampling, lag).run()
        assert result.tokens.tolist() == tokens
        statistics = result.statistics
        assert statistics.passes + 1 == passes
        assert passes == (
            COLS + (ROWS - 2) * lag + COLS if family == "stand-ins" else COLS + (ROWS - 1) * lag
        )
        assert int(statistics.emitted.sum()) == ROWS * COLS - 1
        assert statistics.step_compression == pytest.approx(ROWS * COLS / passes)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("sampling", [GUIDED, PLAIN, GREEDY], ids=["guided", "plain", "greedy"])
@pytest.mark.parametrize("lag", [COLS, COLS + 7])
def test_rows_that_wait_for_the_whole_row_above_give_vanillas_images(
    family: str, sampling: Sampling, lag: int
) -> None:
    target = toy_target(config=FAMILIES[family])
    for result, vanilla in zip(
        decoded(target, DecodingConfig(Rows(lag), sampling=sampling)),
        decoded(target, DecodingConfig(sampling=sampling)),
        strict=True,
    ):
        assert result.tokens.equal(vanilla.tokens)
        assert result.statistics.emitted.tolist() == vanilla.statistics.emitted.tolist()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "drafter", [JacobiRows(lag=COLS), JacobiRows("random", "reuse", lag=COLS, lower="redrawn")]
)
def test_windows_of_rows_that_wait_give_vanillas_greedy_images(
    family: str, drafter: JacobiRows
) -> None:
    target, config = (
        toy_target(config=FAMILIES[family]),
        DecodingConfig(drafter, Chain(3), sampling=GREEDY),
    )
    assert config.is_lossless(GREEDY, COLS)
    for result, vanilla in zip(
        decoded(target, config), decoded(target, DecodingConfig(sampling=GREEDY)), strict=True
    ):
        assert result.tokens.equal(vanilla.tokens)


@pytest.mark.slow
@pytest.mark.parametrize("row_ends", [False, True])
def test_rows_one_after_the_other_have_the_targets_distribution(row_ends: bool) -> None:
    """Also of a target that reads the whole row above."""
    target = neighbour_target(3, 3, row_ends=row_ends, reads_upper_right=True)
    for drafter, policy in ((Rows(3), NoTree()), (JacobiRows("random", "reuse", lag=4), Chain(2))):
        config = DecodingConfig(drafter, policy, sampling=PLAIN)
        assert config.is_lossless(PLAIN, 3)
        assert p_of_images(config, target, always) > ALARM


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(
    "drafter",
    [
        Rows(2),
        JacobiRows(lag=2, redraw="maximal"),
        JacobiRows(lag=1, redraw="reuse", lower="redrawn"),
    ],
)
def test_an_image_does_not_depend_on_its_batch(family: str, drafter: Rows | JacobiRows) -> None:
    target = toy_target(config=FAMILIES[family])
    policy = Chain(3) if drafter.has_drafts else NoTree()
    config = DecodingConfig(drafter, policy, sampling=GUIDED)
    alone, together = decoded(target, config, batch=1), decoded(target, config, batch=3)
    for one, other in zip(alone, together, strict=True):
        assert one.tokens.equal(other.tokens)
        assert one.statistics.emitted.equal(other.statistics.emitted)
        assert int(one.statistics.emitted.sum()) == ROWS * COLS - 1


def always(row: int, col: int) -> bool:
    return True


def p_of_images(
    config: DecodingConfig,
    target: Target,
    sees_upper_right: Callable[[int, int], bool],
    draws: int = 6000,
) -> float:
    engine = Engine(target, config, batch_size=1500)
    weights = 2 ** torch.arange(target.grid.tokens - 1, -1, -1)
    cells = (
        torch.stack([result.tokens for result in engine.run(Request(i, "a") for i in range(draws))])
        @ weights
    )
    probs = image_probs(target, sees_upper_right)
    return tabular.p_value(np.bincount(cells.numpy(), minlength=len(probs)).astype(float), probs)


EXACT_IN_CONTEXT = {
    "rows, 1": DecodingConfig(Rows(1), sampling=PLAIN),
    "rows, 2": DecodingConfig(Rows(2), sampling=PLAIN),
    "windows, 1": DecodingConfig(JacobiRows(lag=1, redraw="maximal"), Chain(2), sampling=PLAIN),
    "windows, 2": DecodingConfig(JacobiRows("random", "reuse", lag=2), Chain(2), sampling=PLAIN),
}


@pytest.mark.slow
@pytest.mark.parametrize("row_ends", [False, True])
@pytest.mark.parametrize("name", EXACT_IN_CONTEXT)
def test_a_target_that_reads_left_and_up_has_its_own_distribution(
    name: str, row_ends: bool
) -> None:
    target = neighbour_target(3, 3, row_ends=row_ends, reads_upper_right=False)
    config = EXACT_IN_CONTEXT[name]
    assert not config.is_lossless(PLAIN)
    assert p_of_images(config, target, always) > ALARM


@pytest.mark.slow
def test_lower_rows_whose_rejected_drafts_are_drawn_anew_are_biased() -> None:
    target = neighbour_target(3, 3, row_ends=True, reads_upper_right=False)
    config = DecodingConfig(
        JacobiRows("random", "reuse", probs="published", lag=1, lower="redrawn"),
        Chain(2),
        sampling=PLAIN,
    )
    assert p_of_images(config, target, always) < ALARM


@pytest.mark.slow
@pytest.mark.parametrize("row_ends", [False, True])
@pytest.mark.parametrize("lag", [1, 2])
def test_a_cell_that_is_not_decoded_yet_is_missing_from_the_context(
    lag: int, row_ends: bool
) -> None:
    """With a lag of one, no row sees its upper right neighbours, but the second if the first is
    decoded alone.
    """
    target = neighbour_target(2 if row_ends else 3, 3, row_ends=row_ends, reads_upper_right=True)
    config = DecodingConfig(Rows(lag), sampling=PLAIN)
    sees = (lambda row, col: row == 1 and not row_ends) if lag == 1 else always
    assert p_of_images(config, target, sees) > ALARM
    if lag == 1:
        assert p_of_images(config, target, always) < ALARM


@pytest.mark.parametrize("family", FAMILIES)
def test_drafts_of_a_row_do_not_change_another_rows_probs(family: str) -> None:
    target, seen = toy_target(config=FAMILIES[family]), []

    def observe(batch: Batch, tree: DraftTree, logits: Tensor) -> None:
        seen.append(logits)

    for shift in (0, 1):
        engine = Engine(
            target, DecodingConfig(JacobiRows(lag=1), Chain(2), sampling=GUIDED), observer=observe
        )
        batch, window = engine.open(deque(REQUESTS[:1]))[0], engine.drafting
        assert isinstance(window, JacobiWindow)
        assert isinstance(batch, RowsBatch)
        while batch.is_open.sum() < 2:
            batch.sync_host_counts(engine.read(batch, engine.step(batch)).so_far)
        upper, lower = batch.is_open.nonzero()[:2, 0].tolist()
        window.known = torch.full_like(window.known, 2)
        window.tokens[upper] = (window.tokens[upper] + shift) % target.vocab_size
        engine.step(batch)
    before, after = seen[len(seen) // 2 - 1], seen[-1]
    torch.testing.assert_close(after[upper, 0], before[upper, 0])
    assert not after[upper, 1:].allclose(before[upper, 1:])
    torch.testing.assert_close(after[lower], before[lower])


@pytest.mark.parametrize("row_ends", [False, True])
@pytest.mark.parametrize(
    "drafter", [JacobiRows("random", lag=1), JacobiRows(redraw="maximal", lag=3)]
)
@torch.inference_mode()
def test_what_is_cached_of_emitted_cells_is_never_overwritten(
    drafter: JacobiRows, row_ends: bool
) -> None:
    """The keys of this target are its codes. Windows reach beyond their rows."""
    target = neighbour_target(4, 5, row_ends=row_ends, reads_upper_right=True)
    engine = Engine(target, DecodingConfig(drafter, Chain(7), sampling=PLAIN), batch_size=3)
    batch, _ = engine.open(deque(REQUESTS[:3]))
    assert isinstance(batch, RowsBatch)
    while int(batch.so_far.min()) < 20:
        batch.sync_host_counts(engine.read(batch, engine.step(batch)).so_far)
        keys = batch.cache.read(0, batch.image_column + 20)[0][
            :, 0, batch.image_column :, :2
        ].argmax(2)
        is_fed = torch.arange(5) < batch.counts[:, 1:-1, None] - 1
        assert (keys == batch.tokens)[is_fed.flatten(1)].all()


@pytest.mark.parametrize("family", FAMILIES)
def test_without_accepted_drafts_lower_rows_emit_corrections_or_nothing(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        WavefrontRNG,
        "uniforms",
        lambda self, places, ranks: torch.full((*places.shape, ranks), torch.inf),
    )
    target = toy_target(config=FAMILIES[family])
    passes = (
        ROWS * COLS,
        decoded(target, DecodingConfig(Rows(2), sampling=PLAIN))[0].statistics.passes + 1,
    )
    for lower, expected in zip(("redrawn", "corrected"), passes, strict=True):
        drafter = JacobiRows(lag=2, lower=lower)  # type: ignore[arg-type]
        for result in decoded(target, DecodingConfig(drafter, Chain(3), sampling=PLAIN)):
            assert result.statistics.passes + 1 == expected


@pytest.mark.parametrize("lower", ["redrawn", "corrected"])
def test_a_rejected_draft_is_drawn_anew_though_the_redraw_would_keep_it(
    lower: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All drafts are rejected here. The window of a lower row that emits no token begins with the
    rejected one.
    """
    monkeypatch.setattr(
        WavefrontRNG,
        "uniforms",
        lambda self, places, ranks: torch.full((*places.shape, ranks), torch.inf),
    )
    target, batches, found = (
        toy_target(config=FAMILIES["stand-ins"]),
        list[Batch](),
        set[tuple[bool, bool]](),
    )
    drafter = JacobiRows(redraw="reuse", threshold=0.0, lag=2, lower=lower)  # type: ignore[arg-type]
    config = DecodingConfig(drafter, Chain(3), sampling=PLAIN)
    engine = Engine(target, config, observer=lambda batch, tree, logits: batches.append(batch))
    window = engine.drafting
    assert isinstance(window, RowWindows)
    redraw = window._redraw

    def watched(draft: Redraw) -> tuple[Tensor, Tensor]:
        batch = batches[-1]
        assert isinstance(batch, RowsBatch)
        is_lower = (batch.above < batch.grid.cols) & (batch.own < batch.above) & batch.is_open
        found.update(zip(is_lower.tolist(), draft.drafted[:, 0].tolist(), strict=True))
        return redraw(draft)

    monkeypatch.setattr(window, "_redraw", watched)
    list(engine.run(REQUESTS[:1]))
    assert found == {(False, True), (True, lower == "corrected")}


def test_positions_that_are_tested_again_get_new_numbers() -> None:
    images = CounterRNG(torch.tensor([5, 9]), 12)
    numbers, places = WavefrontRNG(images, 3), torch.arange(12).repeat(6, 1)
    before = numbers.uniforms(places, 1)
    torch.testing.assert_close(before, images.uniforms(places[:2], 1).repeat(3, 1, 1))
    numbers.renew(torch.tensor([0, 0, 1, 0, 0, 0]))
    changed = numbers.uniforms(places, 1) != before
    assert changed[2].all()
    assert not changed[[0, 1, 3, 4, 5]].any()
    noise = numbers.exponential_noise(Purpose.TARGET, places, 4)
    torch.testing.assert_close(
        noise, images.exponential_noise(Purpose.TARGET, places[:2], 4).repeat(3, 1, 1)
    )


@pytest.mark.parametrize("redraw", ["fresh", "coupled", "maximal", "reuse"])
def test_the_first_rows_window_is_that_of_raster_order(redraw: str) -> None:
    target = toy_target(config=FAMILIES["stand-ins"])
    for lower in ("corrected", "redrawn"):
        rows = JacobiRows(redraw=redraw, lag=3, lower=lower)  # type: ignore[arg-type]
        raster = Jacobi(redraw=redraw)  # type: ignore[arg-type]
        made = [
            decoded(target, DecodingConfig(drafter, Chain(3), sampling=PLAIN))
            for drafter in (rows, raster)
        ]
        for one, other in zip(*made, strict=True):
            # the last is no draft, as the image's
            assert one.tokens[: COLS - 1].equal(other.tokens[: COLS - 1])


@pytest.mark.parametrize(
    ("grid", "lag", "wavefronts"),
    [((24, 24), 8, 4), ((24, 24), 24, 2), ((24, 24), 99, 2), ((3, 8), 1, 3), ((48, 48), 16, 4)],
)
def test_number_of_wavefronts(grid: tuple[int, int], lag: int, wavefronts: int) -> None:
    assert wavefront_count(Grid(*grid), lag) == wavefronts


@pytest.mark.parametrize("drafter", [Rows(), JacobiRows()])
def test_images_of_one_row_are_refused(drafter: Rows | JacobiRows) -> None:
    target = toy_target(config=replace(BASE, rows=1, cols=8))
    with pytest.raises(
        ConfigError, match=r"drafter: .*several rows at once, but the target's images have one"
    ):
        Engine(target, DecodingConfig(drafter, Chain(2) if drafter.has_drafts else NoTree()))


def test_nothing_but_the_order_differs_from_vanilla() -> None:
    assert NoDrafter().row_lag is None
    assert Rows(3).row_lag == JacobiRows(lag=3).row_lag == 3
    assert not DecodingConfig(Rows(3), sampling=GREEDY).is_lossless(GREEDY)
