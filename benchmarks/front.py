"""The front on the built-in model: speed against drift and against distance to real scenes, as a
table and a picture.

    python -m benchmarks.front [--images 384]

The drafter is an EAGLE chain, which suits a CPU at batch 1. The acceptance rules are swept over
their parameters.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.methods import measure_speed, quality_row
from benchmarks.quality import Judge
from search_spaces.trial import DecodingConfig
from workers.loading.models_yaml import load_folder

Rows = dict[str, dict[str, Any]]


def setting(acceptance: dict[str, Any], length: int = 5) -> DecodingConfig:
    """An EAGLE chain under a rule."""
    return DecodingConfig.from_mapping(
        {
            "drafter": "eagle",
            "tree": {"policy": "chain", "length": length},
            "acceptance": acceptance,
        }
    )


def settings() -> dict[str, DecodingConfig]:
    """The swept settings by family and parameter."""
    chosen = {"exact": setting({"neighbourhood": "none"}, length=3)}
    for budget in (1.1, 1.5, 2.0):
        chosen[f"uniform {budget:g}"] = setting(
            {"schedule": "constant", "budget": budget}, length=4
        )
        chosen[f"cool {budget:g}"] = setting(
            {"schedule": "exponential", "budget": budget, "nu": 0.1}, length=4
        )
    for lam in (2.0, 5.0):
        chosen[f"lantern++ k50 λ{lam:g}"] = setting(
            {"neighbourhood": "multiplicative", "k": 50, "lambda": lam}, length=4
        )
    for delta in (0.05, 0.1, 0.2, 0.4):
        chosen[f"lantern k100 δ{delta:g}"] = setting(
            {"neighbourhood": "additive", "k": 100, "delta": delta}
        )
    chosen["everything accepted"] = setting({"schedule": "constant", "budget": 1e6})
    return chosen


def plot(rows: Rows, path: Path) -> None:
    """Two panels: speed-up against drift and against fid, with one standard error."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    pyplot.close("all")
    figure, axes = pyplot.subplots(1, 2, figsize=(11, 4.6), constrained_layout=True)
    families = list(dict.fromkeys(name.split()[0] for name in rows))
    for axis, key, label in zip(
        axes,
        ("drift", "fid"),
        ("drift: distance to vanilla's images", "fid: distance to real scenes"),
        strict=True,
    ):
        for index, family in enumerate(families):
            points = [
                row
                for name, row in rows.items()
                if name.split()[0] == family and key in row["quality"]
            ]
            if points:
                speed = [row["speedup"] for row in points]
                value, error = zip(*(row["quality"][key] for row in points), strict=True)
                low, high = zip(*(row["range"] for row in points), strict=True)
                around = [
                    [a - b for a, b in zip(speed, low, strict=True)],
                    [b - a for a, b in zip(speed, high, strict=True)],
                ]
                axis.errorbar(
                    speed, value, yerr=error, xerr=around,
                    fmt="o-", color=f"C{index}", label=family, linewidth=1, markersize=4, capsize=2,
                )  # fmt: skip
        axis.set_xlabel("speed-up over vanilla, batch 1, CPU")
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
    axes[1].legend(frameon=False)
    figure.savefig(path, dpi=110)


def line(name: str, row: dict[str, Any]) -> str:
    """One row of the table."""
    low, high = row["range"]
    cells = [name, f"{row['speedup']:.2f} ({low:.2f}-{high:.2f})", f"{row['accepted_length']:.2f}"]
    for key, digits in (("fid", 2), ("drift", 2), ("caption_accuracy", 3)):
        value, error = row["quality"][key]
        cells.append(f"{value:.{digits}f} ± {error:.{digits}f}")
    return "| " + " | ".join(cells) + " |"


def save(out: Path, images: int, rows: Rows) -> None:
    """Write the rows measured so far and their plot, so that an interrupted run keeps them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"images": images, "rows": rows}, indent=1))
    plot(rows, out.with_suffix(".png"))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=384)
    parser.add_argument("--timed", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "front.json"
    )
    args = parser.parse_args()
    models = load_folder()
    requests = held_out_requests(models, args.images)
    judge = Judge(models.target, requests)
    rows: Rows = {}
    quality = judge(draw(engine_for(models, DecodingConfig(), batch=64), requests).tokens)
    rows["vanilla"] = {
        "speedup": 1.0,
        "range": [1.0, 1.0],
        "accepted_length": 1.0,
        "quality": quality_row(quality),
    }
    print(
        "| setting | speed-up | accepted length | fid | drift | caption accuracy "
        "|\n|---|---|---|---|---|---|"
    )
    for name, config in settings().items():
        paired = measure_speed(models, config, 1, args.timed, args.repetitions)
        drawn = draw(engine_for(models, config, batch=64), requests)
        rows[name] = {
            "config": config.flat(),
            "speedup": paired.speedup,
            "range": [paired.low, paired.high],
            # of all captions, not of the few that are timed
            "accepted_length": drawn.mean_accepted_length,
            "quality": quality_row(judge(drawn.tokens)),
        }
        print(line(name, rows[name]), flush=True)
        save(args.out, args.images, rows)


if __name__ == "__main__":
    main()
