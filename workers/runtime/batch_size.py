"""The batch size of `quality.batch: auto`: the largest power of two that fits the memory, up to a
bound.

The bound on a CPU is measured (docs/speed.md). That on a GPU is not: it is large enough for the
target's matrix products to take longer than reading its weights.
"""

from __future__ import annotations

from search_spaces.trial import DecodingConfig
from workers.loading.dry_run import footprint
from workers.loading.models import Models

MAX_ON_CPU = 32
MAX_ON_GPU = 128
IMAGES_PER_DECODE = 64  # images decoded from tokens together; fewer where memory runs out


def automatic_batch(shapes: Models, config: DecodingConfig, memory: int | None) -> int:
    """The batch size of a config; 1 if none fits.

    Args:
        shapes: models with the config's drafter; on the meta device if there is a `memory`.
        config: the config.
        memory: bytes of a GPU that models and decoding may take; None: a CPU.

    Raises:
        ValueError: the models do not support the config.
    """
    if memory is None:
        return MAX_ON_CPU
    batch = MAX_ON_GPU
    while batch > 1 and footprint(shapes, config, batch, 1).with_graphs().bytes > memory:
        batch //= 2
    return batch
