"""Earlier sweeps of the same models: what a new sweep takes over from them (`launch --from`).

Images: a worker looks for a shard's images among those of the earlier sweeps first
(`workers.runtime.earlier`). So none is generated twice, and a sweep of more captions generates the
others alone.

Fronts: the configs on the earlier fronts run in the new sweep, after the configs that its file
enqueues, with the images that they have. So the new front has them too. Fronts are those of the new
sweep's objectives and constraints, where these were measured. The budget of trials is raised by the
number of these configs, that of images by the number of their images.

Results: before its first proposal, the search is told the earlier trials that are on no front, with
the state in which each ended, if they have all metrics of the objectives and constraints. That
needs the same captions, real images, number of images per caption and baseline, and the same device
if the search is for speed.

The store's file `earlier.json` has all of it, the reported trials included, written when the sweep
starts: a resumed sweep is the same one, whatever the earlier ones do meanwhile, and whatever
device it has then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from itertools import count as count_from
from typing import Any, Self

from orchestrator.front.questions import front_records
from orchestrator.launch.earlier_source import EarlierSweepError, Source
from orchestrator.run.racing import at_full_size
from orchestrator.store import files
from orchestrator.store.identity import Identity, plugins_of
from orchestrator.store.prices import violations
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted
from search_spaces.constraints import Constraint
from search_spaces.params import ConfigError
from search_spaces.sweep import VANILLA, SweepConfig
from search_spaces.sweep_sections import Enqueued
from search_spaces.trial import DecodingConfig
from workers.data.checked_json import OtherVersionError, dump_checked, load_checked
from workers.data.shards import plan_quality
from workers.data.storage import Storage


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a sweep takes over."""

    sources: tuple[Source, ...] = ()
    front: tuple[Enqueued, ...] = ()  # the configs that run after those of `enqueue`

    @classmethod
    def read(cls, locations: Sequence[str], sweep: SweepConfig) -> Self:
        """What a new sweep takes over from others at these places.

        Raises:
            NoSweepError, ValueError: see `Sweep.open`.
            EarlierSweepError: one is given twice, has another seed, or its own file of earlier
                sweeps is damaged.
        """
        sweeps: dict[str, tuple[Sweep, Sweep]] = {}  # as they are, and by the new sweep's goals
        running: set[DecodingConfig] = set()
        front: dict[DecodingConfig, str] = {}
        labels = {VANILLA, *(entry.label for entry in sweep.enqueue)}
        for earlier in map(Sweep.open, locations):
            if earlier.storage.uri in sweeps:
                raise EarlierSweepError(f"--from {earlier.name}: given twice; name it once")
            if earlier.identity.seed != sweep.seed:
                raise EarlierSweepError(
                    f"--from {earlier.name}: its images have the seed {earlier.identity.seed}, "
                    f"this sweep {sweep.seed}; give both the same, or leave this sweep out"
                )
            compared = _as_new(earlier, sweep)
            sweeps[earlier.storage.uri] = earlier, compared
            # the target's own, if the sweep does not say
            sampling = sweep.sampling or earlier.identity.sampling
            running |= {
                entry.config.with_sampling(entry.config.sampling or sampling)
                for entry in sweep.enqueue
            }
            running.add(DecodingConfig(sampling=sampling))
            for record in front_records(compared):
                config = record.config
                if config is None or config in running:
                    continue
                running.add(config)
                front[config] = _free_label(record, earlier.name, labels)
                labels.add(front[config])
        sources = tuple(
            Source.read(earlier, *_expected(compared, running, sweep.constraints))
            for earlier, compared in sweeps.values()
        )
        return cls(sources, tuple(Enqueued(label, config) for config, label in front.items()))

    def extend(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with the earlier fronts' configs after its own, and budgets that are larger by
        them and their images. The stored file of a resumed sweep has them already.
        """
        own = {entry.config for entry in sweep.enqueue}
        front = [entry for entry in self.front if entry.config not in own]
        count = len(front)
        budget = replace(sweep.budget, trials=sweep.budget.trials + count)
        if budget.images is not None:
            each = sweep.captions.count * sweep.quality.samples
            budget = replace(budget, images=budget.images + count * each)
        return replace(sweep, enqueue=(*sweep.enqueue, *front), budget=budget)

    def decide(self, sweep: SweepConfig, facts: Mapping[str, Any]) -> Self:
        """The same with only those trials that the search of a new sweep is told, each once, and
        one quality for the lossless settings of all. facts: of a worker.
        """
        reported: dict[DecodingConfig, str] = {}
        told: list[TrialRecord] = []
        sources = []
        for source in self.sources:
            decided = source.decide(sweep, facts, reported)
            groups = source.groups
            records = [
                replace(record, metrics={**record.metrics, **groups.values_in_full(record, told)})
                for record in decided.records
            ]
            configs = (record.config for record in records if record.config is not None)
            reported |= dict.fromkeys(configs, source.name)
            told += records
            sources.append(replace(decided, records=tuple(records)))
        return replace(self, sources=tuple(sources))

    @property
    def reported_trials(self) -> list[TrialRecord]:
        """The trials that the search is told, once it is decided which (see `decide`)."""
        return [record for source in self.sources for record in source.records]

    @property
    def trials(self) -> int:
        """The number of trials that the settings of `front` were chosen from. One that several
        sweeps share counts for each.
        """
        return sum(source.trials for source in self.sources)

    @property
    def seconds_per_image(self) -> float | None:
        """Seconds of a worker for an image that it generates, the mean over the earlier sweeps'
        trials; None without any. Images that were copied take none.
        """
        seconds = 0.0
        images = 0
        for source in self.sources:
            for record in Sweep.open(source.store).records:
                if record.seconds:
                    seconds += record.seconds
                    images += record.images - record.taken
        return seconds / images if images else None

    def copies(self, sweep: SweepConfig, captions: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """The shards of the first trials, those of `enqueue`, that can be copied: number of the
        trial, index of the source, number of images. captions: see `Source.places`.
        """
        if sweep.sampling is not None:  # if not, it is the target's, which is not known yet
            sweep = sweep.resolve(sweep.sampling)
        quality = sweep.quality
        ends = sweep.racing.rungs if sweep.racing else ()
        all_places = [source.places(sweep, captions) for source in self.sources]
        found: list[tuple[int, int, int]] = []
        for number, entry in enumerate(sweep.enqueue):
            if entry.config.sampling is None:
                continue
            digest = entry.config.digest()
            # how many of its captions each source has images of
            counts = [source.captions_of(digest, quality.samples) for source in self.sources]
            shards = plan_quality(
                entry.config, captions["count"], quality.shard, quality.samples, quality.batch, ends
            )
            for shard in shards:
                for index, (places, own) in enumerate(zip(all_places, counts, strict=True)):
                    needed = places[shard.start : shard.stop]
                    if needed and max(needed) < own:
                        found.append((number, index, shard.images))
                        break
        return found

    def describe(
        self,
        sweep: SweepConfig,
        captions: Mapping[str, Any],
        facts: Mapping[str, Any] | None = None,
    ) -> list[str]:
        """A sentence on what is taken over from each sweep.

        captions: see `Source.places`. facts: see `Source.incomparable`; None: the trials that the
        search is told are decided already.
        """
        lines: list[str] = []
        copies = self.copies(sweep, captions)
        decided = self if facts is None else self.decide(sweep, facts)
        for index, source in enumerate(decided.sources):
            own = [(number, images) for number, place, images in copies if place == index]
            images = counted(sum(images for _, images in own), "image")
            settings = counted(len({number for number, _ in own}), "setting")
            lines.append(
                f"{source.name}: {images} of {settings} among the first trials; the search is told "
                f"{source.describe_reported()}"
            )
        return lines

    def to_json(self) -> bytes:
        sources = [source.to_mapping() for source in self.sources]
        front = [entry.to_mapping() for entry in self.front]
        return dump_checked({"sources": sources, "front": front})

    @classmethod
    def stored(cls, storage: Storage) -> Self | None:
        """What the sweep of a store has taken over; None if it is a new one, or took over nothing.

        Raises:
            ValueError: the file is damaged, or another version of specfrontier wrote it.
        """
        if not storage.exists(files.EARLIER):
            return None
        where = storage.locate(files.EARLIER)
        fix = "launch under another --name, with the same --from"
        try:
            plain = load_checked(storage.read(files.EARLIER))
        except ValueError as error:
            raise ValueError(f"{where}: {error}; {fix}") from error
        try:
            with plugins_of(storage):
                front = tuple(Enqueued.read(entry, None) for entry in plain["front"])
                return cls(tuple(map(Source.from_mapping, plain["sources"])), front)
        except ConfigError as error:  # of a plugin that is not loaded
            raise ConfigError(error.path, error.problem, where) from error
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where}: {OtherVersionError(error)}; {fix}") from error

    def at(self, places: Mapping[str, str]) -> Self:
        """The same with these places of the sources, by their names without credentials; the file
        has no others.
        """
        sources = [
            replace(source, store=places.get(source.store, source.store)) for source in self.sources
        ]
        return replace(self, sources=tuple(sources))

    def worker_arguments(self) -> list[dict[str, Any]]:
        """For the workers (see `WorkerSpec`)."""
        return [source.worker_arguments() for source in self.sources]

    @property
    def required_facts(self) -> dict[str, Any]:
        """Facts that workers must share with those that generated the images; empty without any."""
        return next((source.required_facts for source in self.sources if source.shards), {})


def _free_label(record: TrialRecord, sweep: str, labels: Collection[str]) -> str:
    """A label that is not among `labels`: the record's own, or its number in the sweep of this
    name.
    """
    numbered = f"{sweep} {record.number}"  # of two sweeps of one name, both may have it
    names = chain([record.label, numbered], (f"{numbered} ({count})" for count in count_from(2)))
    return next(name for name in names if name and name not in labels)


def _as_new(earlier: Sweep, sweep: SweepConfig) -> Sweep:
    """The earlier sweep with the new one's objectives, if all were measured, and constraints, as
    far as they were.
    """
    known = earlier.identity.metrics
    vanilla = earlier.baseline
    goals = [(objective.metric, objective.direction) for objective in sweep.objectives]
    if all(name in known for name, _ in goals):
        metrics = tuple(
            replace(known[name], direction=given or known[name].direction) for name, given in goals
        )
        earlier = replace(earlier, identity=replace(earlier.identity, objectives=metrics))
    if vanilla is None:
        return earlier
    records = [
        _with_violations(record, sweep.constraints, earlier.identity, vanilla)
        for record in earlier.records
    ]
    return replace(earlier, records=tuple(records))


def _with_violations(
    record: TrialRecord, constraints: Sequence[Constraint], identity: Identity, vanilla: TrialRecord
) -> TrialRecord:
    """An earlier sweep's trial with its violations of a new one's constraints, as far as they were
    measured.
    """
    limits = [limit for limit in constraints if limit.metric in identity.metrics]
    return replace(record, constraints=violations(record, limits, [vanilla]))


def _expected(
    sweep: Sweep, running: Collection[DecodingConfig], constraints: Sequence[Constraint]
) -> tuple[list[TrialRecord], dict[str, list[int]]]:
    """The records that the search may be told, without what it does not need, and the others'
    numbers by reason. A group of lossless settings has its first member's values, as in the sweep
    that measured it, whose vanilla runs again with the images that it has.

    Args:
        sweep: the earlier sweep.
        running: configs that the new sweep runs itself.
        constraints: the new sweep's.

    Raises:
        EarlierSweepError: its own file of earlier sweeps is damaged.
    """
    try:
        groups = sweep.told_groups
    except ValueError as error:
        raise EarlierSweepError(f"--from {sweep.name}: {error}, or leave this sweep out") from error
    told = groups.all_as_told(sweep.records)
    baseline = sweep.baseline
    vanilla = next((known for known in told if baseline and known.number == baseline.number), None)
    found: list[TrialRecord] = []
    left_out: dict[str, list[int]] = {}
    for record in told:
        reason = None
        if record.config is None:
            reason = "no valid setting"
        elif record.duplicate_of is not None:
            reason = "repeats of other trials"
        elif record.config in running:
            reason = "run again"
        if reason is not None:
            left_out.setdefault(reason, []).append(record.number)
            continue
        if vanilla is not None:
            record = _with_violations(record, constraints, sweep.identity, vanilla)
            record = at_full_size(record, vanilla, groups.values_in_full(record, told))
        # as its file will have it: with the values of its group as if they were its own
        known = {name: replace(entry, noises=()) for name, entry in record.metrics.items()}
        record = replace(record, metrics=known, own=())
        found.append(replace(record, history=(), passes={}, shards=()))
    return found, left_out
