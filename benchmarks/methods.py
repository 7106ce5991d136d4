r"""Every published method on the built-in model, or on one of your own: speed at batch 1 and 8,
passes, accepted length, time by phase, and quality.

    python -m benchmarks.methods                       # all rows (an hour or more on 2 cores)
    python -m benchmarks.methods --timed 2 --repetitions 3 --images 96  # for the docs
    python -m benchmarks.methods --images 0 --merge    # the timings alone, added to earlier results
    python -m benchmarks.methods --only eagle1 lantern --images 256
    python -m recipes eagle eagle3 --recipe-of eagle3 --out runs/equal  # drafters of equal training
    python -m benchmarks.methods --only eagle3_chain eagle1 eagle3 --drafters eagle eagle3 \
        --weights runs/equal --batches 1 8 --images 0 --out runs/equal/methods.json  # equal trees
    python -m benchmarks.methods --models runs/photos --data held_out --images 96 \
        --out runs/photos/methods.json  # another target, on captioned images that are held out
    python -m benchmarks.methods_compared benchmarks/results/methods.json runs/photos/methods.json

Speed is paired: vanilla and the method in turn on the same captions in one process, by the clock of
timing sessions (on a CPU, that of the thread); the speed-up is the median of the repetitions'
ratios, with their range. Quality is measured on more captions, at batch 64; fid and drift are in
the feature space of the built-in scenes' network on any target. Presets whose drafter the target
lacks are left out, by name. Results go to stdout as a table and to
benchmarks/results/methods.json.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.common import (
    Paired,
    chosen,
    draw,
    engine_for,
    folder_requests,
    held_out_requests,
    paired_speedup,
)
from benchmarks.quality import Judge, Quality, real_scenes
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig
from workers.decoding.build import load_drafter
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.loading.models_yaml import BUILTIN_NAME, find_entry, load_entry

PHASES = ("target", "drafter", "acceptance", "commit")
Keep = Callable[[str, dict[str, Any]], None]


def with_drafters(models: Models, folder: Path) -> Models:
    """The models with the drafters that are in a folder."""
    found = {kind: folder / f"{kind}.safetensors" for kind in models.drafters}
    loaded = {
        kind: load_drafter(models.target, kind, path)
        for kind, path in found.items()
        if path.exists()
    }
    for kind, drafter in loaded.items():
        print(f"{kind}: {sum(p.numel() for p in drafter.parameters())} parameters")
    return replace(models, drafters={**models.drafters, **loaded})


def cross(presets: dict[str, DecodingConfig], drafters: Sequence[str]) -> dict[str, DecodingConfig]:
    """Each preset with each drafter."""
    return {
        f"{name}, {kind}": DecodingConfig.from_mapping({**config.to_mapping(), "drafter": kind})
        for name, config in presets.items()
        for kind in drafters
    }


def measure_speed(
    models: Models,
    config: DecodingConfig,
    batch: int,
    images: int,
    repetitions: int,
    data: Path | None = None,
) -> Paired:
    """Vanilla and the method in turn on `images` captions."""
    vanilla = engine_for(models, DecodingConfig(), batch=batch)
    method = engine_for(models, config, batch=batch)
    return paired_speedup(vanilla, method, requests_for(models, data, images), repetitions)


def requests_for(models: Models, data: Path | None, count: int) -> list[Request]:
    """Requests for captions of a folder, or of held-out scenes."""
    if data is None:
        return held_out_requests(models, count)
    return folder_requests(data, count)


def split_by_drafter(
    models: Models, presets: dict[str, DecodingConfig]
) -> tuple[dict[str, DecodingConfig], dict[str, str]]:
    """The presets that the models can decode with, and for each of the others the drafter that is
    missing.
    """
    missing = {
        name: config.drafter.kind
        for name, config in presets.items()
        if config.drafter.has_weights and config.drafter.kind not in models.drafters
    }
    return {name: presets[name] for name in presets if name not in missing}, missing


def speed_row(paired: Paired) -> dict[str, Any]:
    """The numbers of one method at one batch size."""
    drawn = paired.drawn
    return {
        "speedup": paired.speedup,
        "speedup_range": [paired.low, paired.high],
        "latency": paired.latency,
        "vanilla_latency": paired.vanilla,
        "passes": drawn.passes,
        "mean_accepted_length": drawn.mean_accepted_length,
        "step_compression": drawn.step_compression,
        "mean_tree_depth": drawn.mean_tree_depth,
        "seconds": {phase: drawn.share(phase) for phase in ("prefill", *PHASES)},
    }


def quality_row(quality: Quality) -> dict[str, Any]:
    """Values and standard errors."""
    named = {
        "fid": quality.fid,
        "drift": quality.drift,
        "fid_minus_vanilla": quality.gain,
        **quality.scores,
    }
    return {name: [e.value, e.error] for name, e in named.items() if e is not None}


def table(rows: dict[str, dict[str, Any]]) -> str:
    """The rows as Markdown: speed-ups at the batch sizes that were measured, the rest at the first
    of them.
    """
    batches = list(
        dict.fromkeys(
            int(key[6:]) for row in rows.values() for key in row if key.startswith("batch_")
        )
    )
    head = [
        "method",
        *(f"speed-up, batch {batch}" for batch in batches),
        *MEASURED,
        "ms per image: target / drafter / ",
    ]
    head[-1] += "accept / commit"
    lines = ["| " + " | ".join([*head, *(title for _, title, _ in QUALITY)]) + " |"]
    lines.append("|" + "---|" * (len(head) + len(QUALITY)))
    for name, row in rows.items():
        speeds = [row.get(f"batch_{batch}") for batch in batches]
        cells = [f"`{name}`" if name in PRESETS else name, *map(_speed, speeds)]
        if one := next(filter(None, speeds), None):
            cells += [f"{one[key]:{style}}" for key, style in MEASURED.values()]
            cells.append(" / ".join(f"{1e3 * one['seconds'][phase]:.0f}" for phase in PHASES))
        else:
            cells += ["–"] * (len(MEASURED) + 1)
        cells += [_estimate(row.get("quality", {}).get(key), digits) for key, _, digits in QUALITY]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


MEASURED = {
    "passes": ("passes", ".1f"),
    "accepted length": ("mean_accepted_length", ".2f"),
    "s/image": ("latency", ".3f"),
}
QUALITY = (
    ("fid", "fid", 2),
    ("fid_minus_vanilla", "fid minus vanilla's, paired", 2),
    ("drift", "drift", 2),
    ("caption_accuracy", "caption accuracy", 3),
)


def _speed(row: dict[str, Any] | None) -> str:
    if row is None:
        return "–"
    low, high = row["speedup_range"]
    return f"{row['speedup']:.2f} ({low:.2f}-{high:.2f})"


def _estimate(pair: list[float] | None, digits: int) -> str:
    return "–" if pair is None else f"{pair[0]:.{digits}f} ± {pair[1]:.{digits}f}"


def measure_quality(
    models: Models,
    presets: dict[str, DecodingConfig],
    images: int,
    keep: Keep,
    data: Path | None = None,
) -> None:
    """Quality of every method on the same held-out captions, and of real scenes with those
    captions. The images of a folder are the reference themselves.
    """
    requests = requests_for(models, data, images)
    judge = Judge(models.target, requests, data)
    vanilla = judge(draw(engine_for(models, DecodingConfig(), batch=64), requests).tokens)
    for name, config in presets.items():
        plain = config == DecodingConfig()
        quality = (
            vanilla if plain else judge(draw(engine_for(models, config, batch=64), requests).tokens)
        )
        keep(name, {"quality": quality_row(quality)})
    if data is None:
        keep("real scenes", {"quality": quality_row(judge.judge(real_scenes(1, images)))})


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", help="presets; default all")
    parser.add_argument(
        "--models", default=BUILTIN_NAME, help="a folder of weights, or FILE#ENTRY of a models.yaml"
    )
    parser.add_argument(
        "--data",
        type=Path,
        help="folder of captioned images that training has not seen: the captions, and the real "
        "images of fid; default: scenes, for the built-in model",
    )
    parser.add_argument("--drafters", nargs="+", help="draft the presets' trees with each of these")
    parser.add_argument(
        "--weights", type=Path, help="folder of drafters that replace the built-in ones"
    )
    parser.add_argument(
        "--images", type=int, default=384, help="captions for quality; 0 measures speed alone"
    )
    parser.add_argument(
        "--timed", type=int, default=3, help="captions timed at batch 1 in each repetition"
    )
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "methods.json"
    )
    parser.add_argument(
        "--merge", action="store_true", help="keep FILE's other methods and measurements"
    )
    args = parser.parse_args()
    if args.data is None and args.models != BUILTIN_NAME:
        parser.error(f"--models {args.models} needs --data: captions and real images of its kind")
    models = load_entry(find_entry(args.models), torch.device("cpu"))
    presets = chosen(args.only)
    if args.weights:
        models = with_drafters(models, args.weights)
    if args.drafters:
        presets = cross(presets, args.drafters)
    presets, missing = split_by_drafter(models, presets)
    merge = args.merge and args.out.exists()
    rows: dict[str, dict[str, Any]] = json.loads(args.out.read_text())["rows"] if merge else {}
    machine = {
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def keep(name: str, measured: dict[str, Any]) -> None:
        """Write at once, so that an interrupted run keeps what it has measured."""
        rows.setdefault(name, {}).update(measured)
        facts = {"machine": machine, "sampling": str(models.target.sampling)}
        found = {"models": args.models, **facts, "rows": rows}
        args.out.write_text(json.dumps(found, indent=1))
        print(name, measured, flush=True)

    for name, config in presets.items():
        keep(name, {"config": config.flat()})
        for batch in args.batches:
            images, repetitions = (args.timed, args.repetitions) if batch == 1 else (batch, 2)
            paired = measure_speed(models, config, batch, images, repetitions, args.data)
            keep(name, {f"batch_{batch}": speed_row(paired)})
    if args.images:
        measure_quality(models, presets, args.images, keep, args.data)
    print(table({name: rows[name] for name in (*PRESETS, *presets, "real scenes") if name in rows}))
    for name, kind in missing.items():
        print(f"left out: {name}, {args.models} has no {kind} drafter")


if __name__ == "__main__":
    main()
