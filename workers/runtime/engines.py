"""Drawing captions with any setting: engines that are kept, stopped on demand, and halved when memory runs out."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

from search_spaces.trial import DecodingConfig
from workers.decoding.accept import AcceptResult
from workers.decoding.engine import Engine, Result
from workers.decoding.state import Batch, Request
from workers.decoding.tree import DraftTree
from workers.loading.models import Capabilities, Models
from workers.runtime.memory import OutOfMemory, free_memory, is_out_of_memory

KEPT = 4  # engines: their tables and shapes are worth keeping between the shards of a trial


class Cancelled(RuntimeError):
    """The work was called off; nothing of it is kept."""


class StoppableEngine(Engine):
    """An engine that asks before every round whether to go on."""

    stopped: Callable[[], bool]

    def step(self, batch: Batch) -> tuple[AcceptResult, DraftTree]:
        if self.stopped():
            raise Cancelled("called off")
        return super().step(batch)


class Engines:
    """Engines of one model by setting. Settings that do not suit the model are refused before anything runs."""

    def __init__(self, models: Models, seed: int, stopped: Callable[[], bool]) -> None:
        self.models, self.seed, self.stopped = models, seed, stopped
        self.capabilities = Capabilities.of(models)
        self._kept: OrderedDict[str, StoppableEngine] = OrderedDict()

    def get(self, config: DecodingConfig) -> StoppableEngine:
        """The engine of a setting.

        Raises:
            ConfigError: the model cannot serve it.
        """
        key = config.digest()
        if key not in self._kept:
            self.capabilities.check(config)
            drafter = self.models.drafters.get(config.drafter.kind)
            engine = StoppableEngine(self.models.target, config, drafter, seed=self.seed)
            engine.stopped = self.stopped
            self._kept[key] = engine
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def draw(self, config: DecodingConfig, requests: Sequence[Request], batch: int) -> tuple[list[Result], int]:
        """The requests' results in their order, and the batch that they were drawn at: `batch`, or half of it if memory
        ran out.

        Raises:
            ConfigError: the model cannot serve the setting.
            OutOfMemory: not even half the batch fits.
            Cancelled: the work was called off.
            DecodingError: the target's logits are not finite.
        """
        half = max(1, batch // 2)
        try:
            return self.draw_once(config, requests, batch), batch
        except OutOfMemory:
            if half == batch:
                raise
        return self.draw_once(config, requests, half), half

    def draw_once(self, config: DecodingConfig, requests: Sequence[Request], batch: int) -> list[Result]:
        """As `draw`, at this batch or not at all."""
        engine = self.get(config)
        engine.batch_size = batch
        found: dict[tuple[int, int], Result] = {}
        problem = ""
        try:
            for result in engine.run(requests):
                found[result.request.caption_id, result.request.sample] = result
        except (RuntimeError, MemoryError) as error:
            self._kept.pop(config.digest(), None)  # a round broke off in the middle: its clock and caches are astray
            if not is_out_of_memory(error):
                raise
            problem = str(error).partition("\n")[0] or type(error).__name__  # a MemoryError may be without words
        if problem:  # outside of the handler, whose error would keep the memory of the frames that it came through
            del engine
            free_memory()
            raise OutOfMemory(f"out of memory at batch {batch}: {problem}")
        return [found[request.caption_id, request.sample] for request in requests]
