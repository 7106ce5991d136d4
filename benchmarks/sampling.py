"""Vanilla over the sampling parameters: which are best for the built-in target?

    python -m benchmarks.sampling [--images 384]

Relaxation can look free, or even like a gain, when the target itself is sampled with poor settings.
The built-in model's defaults are chosen from this table: the lowest fid among the settings whose
caption accuracy is within error of the best.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from benchmarks.common import draw, engine_for, held_out_requests
from benchmarks.quality import Judge
from search_spaces.trial import DecodingConfig, Sampling
from workers.loading.models_yaml import load_folder

GRID = [
    Sampling(cfg=cfg, temperature=temperature, top_k=top_k)
    for cfg, temperature, top_k in [
        (1.0, 1.0, 0), (1.5, 1.0, 0), (2.0, 1.0, 0), (3.0, 1.0, 0), (1.5, 0.9, 0),
        (4.5, 1.0, 0), (2.0, 0.9, 0), (3.0, 0.9, 0), (2.0, 0.8, 0), (3.0, 0.8, 0),
        (2.0, 1.0, 100), (3.0, 1.0, 100), (2.0, 1.0, 300),
    ]
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, default=384)
    parser.add_argument(
        "--settings", type=int, default=len(GRID), help="the first N settings of the list"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results" / "sampling.json"
    )
    args = parser.parse_args()
    models = load_folder()
    jobs = held_out_requests(models, args.images)
    judge = Judge(models.target, jobs)
    print(
        "| cfg | temperature | top-k | fid | caption accuracy | CLIP |\n|---|---|---|---|---|---|"
    )
    rows = []
    for sampling in GRID[: args.settings]:
        quality = judge(
            draw(engine_for(models, DecodingConfig(), batch=64, sampling=sampling), jobs).tokens
        )
        accuracy = quality.scores["caption_accuracy"]
        clip = quality.scores["clip_score"]
        rows.append(
            {
                "cfg": sampling.cfg,
                "temperature": sampling.temperature,
                "top_k": sampling.top_k,
                "fid": [quality.fid.value, quality.fid.error],
                "caption_accuracy": [accuracy.value, accuracy.error],
                "clip_score": [clip.value, clip.error],
            }
        )
        print(
            f"| {sampling.cfg:g} | {sampling.temperature:g} | {sampling.top_k or 'all'} "
            f"| {quality.fid.value:.2f} ± {quality.fid.error:.2f} "
            f"| {accuracy.value:.3f} ± {accuracy.error:.3f} "
            f"| {clip.value:.3f} ± {clip.error:.3f} |",
            flush=True,
        )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps({"images": args.images, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
