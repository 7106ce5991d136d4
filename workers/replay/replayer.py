"""Records the exact rule once for each drafter, sampling and kind of tree, then predicts any setting among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Static, TreePolicy
from search_spaces.trial import DecodingConfig, DrafterChoice, Jacobi, NoDrafter, Sampling
from workers.decoding.build import build_tables, drafter_class
from workers.decoding.engine import Engine, Observer
from workers.decoding.rng import image_keys
from workers.decoding.state import Request
from workers.decoding.statistics import Result
from workers.loading.models import Models
from workers.metrics.estimate import BLOCKS
from workers.replay.outcomes import StepOutcomes, step_outcomes
from workers.replay.prediction import Prediction, interpolate, predict
from workers.replay.recording import RecordedSteps, StepRecorder
from workers.replay.simulation import simulate
from workers.replay.subtrees import subtree, union_policy
from workers.replay.windows import RECORDED_RULES, RELAXED, neighbours, relaxed_weight, window_lengths

MAX_STEPS = 512  # of a recording, about


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    """Steps of trees of a policy. block [S]: of each step's caption."""

    policy: TreePolicy
    steps: RecordedSteps
    block: Tensor

    def outcomes(self, rule: AcceptanceRule, tables: NeighbourTables, tree: TreePolicy) -> StepOutcomes:
        """The outcomes of a rule, applied to a tree that the recorded ones contain."""
        kept, levels = subtree(self.steps, self.policy, tree)
        return step_outcomes(self.steps, rule, tables, kept=kept, levels=levels)


class RecordingKey(NamedTuple):
    """Settings with one key share recordings. trees: how the children of a chain or a static tree are chosen, or the
    kind of another tree.
    """

    drafter: DrafterChoice
    sampling: Sampling
    trees: str


_RecordingId = tuple[RecordingKey, int, AcceptanceRule]  # the length of a Jacobi window, 0 for trees; the recorded rule


def _runs(key: RecordingKey, settings: Sequence[DecodingConfig]) -> dict[_RecordingId, DecodingConfig]:
    """The settings to run and record for all settings with one `recording_key`."""
    config = replace(settings[0], policy=union_policy([setting.policy for setting in settings]), acceptance=EXACT)
    if not isinstance(config.drafter, Jacobi):
        return {(key, 0, EXACT): config}
    assert isinstance(config.policy, Chain), "a window is a chain"
    return {
        (key, length, rule): replace(config, policy=replace(config.policy, length=length), acceptance=rule)
        for length in window_lengths(setting.policy.bounds.depth for setting in settings)
        for rule in RECORDED_RULES
    }


def recording_key(config: DecodingConfig) -> RecordingKey:
    """The key of a setting's recordings.

    Raises:
        ConfigError: replay cannot describe the setting.
    """
    if config.sampling is None or config.sampling.temperature == 0:
        raise ConfigError(("sampling", "temperature"), "replay needs sampling: a temperature above 0")
    if drafter_class(config.drafter) is None and not isinstance(config.drafter, Jacobi):
        problem = f"replay cannot describe {config.drafter.kind!r}, whose drafts may depend on the rule"
        raise ConfigError(("drafter",), problem)
    policy = config.policy
    union_policy([policy])
    trees = policy.children if isinstance(policy, Chain | Static) else policy.kind
    return RecordingKey(config.drafter, config.sampling, trees)


class Replayer:
    """Predictions for settings of one model. requests: the images that are recorded.

    max_steps: about so many steps are kept of a recording, at random, which bounds memory and time of a prediction. The
    first prediction by a rule of groups adds a ranking, half as large as the probs of a step.
    """

    def __init__(
        self, models: Models, requests: Sequence[Request], *, seed: int = 0, batch: int = 32, max_steps: int = MAX_STEPS
    ) -> None:
        self.models, self.requests, self.seed, self.batch, self.max_steps = models, requests, seed, batch, max_steps
        self._recordings: dict[_RecordingId, _Recording] = {}
        self._speeds: dict[_RecordingId, float] = {}  # of recorded windows, in tokens per pass

    def record(self, configs: Iterable[DecodingConfig]) -> None:
        """Make every recording that these settings need.

        Raises:
            ConfigError: replay cannot describe one of them; see also `Engine`.
        """
        groups: dict[RecordingKey, list[DecodingConfig]] = {}
        for config in configs:
            if not isinstance(config.drafter, NoDrafter):
                groups.setdefault(recording_key(config), []).append(config)
        runs = [run for key, group in groups.items() for run in _runs(key, group).items()]
        self._recordings |= {place: self._record(config) for place, config in runs}

    def predict(self, config: DecodingConfig) -> Prediction:
        """The prediction for a setting whose recording exists.

        Raises:
            KeyError: it was not recorded.
            ConfigError: its tree is larger than the recorded ones.
        """
        if isinstance(config.drafter, NoDrafter):
            return Prediction.vanilla(len(self.requests))
        key, tables = recording_key(config), build_tables(config, self.models.target)
        if isinstance(config.drafter, Jacobi):
            return replace(self._predict_window(key, config, tables), approximate=True)
        recording, policy = self._recording((key, 0, EXACT), config), config.policy
        outcomes_of = partial(recording.outcomes, config.acceptance, tables)
        if isinstance(policy, Adjacency):
            simulated = simulate(recording.steps, policy, self.models.target.grid, outcomes_of)
            return replace(self._prediction(recording, *simulated), approximate=True)
        return self._prediction(recording, outcomes_of(policy))

    def _recording(self, place: _RecordingId, config: DecodingConfig) -> _Recording:
        """A recording, ranked if the setting's rule needs it."""
        recording = self._recordings[place]
        if config.acceptance.neighbourhood.reads_ranking and recording.steps.ranking is None:
            recording = self._recordings[place] = replace(recording, steps=recording.steps.ranked())
        return recording

    def _predict_window(self, key: RecordingKey, config: DecodingConfig, tables: NeighbourTables) -> Prediction:
        """Of a Jacobi window; see `windows`."""
        recorded = {length for other, length, _ in self._recordings if other == key}
        low, high, weight = neighbours(config.policy.bounds.depth, recorded)
        ends = [self._at_own_speed(key, length, config, tables) for length in dict.fromkeys((low, high))]
        return interpolate(ends[0], ends[-1], weight)

    def _at_own_speed(
        self, key: RecordingKey, length: int, config: DecodingConfig, tables: NeighbourTables
    ) -> Prediction:
        """Of a window of one of the recorded lengths."""
        exact, relaxed = (
            self._prediction(recording, step_outcomes(recording.steps, config.acceptance, tables))
            for recording in (self._recording((key, length, rule), config) for rule in RECORDED_RULES)
        )
        emitted = exact.mean_accepted_length.value, relaxed.mean_accepted_length.value
        speeds = self._speed((key, length, EXACT)), self._speed((key, length, RELAXED))
        return interpolate(exact, relaxed, relaxed_weight(speeds, emitted))

    def _speed(self, place: _RecordingId) -> float:
        """Tokens per pass of the recorded rule in its own recording."""
        if place not in self._speeds:
            recording = self._recordings[place]
            outcomes = step_outcomes(recording.steps, place[2], NeighbourTables(), costs=False)
            self._speeds[place] = self._prediction(recording, outcomes).mean_accepted_length.value
        return self._speeds[place]

    def _prediction(
        self,
        recording: _Recording,
        outcomes: StepOutcomes,
        step: Tensor | None = None,
        position: Tensor | None = None,
    ) -> Prediction:
        """From the outcomes of the recorded steps, or of rounds for which `step` [R] stand at token positions [R]."""
        block = recording.block if step is None else recording.block[step]
        position = recording.steps.position if position is None else position
        return predict(outcomes, block, position // self.models.target.grid.cols, len(self.requests))

    def run(
        self, config: DecodingConfig, requests: Sequence[Request], batch: int, observer: Observer | None = None
    ) -> list[Result]:
        """Decode images with a setting."""
        drafter = self.models.drafters.get(config.drafter.kind)
        engine = Engine(self.models.target, config, drafter, seed=self.seed, batch_size=batch, observer=observer)
        return list(engine.run(requests))

    def _record(self, config: DecodingConfig) -> _Recording:
        assert config.sampling is not None
        # a pass emits at least one token, and two or three in the mean
        most = len(self.requests) * self.models.target.grid.tokens
        recorder = StepRecorder(config.sampling, self.models.target.codebook, min(1.0, 2 * self.max_steps / most))
        self.run(config, self.requests, self.batch, recorder)
        steps = recorder.steps()
        captions = [request.caption_id for request in self.requests]
        keys = image_keys(self.seed, captions, [request.sample for request in self.requests], steps.image.device)
        place = {caption: index % BLOCKS for index, caption in enumerate(dict.fromkeys(captions))}
        blocks = torch.tensor([place[caption] for caption in captions], device=keys.device)
        return _Recording(config.policy, steps, blocks[(steps.image[:, None] == keys).long().argmax(1)])
