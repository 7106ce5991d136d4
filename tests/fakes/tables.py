"""Tables of settings with a known truth, in the atlas's form: no images were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from benchmarks.atlas import SPACE
from benchmarks.atlas_table import BLOCKS, HALF, QUALITY, SPANS, Atlas, Floats, StepCost
from orchestrator.replay.predict import random_settings
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling

TOKENS = 143
_BIAS = 300.0  # fid at n images is higher by this over n


def different_settings(count: int) -> list[DecodingConfig]:
    """Vanilla, and different random settings of the atlas's space."""
    sweep = SweepConfig.read(str(SPACE))
    return [DecodingConfig(sampling=Sampling()), *dict(islice(random_settings(sweep), count - 1))]


def make_table(
    configs: Sequence[DecodingConfig],
    length: Floats,
    fid: Floats,
    *,
    noise: float = 0.3,
    shared: float = 1.0,
    seed: int = 0,
) -> Atlas:
    """Settings with these mean accepted lengths and fids [S], whose passes all cost the same.

    noise: standard error of a setting's own fid on 96 captions; shared: of what all settings have
    in common.
    """
    rng = np.random.default_rng(seed)
    # vanilla's passes do not vary
    spread = np.concatenate([[0.0], np.full(len(configs) - 1, 0.1)])[:, None]
    passes = (
        TOKENS
        / np.array(length)[:, None]
        * (1 + spread * rng.standard_normal((len(configs), 2 * HALF)))
    )
    own, common = rng.standard_normal((len(configs), 2 * HALF)), rng.standard_normal(2 * HALF)
    by_caption = np.array(fid)[:, None] + HALF**0.5 * (noise * own + shared * common)
    quality = np.stack([_left_out(by_caption, span) for span in SPANS], axis=1)
    costs = {config.shape.key: StepCost(0.0, 0.01, 0.0) for config in configs}
    ones = np.ones(len(configs))
    return Atlas(
        tuple(configs), ("",) * len(configs), passes.round().clip(1).astype(np.int16), ones, ones,
        dict.fromkeys(QUALITY, quality), {}, costs, {},
    )  # fmt: skip


def _left_out(by_caption: Floats, span: tuple[int, int]) -> Floats:
    part, blocks = by_caption[:, slice(*span)], np.arange(*span) % BLOCKS
    columns = [part, *(part[:, blocks != block] for block in range(BLOCKS))]
    return np.stack([column.mean(axis=1) + _BIAS / column.shape[1] for column in columns], axis=1)
