"""Damaged files, hostile inputs and surroundings, at random: nothing may be silent or end in a
traceback, no command may take longer than 20 s, and no launch that cannot work longer than 15 s.

    python -m benchmarks.fuzz --seed 0 [--files 2000] [--inputs 300] [--surroundings 570]
        [--out FILE.json]

Files: a sweep of a tiny model is run, with MLflow and all its tables, and a fourth trial is left
half done. A bit of a copy's file is flipped, or the file is cut, at random; then the commands that
read this kind of file run, and their output is compared with the undamaged store's: exit code, and
what they print, write and log, without times. Verdicts: refused (the file is named, exit code 1 or
2), rebuilt (it is named, and the command goes on), harmless (nothing is said, and the data are
equal), silent (nothing is said, and the data differ), unnamed, traceback.

Inputs: options, arguments and files of every command. Verdicts: refused (exit code 1 or 2, an
error, no file or folder left), accepted (exit code 0: not every change is wrong), and what must not
be.

Surroundings: see `benchmarks.fuzz_surroundings`.

Everything runs in one process, through the command line's own entry point; some inputs run in a
process of their own too. The store that was copied, and everything else below the folder, must be
unchanged at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from benchmarks.fuzz_files import Tally, fuzz_files, make_pristine
from benchmarks.fuzz_inputs import fuzz_inputs
from benchmarks.fuzz_readers import MAX_SECONDS, digests
from benchmarks.fuzz_surroundings import MAX_LAUNCH_SECONDS, fuzz_surroundings


def table(title: str, tallies: Mapping[str, Tally]) -> list[str]:
    lines = [title]
    for name, tally in tallies.items():
        verdicts = ", ".join(
            f"{verdict} {count}" for verdict, count in sorted(tally.verdicts.items())
        )
        lines.append(f"  {name:<20} {tally.cases:>5}   {verdicts}; slowest {tally.slowest_s:.1f} s")
    return lines


def as_data(tallies: Mapping[str, Tally]) -> dict[str, dict[str, float]]:
    return {
        name: {"cases": tally.cases, **tally.verdicts, "slowest_s": round(tally.slowest_s, 1)}
        for name, tally in tallies.items()
    }


def bad(tallies: Mapping[str, Tally]) -> list[str]:
    """Examples of what must not be."""
    return [f"{name}: {text}" for name, tally in tallies.items() for text in tally.examples]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--files", type=int, default=2000, help="damaged files")
    parser.add_argument("--inputs", type=int, default=300, help="hostile inputs")
    parser.add_argument("--surroundings", type=int, default=570, help="hostile surroundings")
    parser.add_argument(
        "--processes", type=int, default=12, help="of the inputs, to run in a process of their own"
    )
    parser.add_argument("--out", type=Path, help="JSON file of the results")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        pristine = make_pristine(Path(folder) / "a")
        outside = Path(folder) / "outside"
        outside.mkdir()
        (outside / "file").write_text("not to be touched")
        watched = [outside, *(pristine.folder / name for name in ("sweeps", "weights"))]
        before = [digests(path) for path in watched]
        files = fuzz_files(pristine, args.files, args.seed)
        inputs = fuzz_inputs(pristine, args.inputs, args.seed, args.processes)
        surroundings = fuzz_surroundings(pristine, args.surroundings, args.seed)
        is_unchanged = [digests(path) for path in watched] == before
    parts = {"damaged files": files, "hostile inputs": inputs, "hostile surroundings": surroundings}
    print("\n".join(line for title, tallies in parts.items() for line in table(title, tallies)))
    print(f"everything outside the copies is {'unchanged' if is_unchanged else 'CHANGED'}")
    problems = [text for tallies in parts.values() for text in bad(tallies)]
    print("\n".join(problems))
    if args.out:
        facts = {"seed": args.seed, "max_s": MAX_SECONDS, "max_launch_s": MAX_LAUNCH_SECONDS}
        facts |= {title.rpartition(" ")[2]: as_data(tallies) for title, tallies in parts.items()}
        args.out.write_text(json.dumps(facts, indent=2) + "\n")
    if problems or not is_unchanged:
        sys.exit(1)


if __name__ == "__main__":
    main()
