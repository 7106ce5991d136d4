"""The speed-up that a sweep measured of a setting, measured again on this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orchestrator.front.joint import critical_t
from orchestrator.images import ImageEngine, time_against_vanilla
from orchestrator.store.config_file import MeasuredSpeed, head_comments
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.decoding.token_check import TokenCheck
from workers.decoding.token_checker import check_images
from workers.metrics.costs import QUIET
from workers.metrics.estimate import Estimate, ratio_estimate
from workers.runtime.device import device_name, this_device

_THREADS = re.compile(r", (\d+) threads?$")  # in the name of a CPU that timed


@dataclass(frozen=True, slots=True)
class RemeasuredSpeed:
    """A setting's speed-up on this machine, with that of its sweep."""

    expected: MeasuredSpeed  # by the sweep
    measured: Estimate  # here
    differences: list[str]  # why this run is not the sweep's
    tokens: TokenCheck | None  # of a lossless setting

    @property
    def holds(self) -> bool:
        """Whether the speed-up here is not smaller at the 5 % level of Student's t, and the tokens
        of a lossless setting are the target's own.

        The error here has the change of a quiet machine from day to day, which that of the sweep
        has already. The degrees of freedom are Welch's (1947), of the batches here.
        """
        value, _, error = self.expected.speedup.partition(" ± ")
        day = QUIET.ratio * self.measured.value
        spread = math.hypot(self.measured.error, day, float(error or 0))
        dof = np.array(math.inf)
        if self.measured.error > 0:
            dof = np.array((self.measured.n - 1) * (spread / self.measured.error) ** 4)
        is_fast = self.measured.value >= float(value) - float(critical_t(dof)) * spread
        return is_fast and (self.tokens is None or self.tokens.passed)

    def __str__(self) -> str:
        lines = [
            self.expected.describe(),
            f"here: {self.measured}, from {self.measured.n} batches",
        ]
        if self.differences:
            lines.append(f"differs from the sweep: {'; '.join(self.differences)}")
        if self.tokens is not None:
            are = "are" if self.tokens.passed else "are not"
            lines.append(f"the tokens {are} the target's own (p = {self.tokens.p_value:.2g})")
        lines.append(f"the measured speed-up {'holds' if self.holds else 'does not hold'} here")
        return "\n".join(lines)


def remeasure_speedup(
    engine: ImageEngine,
    setting: str | Path,
    captions: Sequence[str],
    sampling: Mapping[str, Any] | None = None,
) -> RemeasuredSpeed:
    """Measure the speed-up of an engine's setting against vanilla decoding again, as `generate
    --against vanilla` does: both generate each batch of captions, in turn. On a CPU with the number
    of threads that the sweep timed with.

    Args:
        engine: the setting with its models.
        setting: its file, whose comments say what the sweep measured.
        captions: for at least two batches.
        sampling: of vanilla decoding in the sweep; None for that of the setting.

    Raises:
        ValueError: the file states no speed-up, or there are too few captions.
        OSError: the file cannot be read.
    """
    expected = MeasuredSpeed.read(head_comments(Path(setting).read_text("utf-8")))
    if expected is None:
        raise ValueError(f"{setting}: its comments state no speed-up")
    decoder = engine.decoder
    plain = decoder.sampling if sampling is None else Sampling.from_mapping(sampling)
    requests = engine.requests(captions, 1)
    with _threads_of(expected, decoder.device):
        speedup, tokens = _compare(decoder, plain, requests)
        devices = [str(this_device(decoder.device)), device_name(decoder.device)]
    differences = expected.differences(decoder.config.digest(), decoder.batch_size, devices)
    check = None
    if decoder.config.is_lossless(plain, decoder.target.grid.cols):
        drawn = torch.stack([tokens[request] for request in requests])
        check = check_images(decoder.target, decoder.sampling, list(captions), drawn, decoder.seed)
    return RemeasuredSpeed(expected, speedup, differences, check)


@contextmanager
def _threads_of(expected: MeasuredSpeed, device: torch.device) -> Iterator[None]:
    """On a CPU, use as many threads as a sweep timed with while the block runs."""
    own = torch.get_num_threads()
    threads = _THREADS.search(expected.device)
    if device.type == "cpu" and threads:
        torch.set_num_threads(int(threads[1]))
    try:
        yield
    finally:
        torch.set_num_threads(own)


def _compare(
    decoder: Engine, sampling: Sampling, requests: Sequence[Request]
) -> tuple[Estimate, dict[Request, torch.Tensor]]:
    """The speed-up against vanilla decoding with this sampling, and the tokens of the images."""
    size = decoder.batch_size
    plain = DecodingConfig(sampling=sampling)
    vanilla = Engine(decoder.target, plain, seed=decoder.seed, batch_size=size)
    tokens: dict[Request, torch.Tensor] = {}

    def add(setting: int, result: Result) -> None:
        if setting == 1:
            tokens[result.request] = result.tokens

    rows = time_against_vanilla(vanilla, decoder, requests, add)
    vanillas, own = (
        torch.tensor([row["seconds"] for row in rows if row["setting"] == setting])
        for setting in ("0", "1")
    )
    return ratio_estimate(vanillas, own, torch.arange(len(own))), tokens
