"""The Jacobi window against a plain one: how tokens move, which probs they keep, how new positions
are filled.
"""

from __future__ import annotations

from typing import Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from search_spaces.drafters import Jacobi
from search_spaces.trees import Branching, Chain, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.toys import toy_target
from tests.oracles import tabular
from tests.oracles.drafter_rounds import open_batch
from workers.decoding import redraws, rng
from workers.decoding.accept import AcceptResult
from workers.decoding.jacobi import JacobiWindow
from workers.decoding.sampling import to_probs
from workers.decoding.state import Batch
from workers.models.target import Prompt

CODES, LENGTH, SIZE = 24, 4, 3
Start = Literal["uniform", "random", "repeat_left", "sample_left"]
Redraw = Literal["fresh", "coupled", "maximal", "reuse"]
REDRAWS: tuple[Redraw, ...] = get_args(Redraw)
STARTS: tuple[Start, ...] = get_args(Start)
CHAIN = Chain(LENGTH)
NOTHING = Prompt(torch.zeros(SIZE, 1, 1), torch.ones(SIZE, 1, dtype=torch.bool))
FIRST = torch.tensor([3, 9, 20])


def opened(
    initialisation: Start, redraw: Redraw, sampling: Sampling, policy: TreePolicy = CHAIN
) -> tuple[JacobiWindow[Batch], Batch]:
    """A window over three captions that have their first tokens."""
    target = toy_target()
    batch = open_batch(target, 2)
    config = DecodingConfig(Jacobi(initialisation, redraw), policy, sampling=sampling)
    window = JacobiWindow[Batch](config, target, None)
    all_rows = torch.arange(SIZE)
    window.prepare(batch)
    batch.admit(all_rows, all_rows + 5, FIRST, torch.ones(2 * SIZE, 5, dtype=torch.bool))
    window.admit(all_rows, NOTHING, [], torch.zeros(SIZE, 1, 1), FIRST)
    return window, batch


def commit(
    window: JacobiWindow[Batch], batch: Batch, accepted: Tensor, last: Tensor, logits: Tensor
) -> None:
    """A round that accepts so many drafts of each row's window, then emits `last`."""
    tree = window.draft(batch)
    tokens = torch.cat([tree.tokens, last[:, None]], 1).scatter(1, accepted[:, None], last[:, None])
    probs = to_probs(logits, window.sampling)
    result = AcceptResult(None, tokens, accepted, last, torch.zeros(SIZE, dtype=torch.bool), probs)
    window.commit(batch, tree, result, logits, logits)
    batch.commit(tokens, result.num_emitted, last)


def filled(
    start: Start, known: list[tuple[int, list[float]] | None], root: int
) -> list[tuple[int, list[float]]]:
    """The window to verify: a position without probs takes the nearest known token to its left, or
    that position's most likely token; the proposal is then a point mass.
    """
    window: list[tuple[int, list[float]]] = []
    nearest = root
    for place in known:
        if place is None:
            window.append((nearest, [float(code == nearest) for code in range(CODES)]))
        else:
            window.append(place)
            token, probs = place
            nearest = token if start == "repeat_left" else probs.index(max(probs))
    return window


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("start", STARTS)
@settings(max_examples=20, deadline=None)
@given(
    rounds=st.lists(
        st.lists(st.integers(0, LENGTH), min_size=3, max_size=3), min_size=1, max_size=3
    ),
    seed=st.integers(0, 999),
)
def test_window_slides_as_the_plain_one(
    start: Start, temperature: float, rounds: list[list[int]], seed: int
) -> None:
    """Every row at its own pace; "coupled", so that a position's token is known from its
    distribution.
    """
    sampling = Sampling(temperature=temperature, top_k=9, top_p=0.95)
    window, batch = opened(start, "coupled", sampling)
    generator = torch.Generator().manual_seed(seed)
    known: list[list[tuple[int, list[float]] | None]] = [[None] * LENGTH for _ in range(SIZE)]
    emitted = [1] * SIZE
    for accepts in [*rounds, None]:
        tree = window.draft(batch)
        for row in range(SIZE):
            # any token of the codebook, as long as its distribution says so
            if start in ("uniform", "random"):
                tokens = tree.tokens[row].tolist()
                assert all(0 <= token < CODES for token in tokens)
                certain = [[float(code == token) for code in range(CODES)] for token in tokens]
                first = certain if start == "random" else [[1 / CODES] * CODES] * LENGTH
                expected = [
                    place or (t, probs)
                    for place, t, probs in zip(known[row], tokens, first, strict=True)
                ]
            else:
                expected = filled(start, known[row], int(batch.root[row]))
            assert tree.tokens[row].tolist() == [token for token, _ in expected]
            if tree.probs is not None:
                all_probs = torch.tensor([probs for _, probs in expected])
                torch.testing.assert_close(tree.probs[row], all_probs, atol=1e-6, rtol=1e-5)
                assert tree.probs_index is not None
                assert tree.probs_index[0, :LENGTH].tolist() == list(range(LENGTH))
        assert (tree.probs is None) == (temperature == 0)
        if accepts is None:
            return
        logits = 2 * torch.randn(SIZE, LENGTH + 1, CODES, generator=generator)
        last = torch.randint(CODES, (SIZE,), generator=generator)
        commit(window, batch, torch.tensor(accepts), last, logits)
        for row, accepted in enumerate(accepts):
            emitted[row] += accepted + 1
            # slot s gave the distribution of the token after it
            slots = range(accepted + 1, LENGTH + 1)
            known[row] = [
                redrawn(batch, row, emitted[row] + ahead, logits[row, slot], sampling)
                for ahead, slot in enumerate(slots)
            ]
            known[row] += [None] * (LENGTH - len(slots))


def redrawn(
    batch: Batch, row: int, position: int, logits: Tensor, sampling: Sampling
) -> tuple[int, list[float]]:
    """A place's new token and the distribution it was drawn from."""
    if sampling.temperature == 0:
        probs = logits.double().softmax(0).tolist()
        return probs.index(max(probs)), probs
    probs = tabular.processed(logits[None].double().numpy(), sampling)[0].tolist()
    codes = torch.arange(CODES)
    exponential_noise = rng.exponential(
        batch.keys[row], torch.tensor(position), rng.Purpose.WINDOW, codes
    ).tolist()
    odds = [mass / clock for mass, clock in zip(probs, exponential_noise, strict=True)]
    return odds.index(max(odds)), probs


@pytest.mark.parametrize("redraw", REDRAWS)
def test_under_one_distribution_all_but_fresh_redraws_keep_their_tokens(redraw: Redraw) -> None:
    window, batch = opened("random", redraw, Sampling())
    none_accepted, same = torch.zeros(SIZE, dtype=torch.int64), torch.zeros(SIZE, LENGTH + 1, CODES)
    kept: list[Tensor] = []
    before = None
    for _ in range(8):
        commit(window, batch, none_accepted, FIRST, same)
        tokens = window.draft(batch).tokens[:, : LENGTH - 1]  # the last place is new every time
        if before is not None:
            kept.append(tokens[:, :-1] == before[:, 1:])
        before = tokens
    share = float(torch.stack(kept).float().mean())
    assert share == 1 if redraw != "fresh" else share < 0.2


@pytest.mark.parametrize("redraw", REDRAWS)
def test_a_redraw_gets_the_old_draft_of_its_position(
    redraw: Redraw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every row at its own pace. The new place i was i + 1 + accepted; the last one that has probs
    had no draft.
    """
    window, batch = opened("uniform", redraw, Sampling())
    seen: list[redraws.Redraw] = []

    def noted(draft: redraws.Redraw) -> tuple[Tensor, Tensor]:
        seen.append(draft)
        return redraws.REDRAWS[redraw](draft)

    monkeypatch.setattr(window, "_redraw", noted)
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        tree, accepted = window.draft(batch), torch.tensor([0, 2, LENGTH])
        assert tree.probs is not None
        tokens, probs = tree.tokens.clone(), tree.probs.clone()
        commit(
            window,
            batch,
            accepted,
            FIRST,
            torch.randn(SIZE, LENGTH + 1, CODES, generator=generator),
        )
        for row, count in enumerate(accepted.tolist()):
            places = range(count + 1, LENGTH)
            assert seen[-1].drafted[row].tolist() == [
                place in places for place in range(count + 1, count + 1 + LENGTH)
            ]
            for new, old in enumerate(places):
                assert seen[-1].tokens[row, new] == tokens[row, old]
                assert redraw in ("fresh", "coupled") or seen[-1].probs[row, new].equal(
                    probs[row, old]
                )


def test_siblings_are_other_codes_of_the_probs_of_their_level() -> None:
    """Here three of the codes are possible, so a fourth sibling does not exist. All siblings of a
    level share them.
    """
    window, batch = opened("uniform", "maximal", Sampling(top_k=3), Branching(LENGTH, 4, 2))
    logits = torch.randn(
        SIZE, window.max_nodes + 1, CODES, generator=torch.Generator().manual_seed(3)
    )
    slots = torch.zeros(SIZE, 1, dtype=torch.int64)
    result = AcceptResult(slots, FIRST[:, None], slots[:, 0], FIRST, slots[:, 0] > 0)
    window.commit(batch, window.draft(batch), result, logits, logits)
    tree = window.draft(batch)
    assert tree.probs is not None
    paths = Branching(LENGTH, 4, 2).fixed.tree.paths
    for row in range(SIZE):
        known = int(window.known[row])
        by_path = dict(zip(paths, tree.tokens[row].tolist(), strict=True))
        exists = dict(zip(paths, tree.exists[row].tolist(), strict=True))
        assert all(exists[path] == (path[-1] < 3) for path in paths if len(path) <= min(2, known))
        for level in (1, 2):
            siblings = [
                by_path[(*above, rank)] for above in [(0,) * (level - 1)] for rank in range(3)
            ]
            assert len(set(siblings)) == 3
            assert all(tree.probs[row, level - 1, code] > 0 for code in siblings)
            assert all(
                by_path[path] == siblings[path[-1]]
                for path in paths
                if len(path) == level and path[-1] < 3
            )


def test_a_window_follows_the_path_that_was_accepted() -> None:
    """Row 0 took the second child of the root's second child (slot 5), row 1 the second child, row
    2 nothing: the slots whose probs serve the next levels are the first below what was taken, and
    then those of the first path.
    """
    policy = Static(paths=((0,), (1,), (0, 0), (1, 0), (1, 1), (0, 0, 0), (1, 0, 0), (0, 0, 0, 0)))
    window, batch = opened("uniform", "coupled", Sampling(), policy)
    logits = torch.zeros(SIZE, 9, CODES)
    logits[:, torch.arange(9), torch.arange(9)] = 60.0  # a slot's next token is its own number
    path = torch.tensor([[0, 2, 5], [0, 2, 2], [0, 0, 0]])
    accepted = torch.tensor([2, 1, 0])
    tokens = torch.zeros(SIZE, 3, dtype=torch.int64)
    result = AcceptResult(path, tokens, accepted, FIRST, accepted < 0)
    window.commit(batch, window.draft(batch), result, logits, logits)
    assert window.known.tolist() == [2, 3, 4]
    expected = [[6, 8], [4, 7, 8], [1, 3, 6, 8]]
    assert [
        window.tokens[row, : len(slots)].tolist() for row, slots in enumerate(expected)
    ] == expected


def test_a_tree_of_width_one_is_a_chain() -> None:
    chain, narrow = (
        opened("uniform", "maximal", Sampling(), policy)[0]
        for policy in (Chain(4), Branching(4, 1, 2))
    )
    assert narrow._branches is chain._branches is None
    assert narrow._shape.is_chain
