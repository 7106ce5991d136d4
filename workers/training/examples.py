"""What AR models and drafters train on: captions and the tokens of one image for each.

A drafter for an existing target trains on images that the target itself generates. That is most of
the cost, so they are kept in small files, each named by everything that it depends on: a resumed
run, or another run on the same captions, generates none of them again. The target's features are
not kept (100,000 images of LlamaGen-XL would take 100 GB, of a 7B model nearly 1 TB); a
teacher-forced pass computes them again.

Shape legend: B images, N tokens of an image.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.trial import DecodingConfig, Sampling
from workers.data.captions import Caption
from workers.data.shards import digest
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.models.checkpoint_files import load_tensors
from workers.models.own_files import save
from workers.models.target import Target
from workers.training.loop import ProcessGroup

_IMAGES_PER_FILE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """Captions, and the tokens of an image for each."""

    captions: Sequence[str]
    tokens: Tensor  # [n, N] in raster order, of any integer type

    def __len__(self) -> int:
        return len(self.captions)

    def pick(self, indices: Tensor, device: torch.device) -> tuple[list[str], Tensor]:
        """Captions and tokens [B, N] (int64) of the examples `indices`."""
        return [self.captions[i] for i in indices.tolist()], self.tokens[indices].long().to(device)

    def batches(self, size: int, device: torch.device) -> Iterator[tuple[list[str], Tensor]]:
        """Captions and tokens of all examples in order; the last batch may be smaller."""
        for start in range(0, len(self), size):
            yield self.pick(torch.arange(start, min(start + size, len(self))), device)

    def split(self, held_out: int) -> tuple[Examples, Examples]:
        """All but the last `held_out` examples, and the last ones."""
        captions = self.captions
        tokens = self.tokens
        return (
            Examples(captions[:-held_out], tokens[:-held_out]),
            Examples(captions[-held_out:], tokens[-held_out:]),
        )


def sample_images(
    target: Target,
    captions: Sequence[Caption],
    folder: Path,
    *,
    identity: str,
    seed: int = 0,
    batch: int = 32,
    sampling: Sampling | None = None,
    log: Callable[[str], None] = print,
) -> Tensor:
    """Tokens [B, N] (int32, CPU) of one image for each caption.

    Files that exist are read, the others are generated and written. In a process group, each
    process generates its share of them.

    Args:
        target: the target.
        captions: the captions.
        folder: folder of the files; all processes of a group see it.
        identity: identifies the target's weights.
        seed: seed of the images.
        batch: images generated at once.
        sampling: of the images; None: the target's own defaults.
        log: gets a line after each file.

    Raises:
        ValueError: a caption that the target cannot read.
        WeightsError: a file in the folder is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    group = ProcessGroup.current()
    chunks = [
        captions[start : start + _IMAGES_PER_FILE]
        for start in range(0, len(captions), _IMAGES_PER_FILE)
    ]
    config = DecodingConfig(sampling=sampling or target.sampling)
    facts = [identity, target.name, (sampling or target.sampling).to_mapping(), seed]
    names = [digest([*facts, [[c.id, c.text] for c in chunk]]) for chunk in chunks]
    files = [folder / f"tokens-{name}.safetensors" for name in names]
    missing = [n for n, file in enumerate(files) if not file.exists()][group.rank :: group.size]
    started = time.monotonic()
    for done, number in enumerate(missing, start=1):
        engine = Engine(target, config, seed=seed, batch_size=batch)
        _generate(engine, chunks[number], files[number])
        left = (time.monotonic() - started) / done * (len(missing) - done) / 60
        complete = sum(file.exists() for file in files)
        log(
            f"generated images: {complete} of {len(files)} files of {_IMAGES_PER_FILE}, {left:.1f} "
            "min left"
        )
    group.barrier()
    return torch.cat([load_tensors(file)["tokens"] for file in files])


def _generate(engine: Engine, chunk: Sequence[Caption], file: Path) -> None:
    rows = {caption.id: row for row, caption in enumerate(chunk)}
    tokens = torch.zeros(len(chunk), engine.image_len, dtype=torch.int32)
    for result in engine.run([Request(caption.id, caption.text) for caption in chunk]):
        tokens[rows[result.request.caption_id]] = result.tokens.int()
    save(file, {"tokens": tokens}, {"captions": len(chunk)})
