"""Records the exact rule once for each drafter, sampling and kind of tree, then predicts any
setting among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from search_spaces.acceptance import EXACT
from search_spaces.drafters import DrafterChoice
from search_spaces.params import ConfigError
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from workers.decoding.build import build_tables
from workers.decoding.engine import Engine, Observer
from workers.decoding.rng import image_keys
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.metrics.estimate import BLOCKS
from workers.replay.prediction import Prediction, Recording
from workers.replay.recording import StepRecorder
from workers.replay.simulation import simulate
from workers.replay.subtrees import union_policy
from workers.replay.windows import RECORDED_RULES, predict_window, window_lengths

MAX_STEPS = 512  # about so many steps are kept of a recording


class RecordingKey(NamedTuple):
    """Settings with one key share recordings."""

    drafter: DrafterChoice
    sampling: Sampling
    trees: str  # how the children of a fixed tree are chosen, or the kind of another tree


def _runs(settings: Sequence[DecodingConfig]) -> list[DecodingConfig]:
    """The settings to run and record for all settings with one `recording_key`."""
    config = replace(
        settings[0],
        policy=union_policy([setting.policy for setting in settings]),
        acceptance=EXACT,
    )
    if not config.drafter.keeps_window:
        return [config]
    assert isinstance(config.policy, Chain), "a window is a chain"
    return [
        replace(config, policy=replace(config.policy, length=length), acceptance=rule)
        for length in window_lengths(setting.policy.bounds.depth for setting in settings)
        for rule in RECORDED_RULES
    ]


def runs_to_record(configs: Iterable[DecodingConfig]) -> dict[RecordingKey, list[DecodingConfig]]:
    """The settings to run and record so that these can be predicted, by their `recording_key`. Each
    one draws all images that are recorded.

    Raises:
        ConfigError: replay cannot describe one of them.
    """
    groups: dict[RecordingKey, list[DecodingConfig]] = {}
    for config in configs:
        if not config.is_vanilla:
            groups.setdefault(recording_key(config), []).append(config)
    return {key: _runs(settings) for key, settings in groups.items()}


def recording_key(config: DecodingConfig) -> RecordingKey:
    """The key of a setting's recordings.

    Raises:
        ConfigError: replay cannot describe the setting.
    """
    if config.sampling is None or config.sampling.temperature == 0:
        raise ConfigError(
            ("sampling", "temperature"), "replay needs sampling: a temperature above 0"
        )
    if config.drafter.keeps_window and not isinstance(config.policy, Chain):
        raise ConfigError(
            ("tree", "policy"),
            f"replay cannot describe a {config.policy.kind!r} window; use 'chain'",
        )
    if not config.drafter.has_drafts:
        problem = f"{config.drafter.kind!r} drafts nothing, so there is no rule to replay"
        raise ConfigError(("drafter",), problem)
    if not config.drafter.has_weights and not config.drafter.keeps_window:
        problem = (
            f"replay cannot describe {config.drafter.kind!r}, whose drafts may depend on the rule"
        )
        raise ConfigError(("drafter",), problem)
    if config.acceptance.verification.implementation:
        problem = (
            f"{config.acceptance.verification.kind!r} emits tokens that no recorded pass has tested"
        )
        raise ConfigError(("acceptance", "verification"), problem)
    if config.acceptance.verification.reads_later_drafts:
        problem = (
            f"replay tests drafts one at a time, and {config.acceptance.verification.kind!r} tests "
            "them together"
        )
        raise ConfigError(("acceptance", "verification"), problem)
    policy = config.policy
    if policy.adapts_to_rule and not policy.size_map:
        problem = (
            f"replay cannot describe {policy.kind!r}, whose drafts depend on what was accepted "
            "before"
        )
        raise ConfigError(("tree", "policy"), problem)
    union_policy([policy])
    trees = policy.kind
    if policy.fixed is not None:
        trees = "sampled" if policy.fixed.sampled else "top"
    return RecordingKey(config.drafter, config.sampling, trees)


class Replayer:
    """Predictions for settings of one model.

    The first prediction by a rule of groups adds a ranking, half as large as the probs of a step.

    Args:
        models: the models.
        requests: the images that are recorded.
        seed: seed of the images.
        batch: images recorded together.
        max_steps: about so many steps are kept of a recording, at random, which bounds memory and
            time of a prediction.
    """

    def __init__(
        self,
        models: Models,
        requests: Sequence[Request],
        *,
        seed: int = 0,
        batch: int = 32,
        max_steps: int = MAX_STEPS,
    ) -> None:
        self.models = models
        self.requests = requests
        self.seed = seed
        self.batch = batch
        self.max_steps = max_steps
        self._recordings: dict[RecordingKey, list[Recording]] = {}

    def record(self, configs: Iterable[DecodingConfig]) -> None:
        """Make every recording that these settings need.

        Raises:
            ConfigError: replay cannot describe one of them; see also `Engine`.
        """
        # Before the first image is generated, because it refuses settings.
        runs = runs_to_record(configs)
        self._recordings |= {
            key: [self._record(config) for config in configs] for key, configs in runs.items()
        }

    def predict(self, config: DecodingConfig) -> Prediction:
        """The prediction for a setting whose recording exists.

        Raises:
            KeyError: it was not recorded.
            ConfigError: its tree is larger than the recorded ones.
        """
        if config.is_vanilla:
            return Prediction.vanilla(len(self.requests))
        predicted = self._from_recordings(config)
        if not config.is_lossless(config.sampling, self.models.target.grid.cols):
            return predicted
        length = predicted.mean_accepted_length
        return Prediction.lossless(length, approximate=predicted.approximate)

    def _from_recordings(self, config: DecodingConfig) -> Prediction:
        recordings = self._recordings[recording_key(config)]
        tables = build_tables(config, self.models.target)
        if config.drafter.keeps_window:
            return predict_window(recordings, config, tables)
        (recording,) = recordings
        outcomes_of = partial(recording.outcomes, config.acceptance, tables)
        if config.policy.size_map:
            simulated = simulate(recording.steps, config.policy, recording.grid, outcomes_of)
            return replace(recording.predict(*simulated), approximate=True)
        return recording.predict(outcomes_of(config.policy))

    def engine(
        self, config: DecodingConfig, batch: int, observer: Observer | None = None
    ) -> Engine:
        """An engine that decodes images with a setting."""
        drafter = self.models.drafters.get(config.drafter.kind)
        return Engine(
            self.models.target,
            config,
            drafter,
            seed=self.seed,
            batch_size=batch,
            observer=observer,
        )

    def _record(self, config: DecodingConfig) -> Recording:
        assert config.sampling is not None
        # A pass emits at least one token, and two or three in the mean.
        most = len(self.requests) * self.models.target.grid.tokens
        recorder = StepRecorder(
            config.sampling, self.models.target.codebook, min(1.0, 2 * self.max_steps / most)
        )
        list(self.engine(config, self.batch, recorder).run(self.requests))
        steps = recorder.steps()
        captions = [request.caption_id for request in self.requests]
        keys = image_keys(
            self.seed, captions, [request.sample for request in self.requests], steps.image.device
        )
        place = {caption: index % BLOCKS for index, caption in enumerate(dict.fromkeys(captions))}
        blocks = torch.tensor([place[caption] for caption in captions], device=keys.device)
        block = blocks[(steps.image[:, None] == keys).long().argmax(1)]
        return Recording(config, steps, block, len(self.requests), self.models.target.grid)
