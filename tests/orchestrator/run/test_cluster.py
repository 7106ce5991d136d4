"""Connecting to Ray: whatever Ray raises becomes one sentence, with the advice for its cause."""

from __future__ import annotations

from unittest import mock

import pytest

from orchestrator.run.cluster import connected
from orchestrator.run.placement import Slots
from orchestrator.run.tasks import PoolError

MISMATCH = "Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.0\n"


@pytest.mark.parametrize(
    ("address", "error", "parts"),
    [
        (None, Exception("The current node timed out during startup"), ("timed out during startup", "memory")),
        (None, ConnectionError("refused\n at once"), ("refused at once",)),
        ("127.0.0.2:5", RuntimeError(MISMATCH), ("127.0.0.2:5", "Python: 3.9.0", "same versions")),
        ("127.0.0.2:5", ConnectionError("refused"), ("127.0.0.2:5: refused", "`ray status`")),
    ],
)
def test_a_ray_that_does_not_start_ends_in_one_sentence(
    address: str | None, error: Exception, parts: tuple[str, ...]
) -> None:
    with (
        mock.patch("orchestrator.run.cluster.requires_token", return_value=False),
        mock.patch("ray.init", side_effect=error),
        pytest.raises(PoolError) as raised,
        connected(address, Slots(1), 1),
    ):
        raise AssertionError("connected")
    message = str(raised.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert ("token" in message) is False, "no token was involved"
