"""Full-size models without their files: time and memory of a decoding round on a GPU.

    python -m benchmarks.full_size                                # in bfloat16 on a GPU, to benchmarks/results
    python -m benchmarks.full_size --models anole-7b --batch 8
    python -m benchmarks.full_size --scale tiny                   # the same models, shrunk: seconds on a CPU

Targets have published shapes and EAGLE layers the usual size; their weights are random, so their distributions are flat
and similar. What a round accepts, and with it tokens/s, is meaningful for vanilla only; tokens/s divided by tokens per
round is the rate at which every draft is rejected. The result is the time of a round, which depends on shapes alone (an
adjacency tree's shape depends on what was accepted: see its nodes).

The minimum time of a round: each pass (one of the target, one of the EAGLE layer per level) reads its weights and its
cache once, at the bandwidth of a large copy in the same process. Prefill is not counted. Memory is predicted by
`workers.loading.dry_run.footprint`, without images and T5: none are made, and captions are random features.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import statistics
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import within_memory
from benchmarks.floor import copy_bandwidth, round_bytes
from benchmarks.random_models import NAMES, published_shape, randomise, with_usual_drafter
from search_spaces.drafters import Eagle
from search_spaces.presets import preset
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.dry_run import footprint
from workers.loading.models import Models
from workers.runtime.timing import synchronize

SETTINGS = {
    "vanilla": preset("vanilla"),
    "jacobi window": preset("sjd"),
    "chain": DecodingConfig(Eagle(), Chain(length=4)),
    "static": preset("eagle1"),
    "dynamic": preset("eagle2"),
    "adjacency": preset("adt"),
}
MODELS = ("llamagen-xl-stage1", "llamagen-3b-c2i", "anole-7b")
WARM = 4  # tokens drawn before anything is measured

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Round:
    """seconds: until the host knows what was accepted. bytes: the minimum that it reads. nodes: drafted per image."""

    seconds: float
    bytes: int
    nodes: float


@torch.inference_mode()
def draw(engine: Engine, models: Models, batch: int, tokens: int) -> tuple[list[Round], int]:
    """Rounds until each of `batch` images has `tokens` tokens after the prefill's, and the number of these tokens,
    without those that the last round emits beyond `tokens`.
    """
    state, _ = engine.open(deque(Request(number, "0") for number in range(batch)))
    rounds, emitted = [], [1] * batch
    while min(emitted) <= tokens and max(emitted) < engine.image_len:
        columns = state.streams * sum(state.prompt_len + count - 1 for count in emitted)
        synchronize(engine.device)
        begin = time.perf_counter()
        counts = engine.read(state, engine.step(state))
        seconds, emitted = time.perf_counter() - begin, counts.so_far
        state.sync_host_counts(emitted)
        rounds.append(Round(seconds, round_bytes(models, columns, max(counts.depth)), statistics.fmean(counts.nodes)))
    engine.keep(state)
    return rounds, sum(min(count - 1, tokens) for count in emitted)


def measure(models: Models, config: DecodingConfig, batch: int, tokens: int, bandwidth: float) -> Row:
    """The numbers of one setting."""
    engine = Engine(models.target, config, models.drafters.get(config.drafter.kind), batch_size=batch)
    cuda = engine.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats(engine.device)
    draw(engine, models, batch, min(WARM, tokens))
    rounds, drawn = draw(engine, models, batch, tokens)
    seconds = statistics.median(r.seconds for r in rounds)
    floor = statistics.median(r.bytes for r in rounds) / bandwidth
    phases = engine.timer.take()
    return {
        "tokens": drawn,
        "rounds": len(rounds),
        "tokens_per_second": drawn / sum(r.seconds for r in rounds),
        "tokens_per_round": drawn / batch / len(rounds),
        "seconds_per_round": seconds,
        "seconds_by_phase": {name: phases[name] / len(rounds) for name in phases if name != "prefill"},
        "floor_seconds": floor,
        "times_floor": seconds / floor,
        "nodes": statistics.fmean(r.nodes for r in rounds),
        "peak_bytes": torch.cuda.max_memory_allocated(engine.device) if cuda else None,
    }


def rows_of(name: str, device: torch.device, *, batch: int, tokens: int, bandwidth: float, tiny: bool) -> Iterator[Row]:
    """A model's rows, setting by setting, each with a drafter of its own."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    shapes = published_shape(name, dtype, tiny=tiny)
    target = within_memory(lambda: randomise(published_shape(name, dtype, tiny=tiny), device))

    def measured(config: DecodingConfig) -> Row | None:
        if target is None:
            return None
        models = with_usual_drafter(target, config)
        for drafter in models.drafters.values():
            randomise(drafter, device)
        return measure(models, config, batch, tokens, bandwidth)

    for setting, config in SETTINGS.items():
        needed = footprint(with_usual_drafter(shapes, config), config, batch, 1)
        found = within_memory(partial(measured, config)) or {"skipped": "out of memory"}
        predicted = needed.parameters + needed.cache + needed.activations
        yield {"model": name, "setting": setting, **found, "predicted_bytes": predicted}


HEAD = "model|setting|tokens/s|tokens a round|ms a round|floor, ms|times the floor|nodes|peak GiB|predicted GiB"


def line(row: Row) -> str:
    """One row of the table."""
    cells = [row.get("skipped", "-"), *["-"] * 6]
    if "skipped" not in row:
        seconds = [1e3 * row[key] for key in ("seconds_per_round", "floor_seconds")]
        numbers = [row["tokens_per_second"], row["tokens_per_round"], *seconds, row["times_floor"], row["nodes"]]
        cells = [*(f"{number:.4g}" for number in numbers), gib(row["peak_bytes"])]
    return "| " + " | ".join([row["model"], row["setting"], *cells, gib(row["predicted_bytes"])]) + " |"


def gib(number: int | None) -> str:
    """Bytes in GiB; None: unknown."""
    return "-" if number is None else f"{number / 2**30:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=NAMES, default=MODELS, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--batch", type=int, default=1, help="images at once")
    parser.add_argument("--tokens", type=int, default=64, help="tokens to draw of each image")
    parser.add_argument("--device", help="default: the GPU if there is one")
    parser.add_argument("--scale", choices=("full", "tiny"), default="full")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results/full_size.json; none for --scale tiny")
    args = parser.parse_args()
    device, tiny = torch.device(args.device or ("cuda" if torch.cuda.is_available() else "cpu")), args.scale == "tiny"
    if device.type == "cpu" and not (tiny or args.device):
        parser.error("there is no GPU: give --scale tiny, or --device cpu and much time")
    if min(args.batch, args.tokens) < 1:
        parser.error("--batch and --tokens must be at least 1")
    out = args.out or (None if tiny else Path(__file__).parent / "results" / "full_size.json")
    bandwidth, rows = copy_bandwidth(device), []
    machine = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "bandwidth": bandwidth,
        "torch": torch.__version__,
        "command": shlex.join(["python", "-m", "benchmarks.full_size", *sys.argv[1:]]),
        "batch": args.batch,
        "tokens": args.tokens,
    }
    print(f"{machine['device']}: a copy moves {bandwidth / 1e9:.0f} GB/s; batch {args.batch}")
    print(f"| {HEAD.replace('|', ' | ')} |\n|{'---|' * (HEAD.count('|') + 1)}")
    for name in args.models:
        for row in rows_of(name, device, batch=args.batch, tokens=args.tokens, bandwidth=bandwidth, tiny=tiny):
            rows.append(row)
            print(line(row), flush=True)
            if out is not None:  # row by row, so that an interrupted run leaves what it measured
                out.parent.mkdir(parents=True, exist_ok=True)
                out.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
