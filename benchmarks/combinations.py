"""A setting that no paper has: fronts of published settings, of their own knobs, of parts of
several papers together, and of these with modulations.

    python -m benchmarks.combinations [--trials 32] [--judged 384] [--batches 1 8]
        [--only sjd scd] [--out sweeps/combinations]
        [--json benchmarks/results/combinations.json]

Four sweeps of the built-in model (benchmarks/combinations.yaml): every preset as published; a
search of the own knobs of each method that replay can describe (drafters with chains, static and
dynamic trees, and windows); a search of neighbourhoods, schedules and resamplings together, with
windows and chains; and the same with a modulation. Each search takes over the images and the front
of the presets, and tries equally many settings. All settings are timed at each batch size.
A last sweep draws the members of all fronts, and what each sweep recommends, with captions and
random numbers that no search has seen, and times them. Prints, for each batch size, the hypervolume
of each front by the last sweep's values, with what noise adds to its ratio, and the recommended
settings. Sweeps that are there are resumed. Hours on two cores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.judged import judged_hypervolumes, judging_sweep, launch, members
from orchestrator.front.choice import best_within
from orchestrator.front.front import front_of
from orchestrator.store.prices import Machine
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.presets import CATALOGUE
from search_spaces.trial import DecodingConfig

SPACES = Path(__file__).with_suffix(".yaml")
PUBLISHED = "published"
SEARCHES = ("searched", "combined", "modulated")
LIMIT = "fid <= 1.1 * vanilla"
_SEED = 104729  # of the last sweep's random numbers


@dataclass(frozen=True)
class Recommended:
    """What a sweep recommends at a batch size."""

    sweep: str
    batch: int
    choice: str  # "lossless", or the limit that it meets
    config: DecodingConfig


def spaces() -> dict[str, Any]:
    """The file of spaces."""
    found: dict[str, Any] = yaml.safe_load(SPACES.read_text())
    return found


def write_sweep(folder: Path, name: str, trials: int, presets: Sequence[str] = ()) -> Path:
    """Write the YAML of one of the four sweeps, by default with all presets."""
    found = spaces()
    document = {"name": name, **found["base"]}
    if name == PUBLISHED:
        names = list(dict.fromkeys(["vanilla", *(presets or CATALOGUE)]))
        document["enqueue"] = names
        document["search"] = {"sampler": "random"}
        document["budget"] = {"trials": len(names)}
    else:
        document["enqueue"] = ["vanilla"]
        document["space"] = found[name]
        document["budget"] = {"trials": trials}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return path


def at_batch(sweep: Sweep, batch: int) -> Sweep:
    """A sweep with its own device's speeds at a batch size.

    Raises:
        LookupError: nothing was timed at this size.
    """
    if batch == sweep.identity.timing_batch:
        return sweep
    for machine in Machine.all(sweep.prices):
        if machine.batch == batch:
            return sweep.priced_on(machine)
    raise LookupError(f"{sweep.name}: no speeds at batch {batch}")


def time_all(sweep: Sweep, folder: Path, batches: Sequence[int], minutes: float) -> Sweep:
    """Time all settings of a sweep at the batch sizes other than its own."""
    program = [sys.executable, "-c", "from orchestrator.cli.app import main; main()"]
    for batch in batches:
        if batch != sweep.identity.timing_batch:
            options = ["--batch", str(batch), "--where", "number >= 0", "--minutes", str(minutes)]
            subprocess.run([*program, "time", str(folder / sweep.name), *options], check=True)
    return Sweep.open(folder / sweep.name)


def recommended(sweep: Sweep, batch: int) -> Iterator[Recommended]:
    """The fastest lossless setting, and the fastest one within the limit."""
    front = front_of([at_batch(sweep, batch)])
    for choice, limits in (("lossless", ()), (LIMIT, (LIMIT,))):
        found = best_within(front, limits, lossless=not limits)
        if found is not None and found.record.config is not None:
            yield Recommended(sweep.name, batch, choice, found.record.config)


def run_sweeps(
    folder: Path, trials: int, batches: Sequence[int], minutes: float, presets: Sequence[str]
) -> list[Sweep]:
    """The four sweeps, with speeds at all batch sizes."""
    first = launch(str(write_sweep(folder, PUBLISHED, trials, presets)), folder, PUBLISHED)
    sweeps = [time_all(first, folder, batches, minutes)]
    for name in SEARCHES:
        space = str(write_sweep(folder, name, trials))
        sweep = launch(space, folder, name, "--from", str(folder / PUBLISHED))
        sweeps.append(time_all(sweep, folder, batches, minutes))
    return sweeps


def record_of(sweep: Sweep, config: DecodingConfig) -> TrialRecord:
    """The trial of a setting."""
    return next(record for record in sweep.records if record.config == config)


def described(judge: Sweep, choice: Recommended) -> dict[str, Any]:
    """A recommended setting with the last sweep's values."""
    record = record_of(at_batch(judge, choice.batch), choice.config)
    values = {name: record.metrics[name] for name in ("speedup", "fid")}
    return {
        "sweep": choice.sweep,
        "batch": choice.batch,
        "choice": choice.choice,
        "setting": judge.names.name(choice.config),
        "config": choice.config.to_mapping(),
        **{name: [value.value, value.error] for name, value in values.items()},
    }


def judge_fronts(
    sweeps: Sequence[Sweep], folder: Path, judged: int, batches: Sequence[int], minutes: float
) -> dict[str, Any]:
    """Run the last sweep, and compare the fronts and the recommended settings by it."""
    fronts = {batch: [members(at_batch(sweep, batch)) for sweep in sweeps] for batch in batches}
    choices = [
        found for batch in batches for sweep in sweeps for found in recommended(sweep, batch)
    ]
    configs = [config for found in fronts.values() for front in found for config in front]
    configs += [choice.config for choice in choices]
    path = folder / "judge.yaml"
    changes: Mapping[str, Any] = {"seed": _SEED}
    path.write_text(judging_sweep(str(folder / f"{PUBLISHED}.yaml"), configs, judged, changes))
    judge = time_all(launch(str(path), folder, "judge"), folder, batches, minutes)
    volumes = []
    for batch in batches:
        judged_fronts = judged_hypervolumes(at_batch(judge, batch), fronts[batch])
        for sweep, front, volume in zip(sweeps, fronts[batch], judged_fronts, strict=True):
            volumes.append(
                {"sweep": sweep.name, "batch": batch, "members": len(front), **volume._asdict()}
            )
    return {"volumes": volumes, "choices": [described(judge, choice) for choice in choices]}


def table(found: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| batch | front | members | hypervolume | over published | of that, noise |"]
    lines.append("|---|---|---|---|---|---|")
    lines += [
        f"| {row['batch']} | {row['sweep']} | {row['members']} | {row['value']:.3f} | "
        f"{row['ratio']:.3f} ± {row['error']:.3f} | {row['bias']:.3f} |"
        for row in found["volumes"]
    ]
    lines += ["", "| batch | best | of | setting | speedup | fid |", "|---|---|---|---|---|---|"]
    for row in found["choices"]:
        cells = [row["batch"], row["choice"], row["sweep"], f"`{row['setting']}`"]
        cells += [f"{value:.2f} ± {error:.2f}" for value, error in (row["speedup"], row["fid"])]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=32, help="settings that each search tries")
    parser.add_argument("--judged", type=int, default=384, help="captions of the last sweep")
    parser.add_argument("--only", nargs="+", choices=CATALOGUE, default=(), help="presets")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--minutes", type=float, default=6.0, help="of timing a sweep at a batch")
    parser.add_argument("--out", type=Path, default=Path("sweeps/combinations"))
    parser.add_argument("--json", type=Path, help="file to write the results to")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    folder, batches, minutes = options.out, options.batches, options.minutes
    sweeps = run_sweeps(folder, options.trials, batches, minutes, options.only)
    found = judge_fronts(sweeps, folder, options.judged, batches, minutes)
    print(table(found))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
