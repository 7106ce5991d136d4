"""The largest probs in one sort: the same as those of the whole distribution."""

from __future__ import annotations

import pytest
import torch

from search_spaces.trial import Sampling
from workers.decoding.sampling import to_probs, top_log_probs


@pytest.mark.parametrize("top_p", [1.0, 0.8])
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 12, 50])
def test_the_largest_probs_are_those_of_the_whole_distribution(top_k: int, temperature: float, top_p: float) -> None:
    """Also where many logits tie with the k-th largest, and where fewer tokens are kept than are asked for."""
    sampling = Sampling(temperature=temperature, top_k=top_k, top_p=top_p)
    logits = 2 * torch.randn(3, 4, 40, generator=torch.Generator().manual_seed(top_k))
    logits[1] = logits[1].round()
    probs = to_probs(logits, sampling)
    for count in (1, 8, 20):
        log_probs, tokens = top_log_probs(logits, sampling, count)
        assert tokens.sort(-1).values.diff(dim=-1).ne(0).all(), "distinct"
        torch.testing.assert_close(log_probs.exp(), probs.topk(count, dim=-1).values)
        torch.testing.assert_close(log_probs.exp(), probs.gather(-1, tokens))


def test_not_a_number_stays_one() -> None:
    logits = torch.zeros(2, 8)
    logits[1, 3] = torch.nan
    log_probs, _ = top_log_probs(logits, Sampling(top_k=4), 3)
    assert log_probs.isnan().all(-1).tolist() == [False, True]
