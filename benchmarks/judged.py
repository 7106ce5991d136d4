"""Fronts of several sweeps, judged by one more sweep: of other captions, which draws all images of
their members.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import yaml

from orchestrator.front.compare import hypervolume, sampled_hypervolumes
from orchestrator.front.front import front_of
from orchestrator.front.joint import JointErrors, directions, standard_error, values_of
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig

_CAPTIONS_SEED = 7919  # of the captions that fronts are judged by


def launch(space: str, folder: Path, name: str, *options: str) -> Sweep:
    """Run or resume a sweep to its end.

    Raises:
        CalledProcessError: it failed, or was interrupted.
    """
    program = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
    place = ["--out", str(folder), "--name", name, "--no-mlflow", "--resume"]
    subprocess.run([*program, "launch", space, *place, *options], check=True)
    return Sweep.open(folder / name)


def members(sweep: Sweep) -> list[DecodingConfig]:
    """The settings on a sweep's front."""
    found = [candidate.record.config for candidate in front_of([sweep]).members]
    return [config for config in found if config is not None]


def judging_sweep(
    space: str, configs: Iterable[DecodingConfig], captions: int, changes: Mapping[str, Any]
) -> str:
    """The YAML of a sweep that draws all images of vanilla and of some settings of a space.

    Args:
        space: its name or file.
        configs: the settings; vanilla is left out.
        captions: number of captions, which are others than the space's.
        changes: overrides of the space's keys.
    """
    wanted = dict.fromkeys(config for config in configs if not config.is_vanilla)
    enqueued = [{"label": f"member {place}", **c.to_mapping()} for place, c in enumerate(wanted)]
    sweep = SweepConfig.read(
        space,
        {
            **changes,
            "about": "The settings on several fronts, on captions that no search has seen.",
            "captions.count": captions,
            "captions.seed": _CAPTIONS_SEED,
            "quality.lossless": "measure",
            "search": {"sampler": "random"},
            "racing": None,
            "constraints": [],
            "enqueue": ["vanilla", *enqueued],
            "budget.trials": 1 + len(enqueued),
        },
    )
    return yaml.safe_dump(sweep.to_mapping(), sort_keys=False)


class Volume(NamedTuple):
    """The hypervolume of a front."""

    value: float
    ratio: float  # to that of the first front
    error: float  # standard error of the ratio, over draws from all errors together
    # How much higher the ratio is in the median draw than by the measured values. Noise has added
    # about as much to the ratio: of more settings, more look good by luck.
    bias: float


def judged_hypervolumes(judge: Sweep, fronts: Sequence[Collection[DecodingConfig]]) -> list[Volume]:
    """The hypervolumes of fronts by the values of a sweep that has all their settings, up to one
    reference point.
    """
    found = front_of([judge], feasible=False)
    metrics = found.metrics
    records = [candidate.record for candidate in found.candidates]
    values = values_of(records, metrics)
    toward = directions(metrics)
    reference = found.reference_point()
    samples = JointErrors.of(records, metrics).samples()
    volumes = []
    sampled = []
    for front in fronts:
        rows = [row for row, record in enumerate(records) if record.config in front]
        volumes.append(hypervolume(values[rows], reference, toward))
        sampled.append(sampled_hypervolumes(samples[:, rows], reference, toward))
    first = sampled[0]
    ratios = [np.divide(each, first, out=np.ones(len(first)), where=first > 0) for each in sampled]
    found_volumes = []
    for volume, drawn in zip(volumes, ratios, strict=True):
        ratio = volume / volumes[0]
        bias = float(np.median(drawn)) - ratio
        found_volumes.append(Volume(volume, ratio, standard_error(drawn), bias))
    return found_volumes
