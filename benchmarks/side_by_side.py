"""This checkout's engine compared with another's: presets on the built-in model, drawn by both in
turn.

    git worktree add ../before 40e73d0
    python -m benchmarks.side_by_side ../before [--only lantern eagle2] [--batches 1 8 32]
        [--pairs 5] [--bfloat16]

Each engine has a process of its own, with one thread. Both draw the same captions with the same
seed, and begin in turn. Per preset and batch: the median ratio of CPU seconds, the other's over
this one's (above 1: this one is quicker), its range, and whether the tokens are equal. CPU seconds
suffer less from other work than wall clock. The built-in weights are numbers of float16; with
--bfloat16 they get a little noise and are rounded to bfloat16, as those of many checkpoints are.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:  # each process imports its own checkout's
    from workers.decoding.drafter import Drafter
    from workers.models.target import Target

HERE = Path(__file__).resolve()
WORDS = [
    f"a {size} {colour} {shape}"
    for size in ("small", "large")
    for colour in ("red", "blue", "green", "yellow")
    for shape in ("circle", "square", "ring", "triangle")
]


class Checkout:
    """A process that draws with the engine of a checkout."""

    def __init__(
        self, folder: Path, codes: int | None, sampling: dict[str, float], bfloat16: bool
    ) -> None:
        self.folder = folder
        environment = os.environ | {
            "PYTHONPATH": str(folder),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = [sys.executable, str(HERE), "--draw", json.dumps([codes, sampling, bfloat16])]
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def draw(self, preset: str, batch: int, images: int) -> tuple[float, list[int]]:
        """CPU seconds, and the tokens of all images."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([preset, batch, images]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the engine of {self.folder} ended with {self._process.wait()}")
        seconds, tokens = json.loads(line)
        return seconds, tokens

    def close(self) -> None:
        self._process.communicate()


def serve(codes: int | None, sampling: dict[str, Any], bfloat16: bool) -> None:
    """Draw what each line of standard input asks for. Some names differ between checkouts."""
    import torch

    from search_spaces.presets import PRESETS
    from search_spaces.trial import Sampling
    from workers.decoding import state
    from workers.decoding.engine import Engine

    torch.set_num_threads(1)
    target, drafters = loaded()
    if codes is not None:
        drafters = {"eagle": enlarge(target, drafters["eagle"], codes)}
    if bfloat16:
        round_to_bfloat16([target, *drafters.values()])
    request = getattr(state, "Request", None) or state.Job  # type: ignore[attr-defined]
    engines: dict[str, Engine] = {}
    for line in sys.stdin:
        preset, batch, images = json.loads(line)
        if preset not in engines:
            config = replace(PRESETS[preset], sampling=Sampling(**sampling) if sampling else None)
            engines[preset] = Engine(target, config, drafters.get(config.drafter.kind), seed=1)
        engines[preset].batch_size = batch
        begin = time.process_time()
        results = list(
            engines[preset].run([request(n, WORDS[n % len(WORDS)]) for n in range(images)])
        )
        seconds = time.process_time() - begin
        drawn = sorted(
            ((getattr(r, "request", None) or cast(Any, r).job).caption_id, r.tokens.tolist())
            for r in results
        )
        print(json.dumps([seconds, drawn]), flush=True)


def loaded() -> tuple[Target, dict[str, Any]]:
    """The built-in target and its drafters."""
    try:
        from workers.loading.models_yaml import load_folder as load
    except ModuleNotFoundError:
        from workers.models.families.scenes import load_scenes as load  # type: ignore[attr-defined, no-redef]
    models = load()
    return models.target, dict(models.drafters)


def enlarge(target: Target, eagle: Drafter, codes: int) -> Drafter:
    """Give a target so many codes, as `random_models.with_codes` does; returns an EAGLE drafter for
    it.
    """
    import torch

    generator, config = torch.Generator().manual_seed(0), target.transformer.config
    modules: list[Any] = [target.embed, target.head, cast(Any, target.codec).quantize.embedding]
    for module in modules:
        weight = module.weight.repeat(codes // len(module.weight), 1)
        noise = torch.randn(weight.shape, generator=generator)
        module.weight = torch.nn.Parameter(
            weight + 1e-3 * weight.std() * noise, requires_grad=False
        )
    target.transformer.config = replace(config, vocab_size=codes)
    drafter: Drafter = cast(Any, type(eagle))(target, eagle.layer, filler=eagle.filler)
    return drafter


def round_to_bfloat16(models: list[Any]) -> None:
    """Give the matrices of a target and of its drafters a little noise, and round them."""
    import torch
    from torch import nn

    modules = [part for model in models for part in (model, *vars(model).values())]
    weights = {
        id(weight): weight.data
        for module in modules
        if isinstance(module, nn.Module)
        for weight in module.parameters()
        if weight.dim() == 2
    }
    generator = torch.Generator().manual_seed(1)
    for weight in weights.values():
        noise = torch.randn(weight.shape, generator=generator)
        weight.copy_((weight + 1e-3 * weight.std() * noise).bfloat16())


def compare(
    old: Checkout, new: Checkout, preset: str, batch: int, images: int, pairs: int
) -> tuple[list[float], bool]:
    """Ratios of CPU seconds, the other checkout's over this one's, and whether all tokens are
    equal.
    """
    ratios, equal = [], old.draw(preset, batch, batch)[1] == new.draw(preset, batch, batch)[1]
    for pair in range(pairs):
        first, second = (old, new) if pair % 2 else (new, old)
        drawn = {engine: engine.draw(preset, batch, images) for engine in (first, second)}
        ratios.append(drawn[old][0] / drawn[new][0])
        equal &= drawn[old][1] == drawn[new][1]
    return ratios, equal


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("other", type=Path, help="folder of another checkout")
    parser.add_argument(
        "--only", nargs="+", help="presets; default all that the built-in drafters serve"
    )
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 8, 32])
    parser.add_argument(
        "--codes", type=int, help="a multiple of 1024; presets with EAGLE or without a drafter only"
    )
    parser.add_argument(
        "--sampling", type=json.loads, default={}, help="as JSON; default: the model's own"
    )
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--bfloat16", action="store_true", help="weights of bfloat16")
    options = parser.parse_args()
    from search_spaces.presets import CATALOGUE

    served = {name: preset.config.drafter.kind for name, preset in CATALOGUE.items()}
    if options.codes is not None:
        served = {
            name: kind for name, kind in served.items() if kind in ("eagle", "none", "jacobi")
        }
    old, new = (
        Checkout(folder, options.codes, options.sampling, options.bfloat16)
        for folder in (options.other, HERE.parents[1])
    )
    print("| preset | batch | ratio of CPU seconds | range | equal tokens |\n|---|---|---|---|---|")
    for preset in options.only or served:
        for batch in options.batches:
            ratios, equal = compare(old, new, preset, batch, max(2, batch), options.pairs)
            figures = f"{statistics.median(ratios):.2f} | {min(ratios):.2f}-{max(ratios):.2f}"
            print(f"| {preset} | {batch} | {figures} | {'yes' if equal else 'no'} |", flush=True)
    for engine in (old, new):
        engine.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--draw"]:
        serve(*json.loads(sys.argv[2]))
    else:
        main()
