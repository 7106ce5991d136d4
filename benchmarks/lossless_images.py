"""Images that a sweep need not draw of lossless settings, at equal quality of its front.

    python -m benchmarks.lossless_images [quickstart joint] [--trials 40] [--judged 384]
        [--set captions.count=192] [--copy] [--out sweeps/lossless_images]

Each space is swept twice: before, every lossless setting draws all images (`quality.lossless:
measure`), and after, only those that its speed and a check of its tokens need (`check`). The budget
is the same number of trials. A third sweep draws all images of the settings on either front, of
other captions: the truth by which both fronts are judged. Prints the images that the sweeps drew,
those of lossless settings among them, and the hypervolume of each front by the third sweep's
values, up to one reference point. The error of their ratio is over draws from all errors together.
Sweeps that are there are resumed.

Settings that both sweeps have draw the same images. With `--copy` the second copies those of the
first. That is for budgets of no more than the space's own named settings: a search would be told
the first sweep's results.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import yaml

from benchmarks.judged import judged_hypervolumes, judging_sweep, launch, members
from orchestrator.store.records import read_trials
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError

WAYS = {"before": "measure", "after": "check"}


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


def compare(
    space: str,
    folder: Path,
    trials: int | None,
    judged: int,
    assignments: Sequence[str],
    *,
    copy: bool = False,
) -> None:
    """Sweep a space both ways, judge the fronts, and print a row for each. copy: the second way
    copies the images of the first.
    """
    options = [part for entry in assignments for part in ("--set", entry)]
    if trials is not None:
        options += ["--trials", str(trials)]
    sweeps: dict[str, Sweep] = {}
    for way, choice in WAYS.items():
        setting = f"quality.lossless={choice}"
        copied = ("--from", str(folder / f"{space}-before")) if copy and sweeps else ()
        sweeps[way] = launch(space, folder, f"{space}-{way}", *options, "--set", setting, *copied)
    fronts = [members(sweep) for sweep in sweeps.values()]
    changes = {}
    for entry in assignments:
        key, _, value = entry.partition("=")
        changes[key] = yaml.safe_load(value)
    path = folder / f"{space}-judge.yaml"
    both = [config for front in fronts for config in front]
    path.write_text(judging_sweep(space, both, judged, changes))
    volumes = judged_hypervolumes(launch(str(path), folder, f"{space}-judge"), fronts)
    print(
        f"\n{space}: {'trials':>6} {'images':>7} {'of lossless settings':>21} {'hypervolume':>12}"
    )
    for (way, sweep), volume in zip(sweeps.items(), volumes, strict=True):
        total, lossless = images_drawn(sweep)
        print(
            f"{way:>{len(space) + 1}} {len(sweep.records):6} {total:7} {lossless:21} "
            f"{volume.value:12.4g}"
        )
    last = volumes[-1]
    print(f"hypervolume after over before: {last.ratio:.3f} ± {last.error:.3f}", flush=True)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("spaces", nargs="*", default=["quickstart", "joint"])
    parser.add_argument("--trials", type=int, help="of spaces other than quickstart; default 40")
    parser.add_argument("--judged", type=int, default=384, help="captions of the third sweep")
    parser.add_argument("--set", dest="assignments", action="append", default=[])
    parser.add_argument(
        "--copy", action="store_true", help="the second sweep copies images of the first"
    )
    parser.add_argument("--out", type=Path, default=Path("sweeps/lossless_images"))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for space in options.spaces:
        trials = None if space == "quickstart" else options.trials or 40
        try:
            compare(
                space,
                options.out,
                trials,
                options.judged,
                options.assignments,
                copy=options.copy,
            )
        except ConfigError as error:
            parser.error(str(error))


if __name__ == "__main__":
    main()
