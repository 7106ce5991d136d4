"""What a drafter for any target learns on: images that the target itself draws from captions, kept as tokens.

Drawing them is most of the cost of training, so they are kept in small files, each named by all that it depends on: a
run that goes on, or another run on the same captions, draws none of them again. The target's features are not kept
(100,000 images of LlamaGen-XL would take 100 GB, of a 7B model nearly 1 TB); a teacher-forced pass gives them again.

Shape legend: B images, R rows (prompts), N tokens of an image, P prompt positions, D width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.shards import digest
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.models.target import Target
from workers.models.weights import load_tensors, save
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup

CHUNK = 64  # images of a file


def record(
    target: Target,
    captions: Sequence[Caption],
    folder: Path,
    *,
    identity: str,
    seed: int = 0,
    batch: int = 32,
    group: ProcessGroup = SINGLE_PROCESS,
    tell: Callable[[str], None] = print,
) -> Tensor:
    """Tokens [B, N] (int32, CPU) of one image for each caption, drawn by the target's own sampling defaults.

    `identity` names the target's weights. Files that are in `folder` already are read, the others written; in a team,
    each process draws its share of them, and the folder is one that all of them see.

    Raises:
        ValueError: a caption that the target cannot read.
        WeightsError: a file in the folder is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chunks = [captions[start : start + CHUNK] for start in range(0, len(captions), CHUNK)]
    files = [folder / f"{_name(target, chunk, identity, seed)}.safetensors" for chunk in chunks]
    missing = [n for n, file in enumerate(files) if not file.exists()]
    began = time.monotonic()
    for done, number in enumerate(missing[group.rank :: group.size]):
        engine = Engine(target, DecodingConfig(), seed=seed, batch_size=batch)
        _draw(engine, chunks[number], files[number])
        left = (time.monotonic() - began) / (done + 1) * (len(missing[group.rank :: group.size]) - done - 1) / 60
        drawn = sum(file.exists() for file in files)
        tell(f"drew images: {drawn} of {len(files)} files of {CHUNK}, {left:.1f} min left")
    group.barrier()
    return torch.cat([load_tensors(file)["tokens"] for file in files])


def _name(target: Target, chunk: Sequence[Caption], identity: str, seed: int) -> str:
    facts = [identity, target.name, asdict(target.sampling), seed, [[c.id, c.text] for c in chunk]]
    return f"tokens-{digest(facts)}"


def _draw(engine: Engine, chunk: Sequence[Caption], file: Path) -> None:
    places = {caption.id: place for place, caption in enumerate(chunk)}
    tokens = torch.zeros(len(chunk), engine.image_len, dtype=torch.int32)
    for result in engine.run([Request(caption.id, caption.text) for caption in chunk]):
        tokens[places[result.request.caption_id]] = result.tokens.int()
    save(file, {"tokens": tokens}, {"captions": len(chunk)})


@torch.no_grad()
def attention_mask(valid: Tensor) -> Tensor:
    """The attention mask [R, 1, S, S] (True: seen) of positions [R, S] that exist or not: causal, padding hidden; a
    padded position sees itself, as when decoding.
    """
    order = torch.arange(valid.shape[1], device=valid.device)
    itself = torch.eye(valid.shape[1], dtype=torch.bool, device=valid.device)
    return ((order[:, None] >= order) & valid[:, None] | itself)[:, None]
