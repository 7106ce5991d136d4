"""What only a GPU can show, in parts of at most six minutes. The first four, which decide most,
take a quarter of an hour.

    python -m benchmarks.gpu                       # all parts, to benchmarks/results/gpu.json
    python -m benchmarks.gpu --part kernels graphs
    python -m benchmarks.gpu --table               # the table for docs/speed.md from that file
    python -m benchmarks.gpu --scale tiny          # at reduced size: minutes on a CPU

It needs torch, Triton, numpy, safetensors, transformers and PyYAML, no installation of this project
and no network. Every part runs in a process of its own. Its rows are written as they come; what
fails is a row with its error. A part whose time is spent stops. The same command goes on, with
parts that have not begun first, and does not repeat what the file has of this device, torch and
code.

kernels: Triton kernels against the code that defines them: outcomes, time, block sizes,
    compilation.
graphs: CUDA graphs against eager passes: tokens and time of every preset.
speed: decoding steps at LlamaGen-XL, 3B and Anole-7B shapes with random weights, batch 1, 8 and 32:
    time against the bandwidth's, share outside the models, attention kernels, memory.
timings: a sweep's timing session, twice: whether the costs agree.
memory: what graphs and engines keep over a trial of 200 images, and over 40 trials.
plan: memory and seconds that `doctor --plan` predicts, against those of whole images.
precision: images that differ between vanilla and speculative decoding at temperature 0 in 16-bit
    numbers.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.record import Record, Setup, runs_of
from benchmarks.gpu.run import supervise
from benchmarks.gpu.table import table

LIMITS_S = {
    "kernels": 90,
    "graphs": 90,
    "speed": 360,
    "timings": 180,
    "memory": 240,
    "plan": 120,
    "precision": 180,
}
RESULTS = Path(__file__).parents[1] / "results" / "gpu.json"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--part", nargs="+", choices=tuple(LIMITS_S), default=tuple(LIMITS_S), metavar="NAME"
    )
    parser.add_argument(
        "--out", type=Path, help="default: benchmarks/results/gpu.json; none for --scale tiny"
    )
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", help="default: the GPU if there is one")
    parser.add_argument(
        "--table", action="store_true", help="print the tables of the file, and measure nothing"
    )
    args = parser.parse_args()
    if args.table:
        print(table(_or_error(parser, args.out or RESULTS)))
        return
    setup = Setup(
        torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu")),
        args.scale == "tiny",
    )
    if not (setup.is_cuda or setup.is_tiny):
        parser.error("there is no GPU: give --scale tiny")
    if not setup.is_cuda:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    with tempfile.TemporaryDirectory() as scratch:
        path = args.out or (Path(scratch) / RESULTS.name if setup.is_tiny else RESULTS)
        if path.exists():
            _or_error(parser, path)
        record = Record(path, setup.machine())
        for name in sorted(args.part, key=record.has_begun):
            supervise(record, f"benchmarks.gpu.{name}", setup, LIMITS_S[name])
            part = record.part(name)
            state = "complete" if part["complete"] else "not complete: run it again to continue"
            print(
                f"{name}: {len(part['rows'])} rows, start-up {part['startup_s']:.1f} s, {state}",
                flush=True,
            )
        print(table(runs_of(path)[-1:]))


def _or_error(parser: argparse.ArgumentParser, path: Path) -> list[dict[str, Any]]:
    """The runs in a file; a usage error if there are none."""
    try:
        return runs_of(path)
    except (ValueError, OSError) as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
