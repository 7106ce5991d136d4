"""What fills the new positions of a Jacobi window: tokens per pass of the target, and paired speed,
on the built-in model. Each length is measured with every initialisation, and with EAGLE's drafts;
then the presets of EAGLE's trees.

    python -m benchmarks.windows                            # half an hour on one core
    python -m benchmarks.windows --lengths 15 --timed 0     # tokens per pass alone

Tokens per pass are means over images, with one standard error. Speed-ups are paired with vanilla at
batch 1 (see `benchmarks.methods`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from typing import Any, get_args, get_type_hints

import torch

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.methods import measure_speed
from search_spaces.drafters import Jacobi
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.metrics.estimate import Estimate, ratio_estimate

STARTS = get_args(get_type_hints(Jacobi)["initialisation"])
EAGLE_TREES = ("eagle1", "eagle2")


def settings(lengths: Sequence[int], redraw: str) -> Iterator[tuple[str, DecodingConfig]]:
    """The names and settings of the rows."""
    for length in lengths:
        chain = {"policy": "chain", "length": length}
        for start in STARTS:
            drafter = {"kind": "jacobi", "initialisation": start, "redraw": redraw}
            plain: dict[str, Any] = {"drafter": drafter, "tree": chain}
            yield f"window of {length}, {start}", DecodingConfig.from_mapping(plain)
        window = {"policy": "window", "length": length, "redraw": redraw}
        plain = {"drafter": "eagle", "tree": window}
        yield f"window of {length}, EAGLE", DecodingConfig.from_mapping(plain)
    yield from ((name, PRESETS[name]) for name in EAGLE_TREES)


def tokens_per_pass(models: Models, config: DecodingConfig, images: int) -> Estimate:
    """Its mean over images that are decoded together."""
    statistics = draw(
        engine_for(models, config, batch=images), held_out_requests(models, images)
    ).statistics
    emitted = torch.tensor([float(image.emitted.sum()) for image in statistics])
    passes = torch.tensor([float(image.passes) for image in statistics])
    return ratio_estimate(emitted, passes, torch.arange(images))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lengths", nargs="+", type=int, default=[4, 8, 15, 31])
    parser.add_argument("--redraw", default="coupled")
    parser.add_argument("--images", type=int, default=24)
    parser.add_argument("--timed", type=int, default=2, help="captions timed at batch 1")
    parser.add_argument("--repetitions", type=int, default=3)
    args = parser.parse_args()
    models = load_folder()
    for name, config in settings(args.lengths, args.redraw):
        found = tokens_per_pass(models, config, args.images)
        line = f"{name:28} {found.value:.2f} ± {found.error:.2f} tokens per pass"
        if args.timed:
            paired = measure_speed(models, config, 1, args.timed, args.repetitions)
            line += f", speed-up {paired.speedup:.2f} ({paired.low:.2f}-{paired.high:.2f})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
