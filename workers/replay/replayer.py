"""Records the exact rule once for each drafter, sampling and kind of tree, then predicts any setting among them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from search_spaces.acceptance import EXACT
from search_spaces.params import ConfigError
from search_spaces.trees import Adjacency, Chain, Dynamic, Static, TreePolicy
from search_spaces.trial import DecodingConfig, Jacobi, NoDrafter
from workers.data.shards import digest
from workers.decoding.build import build_tables, drafter_class
from workers.decoding.engine import Engine, Observer, Result
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.replay.prediction import Prediction, predict
from workers.replay.recording import RecordedSteps, StepRecorder
from workers.replay.recording_files import read_recording, recording_identity, write_recording
from workers.replay.simulation import simulate
from workers.replay.subtrees import contains, subtree, union_policy
from workers.replay.walk import StepOutcomes, walk

_MAX_STEPS = 512  # of a recording, about


@dataclass(frozen=True, slots=True, eq=False)
class _Recording:
    policy: TreePolicy
    steps: RecordedSteps
    image: Tensor  # [S] index

    @classmethod
    def of(cls, policy: TreePolicy, steps: RecordedSteps) -> _Recording:
        return cls(policy, steps, torch.unique(steps.image, return_inverse=True)[1])


def recording_key(config: DecodingConfig) -> tuple[object, ...]:
    """Settings with one key share a recording.

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
    return config.drafter, config.sampling, policy.children if isinstance(policy, Chain | Static) else policy.kind


def is_approximate(config: DecodingConfig) -> bool:
    """Whether what the setting drafts depends on what was accepted before, and so on its rule.

    Jacobi windows are refined while they wait: the window that the exact rule met is walked. Adjacency trees adapt:
    images are simulated.
    """
    return isinstance(config.drafter, Jacobi) or isinstance(config.policy, Adjacency)


class Replayer:
    """Predictions for settings of one model. requests: the images that are recorded.

    max_steps: about so many steps are kept of a recording, at random, which bounds memory and time of a prediction.
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
        self._recordings: dict[tuple[object, ...], _Recording] = {}

    def record(self, configs: Iterable[DecodingConfig]) -> None:
        """Run the exact rule for every recording that these settings need, or read it.

        Raises:
            ConfigError: replay cannot describe one of them; see also `Engine`.
            WeightsError: a file in `folder` is damaged, or was recorded with other weights, captions or seed.
        """
        groups: dict[tuple[object, ...], list[DecodingConfig]] = {}
        for config in configs:
            if not isinstance(config.drafter, NoDrafter):
                groups.setdefault(recording_key(config), []).append(config)
        for key, group in groups.items():
            self._recordings[key] = self._read(key, group) or self._record(key, group)

    def predict(self, config: DecodingConfig) -> Prediction:
        """The prediction for a setting whose recording exists.

        Raises:
            KeyError: it was not recorded.
            ConfigError: its tree is larger than the recorded ones.
        """
        recording, target, policy = self._recordings[recording_key(config)], self.models.target, config.policy
        steps, tables = recording.steps, build_tables(config, target)

        def walk_tree(tree: TreePolicy) -> StepOutcomes:
            kept, levels = subtree(steps, recording.policy, tree)
            return walk(steps, config.acceptance, tables, kept=kept, levels=levels)

        if isinstance(policy, Adjacency):
            outcomes, image, position = simulate(
                steps, policy, target.grid, lambda depth, width: walk_tree(Dynamic(depth, width, policy.nodes))
            )
        else:
            outcomes, image, position = walk_tree(policy), recording.image, steps.position
        prediction = predict(outcomes, image, position // target.grid.cols)
        return replace(prediction, approximate=is_approximate(config))

    def run(
        self, config: DecodingConfig, requests: Sequence[Request], batch: int, observer: Observer | None = None
    ) -> list[Result]:
        """Decode images with a setting."""
        drafter = self.models.drafters.get(config.drafter.kind)
        engine = Engine(self.models.target, config, drafter, seed=self.seed, batch_size=batch, observer=observer)
        return list(engine.run(requests))

    def _read(self, key: tuple[object, ...], configs: Sequence[DecodingConfig]) -> _Recording | None:
        """The recording in the folder, if its trees contain those of all these settings."""
        if self.folder is None:
            return None
        identity = recording_identity(self.models, configs[0], self.requests, self.seed)
        found = read_recording(self._path(key, configs[0]), identity, self.models.target.device)
        if found is None or not all(contains(found[0], config.policy) for config in configs):
            return None
        return _Recording.of(*found)

    def _record(self, key: tuple[object, ...], configs: Sequence[DecodingConfig]) -> _Recording:
        config = replace(configs[0], policy=union_policy([config.policy for config in configs]), acceptance=EXACT)
        assert config.sampling is not None
        # an exact round emits at least one token, and two or three in the mean
        most = len(self.requests) * self.models.target.grid.tokens
        recorder = StepRecorder(config.sampling, self.models.target.codebook, min(1.0, 2 * self.max_steps / most))
        self.run(config, self.requests, self.batch, recorder)
        steps = recorder.steps()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            identity = recording_identity(self.models, config, self.requests, self.seed)
            write_recording(self._path(key, configs[0]), config.policy, steps, identity)
        return _Recording.of(config.policy, steps)

    def _path(self, key: tuple[object, ...], config: DecodingConfig) -> Path:
        assert self.folder is not None
        mapping = config.to_mapping()
        name = digest([mapping["drafter"], mapping["sampling"], key[-1]], 8)
        return self.folder / f"{config.drafter.kind}-{key[-1]}-{name}.safetensors"
