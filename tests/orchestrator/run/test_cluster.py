"""Connecting to Ray: whatever Ray raises becomes one sentence."""

from __future__ import annotations

from unittest import mock

import pytest

from orchestrator.run.cluster import connected
from orchestrator.run.placement import Slots
from orchestrator.run.tasks import PoolError


@pytest.mark.parametrize("error", [Exception("The current node timed out during startup"), ConnectionError("refused")])
def test_a_ray_that_does_not_start_ends_in_one_sentence(error: Exception) -> None:
    with (
        mock.patch("ray.init", side_effect=error),
        pytest.raises(PoolError, match=f"no Ray cluster on this machine: {error}"),
        connected(None, Slots(1), 1),
    ):
        raise AssertionError("connected")
