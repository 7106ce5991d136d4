"""One engine per decoding config, which is reused across shards. Runs can be cancelled, and are
retried at half the batch size if memory runs out.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence

from torch import Tensor

from search_spaces.trial import DecodingConfig
from workers.decoding.engine import Engine
from workers.decoding.state import Batch, Request
from workers.decoding.statistics import Result
from workers.loading.models import Capabilities, Models
from workers.runtime.memory import OutOfMemory, guard_memory

_MAX_ENGINES = 4  # rebuilding their lookup tables and tree shapes for every shard is slow


class Cancelled(RuntimeError):
    """The task was cancelled; it leaves no results."""


class CancellableEngine(Engine):
    """An engine that checks before every pass whether its task was cancelled."""

    is_cancelled: Callable[[], bool]

    def step(self, batch: Batch) -> Tensor:
        if self.is_cancelled():
            raise Cancelled("the task was cancelled")
        return super().step(batch)


class Engines:
    """Engines of one model by config. A config that the model does not support is refused before
    anything runs.
    """

    def __init__(self, models: Models, seed: int, is_cancelled: Callable[[], bool]) -> None:
        self.models = models
        self.seed = seed
        self.is_cancelled = is_cancelled
        self.capabilities = Capabilities.of(models)
        self._engines: OrderedDict[DecodingConfig, CancellableEngine] = OrderedDict()

    def get(self, config: DecodingConfig, kept: int = _MAX_ENGINES) -> CancellableEngine:
        """The engine of a config. At least `kept` engines stay.

        Raises:
            ConfigError: the model does not support the config.
        """
        if config not in self._engines:
            self.capabilities.check(config)
            drafter = self.models.drafters.get(config.drafter.kind)
            engine = CancellableEngine(self.models.target, config, drafter, seed=self.seed)
            engine.is_cancelled = self.is_cancelled
            self._engines[config] = engine
            if len(self._engines) > max(kept, _MAX_ENGINES):
                self._engines.popitem(last=False)
        self._engines.move_to_end(config)
        return self._engines[config]

    def generate(
        self, config: DecodingConfig, requests: Sequence[Request], batch: int
    ) -> tuple[list[Result], int]:
        """The results in the order of the requests, and the batch size used: `batch`, or half of it
        if memory ran out.

        Raises:
            ConfigError: the model does not support the config.
            OutOfMemory: not even half the batch fits.
            Cancelled: the task was cancelled.
            DecodingError: the target's logits are not finite.
        """
        half = max(1, batch // 2)
        try:
            return self.generate_once(config, requests, batch), batch
        except OutOfMemory:
            if half == batch:
                raise
        return self.generate_once(config, requests, half), half

    def generate_once(
        self,
        config: DecodingConfig,
        requests: Sequence[Request],
        batch: int,
        alternating: Collection[DecodingConfig] = (),
    ) -> list[Result]:
        """Like `generate`, without the retry at half the batch size. The engines of the configs
        `alternating` keep their batches and graphs meanwhile, because they take turns with this
        one.
        """

        def run() -> list[Result]:
            engine = self.get(config, len(alternating))
            for other in self._engines.keys() - {config, *alternating}:
                self._engines[other].release()
            engine.batch_size = batch
            try:
                return list(engine.run(requests))
            except (RuntimeError, MemoryError):
                # The interrupted pass leaves the engine's timer and caches in an undefined state.
                del self._engines[config]
                raise

        results = {
            (result.request.caption_id, result.request.sample): result
            for result in guard_memory(run, f"batch {batch}")
        }
        return [results[request.caption_id, request.sample] for request in requests]
