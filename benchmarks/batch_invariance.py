"""How many images depend on the size of their batch, in float32: settings whose drafts are a
drafter's top tokens.

    python -m benchmarks.batch_invariance --images 2000 --out batch_invariance.json

Images of another batch use the same random numbers, but matrix products and attention round
differently for other numbers of rows. A tree of top tokens has other nodes, or another order, where
two scores of the drafter agree to about seven digits. Vanilla and a chain of sampled drafts are
beside them: there, only a near-tie of a random number and a probability matters. One thread; the
built-in model.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.common import draw, engine_for, held_out_requests
from search_spaces.presets import PRESETS
from search_spaces.trees import Adjacency, Dynamic
from search_spaces.trial import DecodingConfig
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.runtime.process import use_threads

BATCHES = (1, 5, 16)
CHUNK = 80  # images of one setting at a time
SAMPLED = ("vanilla", "speculative", "eagle1")


def drafts_top_tokens(config: DecodingConfig) -> bool:
    """Whether the children in the setting's draft trees are the drafter's top tokens."""
    policy = config.policy
    return (
        isinstance(policy, Dynamic | Adjacency) or getattr(policy, "children", "sampled") == "top"
    )


def dependent_images(
    models: Models, config: DecodingConfig, requests: Sequence[Request]
) -> Iterator[list[int]]:
    """For each chunk of requests, the indices of those whose tokens are not the same at all batch
    sizes.
    """
    engines = [engine_for(models, config, batch=batch) for batch in BATCHES]
    for start in range(0, len(requests), CHUNK):
        first, *others = [
            draw(engine, requests[start : start + CHUNK]).tokens for engine in engines
        ]
        differs = torch.stack([(first != other).any(1) for other in others]).any(0)
        yield [start + int(index) for index in differs.nonzero()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    top = [name for name, config in PRESETS.items() if drafts_top_tokens(config)]
    parser.add_argument(
        "--only", nargs="+", choices=sorted(PRESETS), default=[*top, *SAMPLED], metavar="PRESET"
    )
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--out", type=Path, help="a JSON file of what was counted so far")
    args = parser.parse_args()
    use_threads(1)
    models = load_folder()
    requests = held_out_requests(models, args.images)
    rows: dict[str, dict[str, object]] = {}
    for name in args.only:
        found: list[int] = []
        for chunk, more in enumerate(dependent_images(models, PRESETS[name], requests), start=1):
            found += more
            rows[name] = {"images": min(chunk * CHUNK, len(requests)), "dependent": found}
            if args.out:
                args.out.write_text(
                    json.dumps({"cpu": torch.backends.cpu.get_cpu_capability(), "rows": rows})
                    + "\n"
                )
        print(f"{name}: {len(found)} of {len(requests)} images depend on the batch", flush=True)


if __name__ == "__main__":
    main()
