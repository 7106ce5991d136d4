"""Records the exact rule once for each drafter, sampling and kind of tree, then predicts any setting among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from search_spaces.acceptance import EXACT
from search_spaces.params import ConfigError
from search_spaces.trees import Chain, Static, TreePolicy
from search_spaces.trial import DecodingConfig, NoDrafter
from workers.decoding.build import build_tables, drafter_class
from workers.decoding.engine import Engine, Observer, Result
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.replay.prediction import Prediction, predict
from workers.replay.recording import RecordedSteps, StepRecorder
from workers.replay.subtrees import subtree, union_policy
from workers.replay.walk import walk

_MAX_STEPS = 512  # of a recording, about


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    policy: TreePolicy
    steps: RecordedSteps
    image: Tensor  # [S] index
    image_row: Tensor  # [S]


def recording_key(config: DecodingConfig) -> tuple[object, ...]:
    """Settings with one key share a recording.

    Raises:
        ConfigError: replay cannot describe the setting.
    """
    if config.sampling is None or config.sampling.temperature == 0:
        raise ConfigError(("sampling", "temperature"), "replay needs sampling: a temperature above 0")
    if drafter_class(config.drafter) is None:
        kind = config.drafter.kind
        raise ConfigError(("drafter",), f"replay cannot describe {kind!r}: what it drafts depends on the rule")
    policy = union_policy([config.policy])
    return config.drafter, config.sampling, policy.children if isinstance(policy, Chain | Static) else policy.kind


class Replayer:
    """Predictions for settings of one model. requests: the images that are recorded.

    max_steps: about so many steps are kept of a recording, at random, which bounds memory and time of a prediction.
    """

    def __init__(
        self,
        models: Models,
        requests: Sequence[Request],
        *,
        seed: int = 0,
        batch: int = 32,
        max_steps: int = _MAX_STEPS,
    ) -> None:
        self.models, self.requests, self.seed, self.batch, self.max_steps = models, requests, seed, batch, max_steps
        self._recordings: dict[tuple[object, ...], _Recording] = {}

    def record(self, configs: Iterable[DecodingConfig]) -> None:
        """Run the exact rule for every recording that these settings need.

        Raises:
            ConfigError: replay cannot describe one of them; see also `Engine`.
        """
        groups: dict[tuple[object, ...], list[DecodingConfig]] = {}
        for config in configs:
            if not isinstance(config.drafter, NoDrafter):
                groups.setdefault(recording_key(config), []).append(config)
        for key, group in groups.items():
            self._recordings[key] = self._record(group)

    def predict(self, config: DecodingConfig) -> Prediction:
        """The prediction for a setting whose recording exists.

        Raises:
            KeyError: it was not recorded.
            ConfigError: its tree is larger than the recorded ones.
        """
        recording, target = self._recordings[recording_key(config)], self.models.target
        kept, levels = subtree(recording.steps, recording.policy, config.policy)
        tables = build_tables(config, target)
        outcomes = walk(recording.steps, config.acceptance, tables, kept=kept, levels=levels)
        return predict(outcomes, recording.image, recording.image_row)

    def run(
        self, config: DecodingConfig, requests: Sequence[Request], batch: int, observer: Observer | None = None
    ) -> list[Result]:
        """Decode images with a setting."""
        drafter = self.models.drafters.get(config.drafter.kind)
        engine = Engine(self.models.target, config, drafter, seed=self.seed, batch_size=batch, observer=observer)
        return list(engine.run(requests))

    def _record(self, configs: Sequence[DecodingConfig]) -> _Recording:
        config = replace(configs[0], policy=union_policy([config.policy for config in configs]), acceptance=EXACT)
        assert config.sampling is not None
        # an exact round emits at least one token, and two or three in the mean
        most = len(self.requests) * self.models.target.grid.tokens
        recorder = StepRecorder(config.sampling, self.models.target.codebook, min(1.0, 2 * self.max_steps / most))
        self.run(config, self.requests, self.batch, recorder)
        steps = recorder.steps()
        image = torch.unique(steps.image, return_inverse=True)[1]
        return _Recording(config.policy, steps, image, steps.position // self.models.target.grid.cols)
