"""Jacobi windows in replay: what a rule emits depends on how fast it makes the window slide.

A draft gets better with every pass that it waits in the window, and the more a rule accepts, the
fewer passes that is. So a window is recorded at two speeds, that of the exact rule and that of a
relaxed one, and at a few lengths. A setting's rule is applied to the recordings of the lengths next
to its own; between the two speeds, the logs of the tokens it emits per pass are interpolated
linearly in the log of the speed, and between two lengths in the log of the length. Its own speed is
where it emits as many tokens per pass as the window slides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.schedules import Constant
from search_spaces.trial import DecodingConfig
from workers.replay.prediction import Prediction, Recording, interpolate

RECORDED_RULES = (EXACT, AcceptanceRule(schedule=Constant(4.0)))
_RATIO = 2.0  # largest ratio of neighbouring recorded lengths
_MARGIN = 0.5  # extrapolation on both sides, as a share of the distance between the two speeds


def predict_window(
    recordings: Sequence[Recording], config: DecodingConfig, tables: NeighbourTables
) -> Prediction:
    """The prediction for a Jacobi window, from two recordings of each length: by the exact rule,
    then by the relaxed one.

    Raises:
        ConfigError: the window's length is not between two recorded ones.
    """
    by_length: dict[int, list[Recording]] = {}
    for recording in recordings:
        by_length.setdefault(recording.config.policy.bounds.depth, []).append(recording)
    low, high, weight = neighbours(config.policy.bounds.depth, by_length)
    ends = [
        _at_own_speed(by_length[length], config.acceptance, tables)
        for length in dict.fromkeys((low, high))
    ]
    return replace(interpolate(ends[0], ends[-1], weight), approximate=True)


def _at_own_speed(
    recordings: Sequence[Recording], rule: AcceptanceRule, tables: NeighbourTables
) -> Prediction:
    """The prediction for a window of one recorded length."""
    exact, relaxed = (
        recording.predict(recording.outcomes(rule, tables)) for recording in recordings
    )
    emitted = exact.mean_accepted_length.value, relaxed.mean_accepted_length.value
    weight = relaxed_weight((recordings[0].own_speed, recordings[1].own_speed), emitted)
    return interpolate(exact, relaxed, weight)


def window_lengths(lengths: Iterable[int]) -> tuple[int, ...]:
    """The lengths to record for windows of these lengths: the shortest, the longest, and some
    between.
    """
    all_lengths = list(lengths)
    low = min(all_lengths)
    high = max(all_lengths)
    steps = max(1, math.ceil(math.log(high / low, _RATIO)))
    return tuple(sorted({round(low * (high / low) ** (step / steps)) for step in range(steps + 1)}))


def neighbours(length: int, recorded: Iterable[int]) -> tuple[int, int, float]:
    """The recorded lengths next to a length, and the weight of the second.

    Raises:
        ConfigError: the length is not between two of them.
    """
    recorded = sorted(recorded)
    if not recorded or not recorded[0] <= length <= recorded[-1]:
        raise ConfigError(
            ("tree", "length"), f"{length} is not between the recorded lengths, {recorded}"
        )
    low = max(entry for entry in recorded if entry <= length)
    high = min(entry for entry in recorded if entry >= length)
    if low == high:
        return low, high, 0.0
    return low, high, math.log(length / low) / math.log(high / low)


def relaxed_weight(speeds: tuple[float, float], emitted: tuple[float, float]) -> float:
    """The weight of the relaxed recording at a rule's own speed.

    Solves log speed = log emitted[0] + weight * change with weight = (log speed - log speeds[0]) /
    between, where `between` and `change` are the differences of the logs of `speeds` and `emitted`.

    Args:
        speeds: tokens per pass of the exact rule's recording, and of the relaxed rule's.
        emitted: tokens per pass of the rule itself on these two recordings.
    """
    between = math.log(speeds[1] / speeds[0])
    change = math.log(emitted[1] / emitted[0])
    slack = between - change
    # The rule makes any speed faster: the fastest recorded speed is the nearest.
    if slack <= 0 or between == 0:
        return 1.0
    return min(max(math.log(emitted[0] / speeds[0]) / slack, -_MARGIN), 1 + _MARGIN)
