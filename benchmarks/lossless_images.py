"""Images that a sweep need not draw of lossless settings, at equal quality of its front.

    python -m benchmarks.lossless_images [quickstart joint] [--trials 40] [--judged 384]
        [--set captions.count=192] [--out sweeps/lossless_images]

Each space is swept twice: before, every lossless setting draws all images (`quality.lossless:
measure`), and after, only those that its speed and a check of its tokens need (`check`). The budget
is the same number of trials. A third sweep draws all images of the settings on either front, of
other captions: the truth by which both fronts are judged. Prints the images that the sweeps drew,
those of lossless settings among them, and the hypervolume of each front by the third sweep's
values, up to one reference point. The error of their ratio is over draws from all errors together.
Sweeps that are there are resumed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from orchestrator.front.compare import hypervolume, sampled_hypervolumes
from orchestrator.front.front import front_of
from orchestrator.front.joint import JointErrors, directions, standard_error, values_of
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig

WAYS = {"before": "measure", "after": "check"}
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


def images_drawn(sweep: Sweep) -> tuple[int, int]:
    """The images that the trials of a sweep drew, and those of lossless settings other than vanilla
    among them.
    """
    identity = sweep.identity
    total = 0
    lossless = 0
    for record in read_trials(sweep.storage):
        if record.duplicate_of is not None or record.config is None:
            continue
        drawn = record.images * identity.samples
        total += drawn
        if record.is_lossless(identity) and not record.config.is_vanilla:
            lossless += drawn
    return total, lossless


def members(sweep: Sweep) -> list[DecodingConfig]:
    """The settings on a sweep's front."""
    found = [candidate.record.config for candidate in front_of([sweep]).members]
    return [config for config in found if config is not None]


def judging_sweep(
    space: str, configs: Collection[DecodingConfig], captions: int, changes: Mapping[str, Any]
) -> str:
    """The YAML of a sweep that draws all images of vanilla and of some settings of a space.

    Args:
        space: its name or file.
        configs: the settings.
        captions: number of captions, which are others than the space's.
        changes: overrides of the space's keys.
    """
    wanted = dict.fromkeys(configs)
    enqueued = [{"label": f"member {place}", **c.to_mapping()} for place, c in enumerate(wanted)]
    sweep = SweepConfig.read(
        space,
        {
            **changes,
            "about": "The settings on two fronts, on captions that neither sweep has seen.",
            "captions.count": captions,
            "captions.seed": _CAPTIONS_SEED,
            "quality.lossless": WAYS["before"],
            "search": {"sampler": "random"},
            "racing": None,
            "constraints": [],
            "enqueue": ["vanilla", *enqueued],
            "budget.trials": 1 + len(enqueued),
        },
    )
    return yaml.safe_dump(sweep.to_mapping(), sort_keys=False)


def judged_hypervolumes(
    judge: Sweep, fronts: Sequence[Collection[DecodingConfig]]
) -> tuple[list[float], float, float]:
    """The hypervolumes of fronts by the values of a sweep that has all their settings, the last one
    over the first, and the standard error of this ratio.
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
    ratios = np.divide(sampled[-1], sampled[0], out=np.ones(len(samples)), where=sampled[0] > 0)
    return volumes, volumes[-1] / volumes[0], standard_error(ratios)


def compare(
    space: str, folder: Path, trials: int | None, judged: int, assignments: Sequence[str]
) -> None:
    """Sweep a space both ways, judge the fronts, and print a row for each."""
    options = [part for entry in assignments for part in ("--set", entry)]
    if trials is not None:
        options += ["--trials", str(trials)]
    sweeps = {}
    for way, choice in WAYS.items():
        setting = f"quality.lossless={choice}"
        sweeps[way] = launch(space, folder, f"{space}-{way}", *options, "--set", setting)
    fronts = [members(sweep) for sweep in sweeps.values()]
    changes = {}
    for entry in assignments:
        key, _, value = entry.partition("=")
        changes[key] = yaml.safe_load(value)
    path = folder / f"{space}-judge.yaml"
    both = [config for front in fronts for config in front if not config.is_vanilla]
    path.write_text(judging_sweep(space, both, judged, changes))
    volumes, ratio, error = judged_hypervolumes(launch(str(path), folder, f"{space}-judge"), fronts)
    print(
        f"\n{space}: {'trials':>6} {'images':>7} {'of lossless settings':>21} {'hypervolume':>12}"
    )
    for (way, sweep), volume in zip(sweeps.items(), volumes, strict=True):
        total, lossless = images_drawn(sweep)
        print(
            f"{way:>{len(space) + 1}} {len(sweep.records):6} {total:7} {lossless:21} {volume:12.4g}"
        )
    print(f"hypervolume after over before: {ratio:.3f} ± {error:.3f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spaces", nargs="*", default=["quickstart", "joint"])
    parser.add_argument("--trials", type=int, help="of spaces other than quickstart; default 40")
    parser.add_argument("--judged", type=int, default=384, help="captions of the third sweep")
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument("--out", type=Path, default=Path("sweeps/lossless_images"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for space in options.spaces:
        trials = None if space == "quickstart" else options.trials or 40
        try:
            compare(space, options.out, trials, options.judged, options.assignments)
        except ConfigError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
