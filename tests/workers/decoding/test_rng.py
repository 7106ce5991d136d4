"""The counter-based generator: pure, independent of batching, and uniform. False-alarm rate of each
statistical check: 1e-4.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats

from workers.decoding import rng
from workers.decoding.constants import kept_in

PURPOSES = list(rng.Purpose)


def splitmix(z: int) -> int:
    """SplitMix64's finaliser in Python integers."""
    z &= (1 << 64) - 1
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 & (1 << 64) - 1
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB & (1 << 64) - 1
    return z ^ (z >> 31)


def test_bits_are_splitmix64_of_the_key() -> None:
    """The tensor arithmetic wraps and shifts exactly as unsigned 64-bit integers do."""
    keys = torch.tensor([0, 1, -1, 2**62 + 12345, -(2**61) - 7])
    for key in keys.tolist():
        for slot in (0, 1, 77):
            place = splitmix(key + 5 * 0x9E3779B97F4A7C15 + int(rng.Purpose.DRAFT))
            expected = splitmix(place + slot * 0xBF58476D1CE4E5B9)
            got = rng.bits(
                torch.tensor([key]), torch.tensor([5]), rng.Purpose.DRAFT, torch.tensor([slot])
            )
            assert int(got) & (1 << 64) - 1 == expected


def test_numbers_depend_on_nothing_but_their_key() -> None:
    keys = rng.image_keys(7, [3, 1, 4, 1, 5], [0, 0, 0, 1, 2])
    order = torch.tensor([4, 2, 0, 1, 3])
    positions = torch.arange(6)
    together = rng.uniform(
        keys[:, None, None], positions[:, None], rng.Purpose.ACCEPT, torch.arange(9)
    )
    shuffled = rng.uniform(
        keys[order][:, None, None], positions[:, None], rng.Purpose.ACCEPT, torch.arange(9)
    )
    assert torch.equal(together[order], shuffled)
    assert len(set(keys.tolist())) == 5
    assert not torch.equal(rng.image_keys(7, [1], [0]), rng.image_keys(8, [1], [0]))


def test_uniforms_are_uniform_and_never_one() -> None:
    keys = rng.image_keys(0, range(100), [0] * 100)
    for purpose in PURPOSES:
        draws = rng.uniform(
            keys[:, None, None], torch.arange(40)[:, None], purpose, torch.arange(25)
        ).flatten()
        assert draws.min() >= 0
        assert draws.max() < 1
        assert stats.kstest(draws.double().numpy(), "uniform").pvalue > 1e-4


def test_exponentials_are_exponential_finite_and_positive() -> None:
    keys = rng.image_keys(1, range(100), [0] * 100)
    draws = rng.exponential(
        keys[:, None], torch.arange(3)[0], rng.Purpose.TARGET, torch.arange(1000)
    ).flatten()
    assert draws.min() > 0
    assert draws.isfinite().all()
    assert stats.kstest(draws.double().numpy(), "expon").pvalue > 1e-4


def test_neighbouring_keys_purposes_positions_and_slots_are_uncorrelated() -> None:
    """Correlation of 100,000 pairs that differ by one in a single coordinate; |r| above 0.0123 has
    probability 1e-4.
    """
    captions, positions, slots = range(101), torch.arange(41), torch.arange(26)
    keys = rng.image_keys(0, captions, [0] * 101)
    block = rng.uniform(keys[:, None, None], positions[:, None], rng.Purpose.ACCEPT, slots).double()
    other = rng.uniform(keys[:, None, None], positions[:, None], rng.Purpose.DRAFT, slots).double()
    pairs = {
        "caption": (block[1:, :40, :25], block[:-1, :40, :25]),
        "position": (block[:100, 1:, :25], block[:100, :-1, :25]),
        "slot": (block[:100, :40, 1:], block[:100, :40, :-1]),
        "purpose": (block[:100, :40, :25], other[:100, :40, :25]),
    }
    for name, (a, b) in pairs.items():
        assert abs(stats.pearsonr(a.flatten().numpy(), b.flatten().numpy())[0]) < 0.0123, name


def test_slots_past_the_tables_limit_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rng, "_MAX_TABLE_ENTRIES", 0)
    numbers, positions = rng.CounterRNG(torch.arange(2), 4), torch.tensor([[0, 1], [2, 3]])
    with kept_in({}):
        first = numbers.exponential_noise(rng.Purpose.DRAFT, positions, 1009)
        monkeypatch.setattr(torch, "arange", None)
        assert torch.equal(numbers.exponential_noise(rng.Purpose.DRAFT, positions, 1009), first)


@pytest.mark.parametrize(("slots", "tables"), [(4, 1), (70, 0)])
def test_numbers_by_slot_are_kept_only_if_a_table_is_read_sooner(slots: int, tables: int) -> None:
    keys = rng.image_keys(3, [1, 2], [0, 0])
    made = rng.CounterRNG(keys, 100)
    positions = torch.arange(2 * slots).view(2, slots) % 100
    found = made.by_slot(rng.uniform_double, rng.Purpose.WINDOW, positions, 5)
    expected = rng.uniform_double(
        keys[:, None], positions, rng.Purpose.WINDOW, torch.arange(5, 5 + slots)
    )
    assert torch.equal(found, expected)
    assert len(made._tables) == tables


def test_chunk_sizes_depend_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor's cache bounds the parts of a table on a CPU; elsewhere memory alone. The numbers
    stay.
    """
    made: list[int] = []

    def make(key: torch.Tensor, *rest: object) -> torch.Tensor:
        made.append(len(key))
        return key.float().expand(-1, 1000)

    rng.CounterRNG(torch.arange(4), 100)._table(make, rng.Purpose.TARGET, torch.arange(4), 1000)
    assert len(made) == 4
    made.clear()
    away = torch.zeros(4, dtype=torch.int64, device="meta")
    rng.CounterRNG(away, 100)._table(make, rng.Purpose.TARGET, away, 1000)
    assert made == [400]
    monkeypatch.setattr(rng, "_CPU_CHUNK_ENTRIES", 7)
    few = rng.CounterRNG(torch.arange(4), 10).exponential_noise(
        rng.Purpose.DRAFT, torch.arange(10).expand(4, 10), 5
    )
    monkeypatch.setattr(rng, "_CPU_CHUNK_ENTRIES", 1 << 20)
    assert torch.equal(
        few,
        rng.CounterRNG(torch.arange(4), 10).exponential_noise(
            rng.Purpose.DRAFT, torch.arange(10).expand(4, 10), 5
        ),
    )


@pytest.mark.parametrize("kept", [1, 40, 8192])
def test_tokens_of_numbers_that_are_read_once_are_those_of_the_tables(kept: int) -> None:
    codes = 8192
    logits = torch.randn(64, codes, generator=torch.Generator().manual_seed(kept)) * 3
    least = logits.topk(kept, dim=-1).values[:, -1:]
    probs = logits.masked_fill(logits < least, -torch.inf).softmax(-1)
    numbers = rng.CounterRNG(torch.arange(8).repeat_interleave(8), 6)
    positions = torch.arange(8).repeat(8)  # two are past the end
    once = numbers.sample_without_table(rng.Purpose.TARGET, probs, positions)
    assert not numbers._tables
    assert torch.equal(
        once, numbers.sample(rng.Purpose.TARGET, probs[:, None], positions[:, None])[:, 0]
    )
    assert (probs.gather(1, once[:, None]) > 0).all()


@pytest.mark.parametrize("entry", [0.0, torch.nan])
def test_a_row_without_mass_or_with_nan_has_the_token_of_the_tables(entry: float) -> None:
    probs = torch.zeros(2, 8192)
    probs[0, 17] = 1
    probs[1, 5:7] = entry
    numbers = rng.CounterRNG(torch.arange(2), 4)
    positions = torch.tensor([0, 3])
    expected = numbers.sample(rng.Purpose.TARGET, probs[:, None], positions[:, None])[:, 0]
    assert torch.equal(numbers.sample_without_table(rng.Purpose.TARGET, probs, positions), expected)
    assert expected[0] == 17
