"""Whether the speed-up that a sweep measured of a setting holds on this machine."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orchestrator.images import ImageEngine
from orchestrator.store.config_file import MeasuredSpeed, head_comments
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.decoding.token_check import TokenCheck
from workers.decoding.token_checker import check_images
from workers.metrics.estimate import Estimate, ratio_estimate
from workers.runtime.device import device_name, this_device
from workers.runtime.timing import time_in_turn

_THREADS = re.compile(r", (\d+) threads?$")  # in the name of a CPU that timed
_ERRORS = 2.0  # a difference of so many standard errors is not luck


@dataclass(frozen=True, slots=True)
class PromiseCheck:
    """A setting's speed-up on this machine, beside that of its sweep."""

    promised: MeasuredSpeed
    measured: Estimate  # here
    differences: list[str]  # why this run is not the sweep's
    tokens: TokenCheck | None  # of a lossless setting

    @property
    def holds(self) -> bool:
        """Whether the speed-up here is not smaller beyond two standard errors of the difference,
        and the tokens of a lossless setting are the target's own.
        """
        value, _, error = self.promised.speedup.partition(" ± ")
        spread = math.hypot(self.measured.error, float(error or 0))
        is_fast = self.measured.value >= float(value) - _ERRORS * spread
        return is_fast and (self.tokens is None or self.tokens.passed)

    def __str__(self) -> str:
        lines = [
            self.promised.describe(),
            f"here: {self.measured}, from {self.measured.n} batches",
        ]
        if self.differences:
            lines.append(f"differs from the sweep: {'; '.join(self.differences)}")
        if self.tokens is not None:
            are = "are" if self.tokens.passed else "are not"
            lines.append(f"the tokens {are} the target's own (p = {self.tokens.p_value:.2g})")
        lines.append(f"the promise {'holds' if self.holds else 'does not hold'} here")
        return "\n".join(lines)


def check_promise(
    engine: ImageEngine,
    setting: str | Path,
    captions: Sequence[str],
    sampling: Mapping[str, Any] | None = None,
) -> PromiseCheck:
    """Measure the speed-up of an engine's setting against vanilla decoding again, as `generate
    --against vanilla` does: both generate each batch of captions, in turn.

    Args:
        engine: the setting with its models.
        setting: its file, whose comments say what the sweep measured.
        captions: for at least two batches.
        sampling: of vanilla decoding in the sweep; None for that of the setting.

    Raises:
        ValueError: the file states no speed-up, or there are too few captions.
        OSError: the file cannot be read.
    """
    promised = MeasuredSpeed.read(head_comments(Path(setting).read_text("utf-8")))
    if promised is None:
        raise ValueError(f"{setting}: its comments state no speed-up")
    decoder = engine.decoder
    if decoder.device.type == "cpu" and (threads := _THREADS.search(promised.device)):
        torch.set_num_threads(int(threads[1]))
    plain = decoder.sampling if sampling is None else Sampling.from_mapping(sampling)
    requests = engine.requests(captions, 1)
    speedup, tokens = _compare(decoder, plain, requests)
    devices = [str(this_device(decoder.device)), device_name(decoder.device)]
    differences = promised.differences(decoder.config.digest(), decoder.batch_size, devices)
    check = None
    if decoder.config.is_lossless(plain, decoder.target.grid.cols):
        drawn = torch.stack([tokens[request] for request in requests])
        check = check_images(decoder.target, decoder.sampling, list(captions), drawn, decoder.seed)
    return PromiseCheck(promised, speedup, differences, check)


def _compare(
    decoder: Engine, sampling: Sampling, requests: Sequence[Request]
) -> tuple[Estimate, dict[Request, torch.Tensor]]:
    """The speed-up against vanilla decoding with this sampling, and the tokens of the images."""
    size = decoder.batch_size
    plain = DecodingConfig(sampling=sampling)
    vanilla = Engine(decoder.target, plain, seed=decoder.seed, batch_size=size)
    batches = [requests[start : start + size] for start in range(0, len(requests), size)]
    tokens: dict[Request, torch.Tensor] = {}

    def run(of: Engine, batch: Sequence[Request]) -> list[Result]:
        results = list(of.run(batch))
        if of is decoder:
            tokens.update((result.request, result.tokens) for result in results)
        return results

    settings = {"vanilla": partial(run, vanilla), "own": partial(run, decoder)}
    rows = time_in_turn(
        settings,
        batches,
        decoder.device,
        encode=lambda batch: decoder.target.encode([r.caption for r in batch], guided=False),
    )
    vanillas, own = (
        torch.tensor([row["seconds"] for row in rows if row["setting"] == name])
        for name in settings
    )
    return ratio_estimate(vanillas, own, torch.arange(len(batches))), tokens
