"""Timing sessions of a finished sweep on the device at hand, in this process."""

from __future__ import annotations

import math
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from typing import TYPE_CHECKING, Self

from orchestrator.cli.text import say
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.options import find_models, pick_device, show_notes
from orchestrator.store import config_file
from orchestrator.store.identity import plugins_of
from orchestrator.store.prices import Machine, read_prices
from orchestrator.text import counted, describe_duration
from search_spaces.trial import DecodingConfig
from workers.data.captions import Caption
from workers.data.records import write_shard
from workers.data.shards import Experiment, TimingSession, plan_session, session_groups
from workers.decoding.engine import DecodingError
from workers.loading.models_yaml import load_entry
from workers.metrics.estimate import MetricUnavailable
from workers.metrics.timings import TIME_WORKER, Device
from workers.runtime.device import this_device
from workers.runtime.engines import Engines
from workers.runtime.sessions import run_session
from workers.runtime.shard_tables import shard_metadata

if TYPE_CHECKING:
    from orchestrator.cli.query_options import TimingOptions
    from orchestrator.store.sweep import Sweep

# Numbers of sessions; the sweep's own have smaller ones.
_FIRST_NUMBER = 1_000_000
_LAST_NUMBER = 2**31 - 1
_IMAGES = 8  # of a setting in a session, if the sweep does not say


@dataclass(frozen=True, slots=True, eq=False)
class SessionTimer:
    """Times settings of a sweep with its models on its captions, and stores the sessions there."""

    sweep: Sweep
    engines: Engines
    captions: Sequence[Caption]
    experiment: Experiment
    images: int  # of a setting in a session
    batch: int
    error: float  # `largest_error` that suffices
    seconds: float  # after which no further session ends
    written: list[str] = field(default_factory=list)  # names of the sessions that were stored
    call: str = field(default_factory=lambda: uuid.uuid4().hex[:12])  # names this call in them

    @classmethod
    def load(cls, sweep: Sweep, effort: TimingOptions) -> Self:
        """Load the sweep's models.

        Raises:
            CommandError: no such device or models, or more threads than torch uses (2); weights are
                missing, damaged, or not the sweep's, or a shard of vanilla is missing or damaged
                (1).
        """
        identity = sweep.identity
        device = pick_device(effort.device)
        used = this_device(device).threads
        if effort.threads and used and effort.threads != used:
            raise CommandError(
                f"--threads {effort.threads}: torch uses {used} on this machine", WRONG_USAGE
            )
        with (
            plugins_of(sweep.storage),
            in_memory("while loading the models; free some memory, or use another device"),
        ):
            entry = find_models(effort.models, sweep.models)
            with ends_with(FAILED), show_notes():
                captions = sweep.captions()
                models = load_entry(entry, device)
        if files := config_file.Setting({}, weights=identity.models).differing_files(models.hashes):
            verb = "differs" if len(files) == 1 else "differ"
            fix = "restore the originals, or name them with --models"
            raise CommandError(f"{', '.join(files)} {verb} from the sweep's: {fix}", FAILED)
        timing = identity.timing
        return cls(
            sweep=sweep,
            engines=Engines(models, identity.seed, lambda: False),
            captions=captions,
            experiment=Experiment(
                models=models.hashes,
                captions=str(identity.captions.get("hash")),
                seed=identity.seed,
                extractors=identity.extractors,
                precision=str(models.target.dtype).removeprefix("torch."),
            ),
            images=effort.images or int(timing.get("images", _IMAGES)),
            batch=effort.batch or identity.timing_batch,
            error=effort.error,
            seconds=60 * effort.minutes,
        )

    @property
    def device(self) -> Device:
        """What times now: a GPU may give up CUDA graphs."""
        return this_device(self.engines.models.target.device)

    @property
    def machine(self) -> Machine:
        """The device, and the batch size."""
        return Machine(self.device, self.batch)

    def run(self, settings: Sequence[DecodingConfig]) -> float:
        """Time vanilla and settings, one of each shape, until all costs are as precise as asked for
        or the time is spent; at least once on the device as it is then. Returns `largest_error`.

        Raises:
            CommandError: too few captions (2); a batch does not fit, the model does not support a
                config, or decoding fails (1); an interrupt (130), which keeps the sessions that
                have finished.
        """
        groups = session_groups(settings)
        for group in groups:
            self._plan(group)  # refused before anything is timed
        begin = time.monotonic()
        longest = 0.0
        try:
            for group in cycle(groups):
                spent = time.monotonic() - begin
                if len(self.written) >= len(groups):
                    error = self.largest_error(settings)
                    left = describe_duration(max(0.0, self.seconds - spent))
                    say(
                        f"{counted(len(self.written), 'session')}: the part of the errors that "
                        f"more of them make smaller is {100 * error:.1f} %; {left} left"
                    )
                    is_late = spent + longest > self.seconds and math.isfinite(error)
                    if error <= self.error or is_late:
                        return error
                self._run_session(group, max(0.0, self.seconds - spent))
                longest = max(longest, time.monotonic() - begin - spent)
            raise AssertionError("there is always a next session")
        except KeyboardInterrupt:
            kept = "no session had finished"
            if self.written:
                kept = f"{counted(len(self.written), 'session')} are stored"
            raise CommandError(f"interrupted; {kept}", INTERRUPTED) from None

    def largest_error(self, settings: Sequence[DecodingConfig]) -> float:
        """The largest part of the relative standard error of what a setting costs on this device
        that more sessions of this call can bring to 0 (see `Prices.error_in_sitting`).

        Infinite if one was not timed there in this call's sitting: a GPU may have given up CUDA
        graphs since its session.
        """
        prices = read_prices(self.sweep.storage)
        timed = zip(prices.sessions, prices.sittings, strict=True)
        sitting = next(sitting for session, sitting in timed if session.call == self.call)
        try:
            return max(
                prices.of(config.shape, self.batch, self.device)[0].error_in_sitting(
                    config.shape, sitting
                )
                for config in settings
            )
        except MetricUnavailable:
            return math.inf

    def _plan(self, settings: Sequence[DecodingConfig]) -> TimingSession:
        """A session of vanilla and settings, on captions that its number decides.

        Raises:
            CommandError: too few captions.
        """
        vanilla = self.sweep.identity.baseline
        while True:
            # this sweep may be timed elsewhere too
            number = random.SystemRandom().randint(_FIRST_NUMBER, _LAST_NUMBER)
            try:
                session = plan_session(
                    [vanilla, *settings],
                    len(self.captions),
                    images=self.images,
                    batches=[self.batch],
                    repetitions=1,
                    seed=self.experiment.seed,
                    number=number,
                )
            except ValueError as error:
                problem = str(error).partition(";")[0]
                raise CommandError(
                    f"{problem}; give a smaller --batch or --images", WRONG_USAGE
                ) from None
            if not self.sweep.storage.exists(session.name(self.experiment)):
                return session

    def _run_session(self, settings: Sequence[DecodingConfig], left: float) -> None:
        """Time a session and store it. left: seconds until the time is spent."""
        session = self._plan(settings)
        start = time.perf_counter()
        # each config warms up with one
        batches = len(session.configs) * (1 + session.images // self.batch)
        smaller = f"; try --batch {self.batch // 2}" if self.batch > 1 else ""
        with (
            in_memory(f"at batch {self.batch}{smaller}"),
            ends_with(FAILED, ValueError, OSError, DecodingError),
        ):
            with _progress(f"session {len(self.written) + 1}", batches, left) as advance:
                table, facts = run_session(self.engines, self.captions, session, self.call, advance)
            common = shard_metadata(
                session, self.experiment, self.captions, self.engines.models.target.device
            )
            seconds = time.perf_counter() - start
            own = {"images": session.images, "seconds": seconds, "worker": TIME_WORKER}
            write_shard(self.sweep.storage, common["name"], table, common | facts | own)
        self.written.append(common["name"])


@contextmanager
def _progress(name: str, batches: int, left: float) -> Iterator[Callable[[], None]]:
    """A bar of a session with the time that is left, on a terminal; yields a function to call after
    each batch.
    """
    if not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(24),
        MofNCompleteColumn(),
    )
    whole = TextColumn(f"batches; at most {describe_duration(left)} in all")
    with Progress(
        *columns, whole, TimeRemainingColumn(), console=Console(stderr=True), transient=True
    ) as bar:
        task = bar.add_task(name, total=batches)
        yield lambda: bar.advance(task)
