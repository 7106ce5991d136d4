"""Records the exact rule once for each drafter, sampling and kind of tree, then predicts any setting among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from search_spaces.acceptance import EXACT, AcceptanceRule
from search_spaces.neighbourhoods import NeighbourTables
from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, DrafterChoice, Jacobi, NoDrafter, Sampling
from workers.data.shards import digest
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
from workers.replay.recording_files import read_recording, recording_identity, write_recording
from workers.replay.simulation import simulate
from workers.replay.subtrees import contains, subtree, union_policy
from workers.replay.windows import RECORDED_RULES, RELAXED, neighbours, relaxed_weight, window_lengths

_MAX_STEPS = 512  # of a recording, about


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    policy: TreePolicy
    steps: RecordedSteps
    block: Tensor  # [S] of captions

    def serves(self, configs: Sequence[DecodingConfig]) -> bool:
        return all(contains(self.policy, config.policy) for config in configs)


@dataclass(frozen=True, slots=True, eq=False)
class _Trees:
    """One rule, applied to any tree in the recorded ones."""

    recording: _Recording
    rule: AcceptanceRule
    tables: NeighbourTables

    def outcomes(self, tree: TreePolicy) -> StepOutcomes:
        steps = self.recording.steps
        kept, levels = subtree(steps, self.recording.policy, tree)
        return step_outcomes(steps, self.rule, self.tables, kept=kept, levels=levels)


class RecordingKey(NamedTuple):
    """Settings with one key share recordings. trees: how the children of a chain or a static tree are chosen, or the
    kind of another tree.
    """

    drafter: DrafterChoice
    sampling: Sampling
    trees: str


_RecordingId = tuple[RecordingKey, int, AcceptanceRule]  # the length of a Jacobi window, 0 for trees; the recorded rule


@dataclass(frozen=True, slots=True)
class _Run:
    """A setting that is recorded for others with its key."""

    key: RecordingKey
    config: DecodingConfig
    settings: Sequence[DecodingConfig]

    @property
    def id(self) -> _RecordingId:
        is_window = isinstance(self.config.drafter, Jacobi)
        return self.key, self.config.policy.bounds.depth if is_window else 0, self.config.acceptance

    @property
    def file(self) -> str:
        """The recording's name in a folder. Its trees are not part of it: a larger recording replaces a smaller one."""
        mapping, (key, window, rule) = self.config.to_mapping(), self.id
        parts = [mapping["drafter"], mapping["sampling"], key.trees, *([window, rule.to_mapping()] if window else [])]
        return f"{self.config.drafter.kind}-{key.trees}-{digest(parts, 8)}.safetensors"


def _runs(key: RecordingKey, settings: Sequence[DecodingConfig]) -> list[_Run]:
    """The runs to record for settings with one `recording_key`."""
    config = replace(settings[0], policy=union_policy([setting.policy for setting in settings]), acceptance=EXACT)
    if not isinstance(config.drafter, Jacobi):
        return [_Run(key, config, settings)]
    assert isinstance(config.policy, Chain), "a window is a chain"
    runs = []
    for length in window_lengths(setting.policy.bounds.depth for setting in settings):
        for rule in RECORDED_RULES:
            window = replace(config, policy=replace(config.policy, length=length), acceptance=rule)
            runs.append(_Run(key, window, [window]))
    return runs


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
    folder: keeps the recordings; those that are there and fit are not recorded again.
    """

    def __init__(
        self,
        models: Models,
        requests: Sequence[Request],
        *,
        seed: int = 0,
        batch: int = 32,
        max_steps: int = _MAX_STEPS,
        folder: Path | None = None,
    ) -> None:
        self.folder = folder
        self.models, self.requests, self.seed, self.batch, self.max_steps = models, requests, seed, batch, max_steps
        self._recordings: dict[_RecordingId, _Recording] = {}
        self._speeds: dict[_RecordingId, float] = {}  # of recorded windows, in tokens per pass

    def record(self, configs: Iterable[DecodingConfig]) -> None:
        """Make every recording that these settings need, or read it.

        Raises:
            ConfigError: replay cannot describe one of them; see also `Engine`.
            WeightsError: a file in `folder` is damaged, or was recorded with other weights, captions or seed.
        """
        groups: dict[RecordingKey, list[DecodingConfig]] = {}
        for config in configs:
            if not isinstance(config.drafter, NoDrafter):
                groups.setdefault(recording_key(config), []).append(config)
        runs = [run for key, group in groups.items() for run in _runs(key, group)]
        found = [self._find(run) for run in runs]  # checks all files before the first image
        for run, recording in zip(runs, found, strict=True):
            self._recordings[run.id] = recording or self._record(run)

    def predict(self, config: DecodingConfig) -> Prediction:
        """The prediction for a setting whose recording exists.

        Raises:
            KeyError: it was not recorded.
            ConfigError: its tree is larger than the recorded ones.
        """
        key, tables = recording_key(config), build_tables(config, self.models.target)
        if isinstance(config.drafter, Jacobi):
            return replace(self._predict_window(key, config, tables), approximate=True)
        recording = self._recording((key, 0, EXACT), config)
        if isinstance(config.policy, Adjacency):
            policy, trees = config.policy, _Trees(recording, config.acceptance, tables)
            simulated = simulate(
                recording.steps,
                policy,
                self.models.target.grid,
                lambda depth, width: trees.outcomes(Dynamic(depth, width, policy.nodes)),
            )
            return replace(self._prediction(recording, *simulated), approximate=True)
        return self._prediction(recording, _Trees(recording, config.acceptance, tables).outcomes(config.policy))

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

    def _find(self, run: _Run) -> _Recording | None:
        """The recording here or in the folder, if its trees contain those of all the run's settings."""
        recording = self._recordings.get(run.id)
        if recording is None or not recording.serves(run.settings):
            recording = self._read(run)
        return recording if recording and recording.serves(run.settings) else None

    def _read(self, run: _Run) -> _Recording | None:
        """The recording in the folder."""
        if self.folder is None:
            return None
        identity = recording_identity(self.models, run.config, self.requests, self.seed)
        found = read_recording(self.folder / run.file, identity, self.models.target.device)
        return self._with_blocks(*found) if found else None

    def _record(self, run: _Run) -> _Recording:
        assert run.config.sampling is not None
        # a round emits at least one token, and two or three in the mean
        most = len(self.requests) * self.models.target.grid.tokens
        recorder = StepRecorder(run.config.sampling, self.models.target.codebook, min(1.0, 2 * self.max_steps / most))
        self.run(run.config, self.requests, self.batch, recorder)
        steps = recorder.steps()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            identity = recording_identity(self.models, run.config, self.requests, self.seed)
            write_recording(self.folder / run.file, run.config.policy, steps, identity)
        return self._with_blocks(run.config.policy, steps)

    def _with_blocks(self, policy: TreePolicy, steps: RecordedSteps) -> _Recording:
        captions = [request.caption_id for request in self.requests]
        keys = image_keys(self.seed, captions, [request.sample for request in self.requests], steps.image.device)
        place = {caption: index % BLOCKS for index, caption in enumerate(dict.fromkeys(captions))}
        blocks = torch.tensor([place[caption] for caption in captions], device=keys.device)
        return _Recording(policy, steps, blocks[(steps.image[:, None] == keys).long().argmax(1)])
