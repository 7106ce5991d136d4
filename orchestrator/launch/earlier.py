"""Earlier sweeps of the same models: what a new sweep takes over from them (`launch --from`).

Images: a worker looks for a shard's images among those of the earlier sweeps first
(`workers.runtime.earlier`). So none is generated twice, and a sweep of more captions generates the
others alone.

Fronts: the configs on the earlier fronts, by the new sweep's objectives and constraints where these
were measured, run after those of `enqueue`, on the images that they have, so that the new front has
them too. The budget of trials is raised by their number, that of images by theirs.

Results: the search is told the other trials as finished, stopped or failed, whatever they are,
before its first proposal, if they have all metrics of the objectives and constraints. It needs the
same captions, reference, samples and baseline for that, and the same device if it searches for
speed.

The store's file `earlier.json` has all of it, the trials that are told included, written when the
sweep starts: a resumed sweep is the same one, whatever the earlier ones do meanwhile, and whatever
device it has then.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from itertools import count as count_from
from typing import Any, Self

from orchestrator.cluster.placement import diff_images
from orchestrator.front.questions import front_records
from orchestrator.run.racing import at_full_size
from orchestrator.store.files import EARLIER, IDENTITY, Identity, plugins_of
from orchestrator.store.prices import is_priced, violations
from orchestrator.store.records import FAILED, TrialRecord, may_compare_speeds
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted
from search_spaces.documents import describe_differences, differences
from search_spaces.params import ConfigError, at, expect_mapping
from search_spaces.plain_data import field_types, fit_entries, fit_type
from search_spaces.sweep import VANILLA, SweepConfig
from search_spaces.sweep_sections import Enqueued
from search_spaces.trial import DecodingConfig
from workers.data.captions import read_captions
from workers.data.checked_json import dump_checked, load_checked
from workers.data.shards import FORMAT, Experiment, plan_quality
from workers.data.storage import Storage
from workers.runtime.earlier import EarlierImages

_FACTS = (
    "experiment",
    "format",
    "models",
    "extractors",
    "captions",
    "reference",
    "seed",
    "samples",
    "baseline",
    "timing",
    "device",
    "numerics",
)
# of the experiment, besides captions and precision
_PARTS = ("format", "seed", "models", "extractors")


class EarlierSweepError(ValueError):
    """An earlier sweep's results cannot be taken over; the message names it, what differs, and the
    fix.
    """


@dataclass(frozen=True, slots=True)
class Source:
    """One earlier sweep, as it was when the new one started.

    store: its folder or URI. facts: of its identity (`_FACTS`). hardware: of the device of its
    speeds; "" if it has none. trials: the number of its trials, and of those of the sweeps that it
    took over itself, because its front was chosen from all of them. shards: the files of its images
    by their config's digest. images: their numbers. records: its trials that the new sweep does not
    run, with the metrics that are expected on all images, and the new sweep's constraints (see
    `_as_new`); once the sweep has started, those that its search was told (see `Earlier.decide`).
    """

    store: str
    name: str
    facts: Mapping[str, Any]
    hardware: str
    trials: int
    shards: Mapping[str, tuple[str, ...]]
    images: Mapping[str, int]
    records: tuple[TrialRecord, ...]

    @classmethod
    def read(cls, sweep: Sweep, records: Sequence[TrialRecord]) -> Self:
        """The sweep as it is now. records: those to tell (see `Source`)."""
        plain = json.loads(json.dumps(sweep.identity.to_mapping(), default=str))
        shards: dict[str, dict[str, None]] = {}
        images: dict[str, int] = {}
        for record in sweep.records:
            if record.config is not None and record.image_shards:
                shards.setdefault(record.digest, {}).update(dict.fromkeys(record.image_shards))
                images[record.digest] = max(record.images, images.get(record.digest, 0))
        return cls(
            sweep.storage.uri,
            sweep.name,
            {name: plain[name] for name in _FACTS},
            sweep.machine.device.hardware if sweep.machine else "",
            len(sweep.records) + _trials_before(sweep),
            {digest: tuple(names) for digest, names in shards.items()},
            images,
            tuple(records),
        )

    def check(self, facts: Mapping[str, Any]) -> None:
        """Check that the new sweep's images would be the same ones. facts: its `format`, `seed`,
        `models` and `extractors`.

        Raises:
            EarlierSweepError: they depend on something else.
        """
        if changes := differences(
            {part: self.facts[part] for part in _PARTS}, {part: facts[part] for part in _PARTS}
        ):
            raise self._refused(f"depend on other values: {describe_differences(changes)}")

    def check_loaded(self, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        """As `check`, with all that images depend on. facts: of a worker."""
        self.check({"format": FORMAT, "seed": experiment.seed, **facts})
        if (
            replace(experiment, captions=self.facts["captions"]["hash"]).digest()
            != self.facts["experiment"]
        ):
            raise self._refused(
                f"depend on another dtype of the models than {experiment.precision}"
            )
        if problem := diff_images(self.required_facts, facts):
            raise self._refused(f"are others: {problem}")

    def _refused(self, problem: str) -> EarlierSweepError:
        return EarlierSweepError(
            f"--from {self.name}: its images {problem}; restore them, or leave this sweep out"
        )

    @property
    def required_facts(self) -> dict[str, Any]:
        """Facts that workers must share with those that generated its images; empty without any."""
        return {
            name: self.facts[name]
            for name in ("device", "numerics")
            if self.shards and self.facts[name]
        }

    def incomparable(
        self, sweep: SweepConfig, facts: Mapping[str, Any]
    ) -> dict[str, tuple[Any, Any]]:
        """Why its values cannot be compared with those of a new sweep: what differs, by key; empty
        if they can.

        facts: of a worker, as far as they are known before one has started.
        """
        new: dict[str, Any] = {**facts, "samples": sweep.quality.samples}
        if sweep.sampling is not None:
            new["baseline"] = DecodingConfig(sampling=sweep.sampling).to_mapping()
        own: dict[str, Any] = {
            key: self.facts[key]
            for key in ("captions", "reference", "samples", "baseline")
            if key in new
        }
        own["captions"], new["captions"] = own["captions"]["hash"], new["captions"]["hash"]
        if any(map(is_priced, _goals(sweep))):
            timing, device = sweep.timing.to_mapping(), facts.get("timing_device", "")
            own |= {
                key: self.facts["timing"].get(key) for key in ("batch", "nodes") if timing.get(key)
            }
            new |= timing
            # those that time may not have the device of the first worker if nodes are named
            if not timing.get("nodes") and not may_compare_speeds(self.hardware, device):
                own["timing_device"] = self.hardware
        return differences(own, {key: new[key] for key in own})

    def results(self, sweep: SweepConfig, facts: Mapping[str, Any]) -> list[TrialRecord]:
        """The trials to tell to the search of a new sweep; none if their values cannot be compared
        with its own.
        """
        if self.incomparable(sweep, facts):
            return []
        return [
            record
            for record in self.records
            if record.state == FAILED or record.metrics.keys() >= _goals(sweep)
        ]

    def places(self, sweep: SweepConfig, captions: Mapping[str, Any]) -> list[int]:
        """The place of each caption of a new sweep among its own, the largest integer for one that
        is not among them; empty if its images cannot be reached. captions: `hash` and `count` of
        the new sweep's.
        """
        try:
            images = EarlierImages.open(self.worker_arguments())
            if images is None or not images.storage.exists(IDENTITY) or not self.images:
                return []
            if captions["hash"] == self.facts["captions"]["hash"]:
                return list(range(captions["count"]))
            new = read_captions(**sweep.captions.to_mapping())
            most = max(self.images, key=lambda digest: self.images[digest])
            own = {caption: place for place, caption in enumerate(images.captions(most))}
        except (OSError, ValueError):  # no such place, or the captions are another machine's
            return []
        return [own.get((caption.id, caption.text), sys.maxsize) for caption in new]

    def worker_arguments(self) -> dict[str, Any]:
        """For `EarlierImages.open`."""
        return {
            "store": self.store,
            "shards": {digest: list(names) for digest, names in self.shards.items()},
        }

    def to_mapping(self) -> dict[str, Any]:
        """Plain data; without credentials."""
        records = [record.to_json().decode() for record in self.records]
        shards = {digest: list(names) for digest, names in self.shards.items()}
        return {
            "store": Storage(self.store).display_name,
            "name": self.name,
            "facts": dict(self.facts),
            "hardware": self.hardware,
            "trials": self.trials,
            "shards": shards,
            "images": dict(self.images),
            "records": records,
        }

    @classmethod
    def from_mapping(cls, plain: Mapping[str, Any]) -> Self:
        """Read what `to_mapping` wrote. Raises ValueError for anything else."""
        types = {**field_types(Source), "records": tuple[str, ...]}
        found = fit_entries(types, expect_mapping(plain, types))
        facts: Mapping[str, Any] = found.get("facts", {})
        if missing := [*(types.keys() - found.keys()), *(set(_FACTS) - facts.keys())]:
            raise ValueError(f"an earlier sweep lacks {', '.join(sorted(missing))}")
        with at("facts"):
            fit_entries({**field_types(Identity), "baseline": Mapping[str, Any] | None}, facts)
            if missing := {"hash", "count"} - facts["captions"].keys():
                raise ConfigError(("captions",), f"lacks {', '.join(sorted(missing))}")
        if found["trials"] < 0:
            raise ConfigError(("trials",), "is negative")
        records = tuple(TrialRecord.from_json(record.encode()) for record in found["records"])
        return cls(**found | {"records": records})


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a sweep takes over. front: the configs that run after those of `enqueue`."""

    sources: tuple[Source, ...] = ()
    front: tuple[Enqueued, ...] = ()

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
                seeds = f"its images have the seed {earlier.identity.seed}, this sweep {sweep.seed}"
                raise EarlierSweepError(
                    f"--from {earlier.name}: {seeds}; give both the same, or leave this sweep out"
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
            Source.read(earlier, _expected(compared, running))
            for earlier, compared in sweeps.values()
        )
        return cls(sources, tuple(Enqueued(label, config) for config, label in front.items()))

    def extend(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with the earlier fronts' configs after its own, and budgets that are larger by
        them and their images. The file that a sweep has stored has them already.
        """
        own, budget = {entry.config for entry in sweep.enqueue}, sweep.budget
        front = [entry for entry in self.front if entry.config not in own]
        count = len(front)
        images = (
            None
            if budget.images is None
            else budget.images + count * sweep.captions.count * sweep.quality.samples
        )
        budget = replace(budget, trials=budget.trials + count, images=images)
        return replace(sweep, enqueue=(*sweep.enqueue, *front), budget=budget)

    def decide(self, sweep: SweepConfig, facts: Mapping[str, Any]) -> Self:
        """The same with the trials alone that the search of a new sweep is told, each once. facts:
        of a worker.
        """
        told: dict[DecodingConfig | None, TrialRecord] = {}
        sources = []
        for source in self.sources:
            new = [record for record in source.results(sweep, facts) if record.config not in told]
            told |= {record.config: record for record in new}
            sources.append(replace(source, records=tuple(new)))
        return replace(self, sources=tuple(sources))

    @property
    def told(self) -> list[TrialRecord]:
        """The trials to tell the search, once it is decided which (see `decide`)."""
        return [record for source in self.sources for record in source.records]

    @property
    def trials(self) -> int:
        """The number of trials that the settings of `front` were chosen from. One that several
        sweeps share counts for each.
        """
        return sum(source.trials for source in self.sources)

    def copies(self, sweep: SweepConfig, captions: Mapping[str, Any]) -> list[tuple[int, int, int]]:
        """The shards of the first trials, those of `enqueue`, that can be copied: number of the
        trial, index of the source, number of images. captions: see `Source.places`.
        """
        if sweep.sampling is not None:  # else it is the target's, which is not known yet
            sweep = sweep.resolve(sweep.sampling)
        quality, rungs = sweep.quality, sweep.racing.rungs if sweep.racing else ()
        found, all_places = [], [source.places(sweep, captions) for source in self.sources]
        for number, entry in enumerate(sweep.enqueue):
            if entry.config.sampling is None:
                continue
            digest, count = entry.config.digest(), captions["count"]
            for shard in plan_quality(
                entry.config, count, quality.shard, quality.samples, quality.batch, rungs
            ):
                for index, (source, places) in enumerate(
                    zip(self.sources, all_places, strict=True)
                ):
                    samples = source.facts["samples"]
                    own = (
                        source.images.get(digest, 0) // samples if quality.samples <= samples else 0
                    )
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
        """A sentence on what is taken over from each sweep. captions: see `Source.places`. facts:
        see `Source.incomparable`; None: it is decided.
        """
        lines, copies = [], self.copies(sweep, captions)
        for index, source in enumerate(self.sources):
            records = source.records if facts is None else source.results(sweep, facts)
            told = (
                counted(len(records), "trial")
                if records
                else "no trial besides those that run again"
            )
            if facts is not None and (changes := source.incomparable(sweep, facts)):
                told = f"no trial, because {describe_differences(changes)}"
            own = [(number, images) for number, place, images in copies if place == index]
            of = f"{counted(len({number for number, _ in own}), 'setting')} among the first trials"
            images = f"{counted(sum(images for _, images in own), 'image')} of {of}"
            lines.append(f"{source.name}: {images}; the search is told {told}")
        return lines

    def to_json(self) -> bytes:
        front = [entry.to_mapping() for entry in self.front]
        return dump_checked(
            {"sources": [source.to_mapping() for source in self.sources], "front": front}, indent=1
        )

    @classmethod
    def stored(cls, storage: Storage) -> Self | None:
        """What the sweep of a store has taken over; None if it is a new one, or took over nothing.

        Raises:
            ValueError: the file is damaged.
        """
        if not storage.exists(EARLIER):
            return None
        try:
            with plugins_of(storage):
                plain = load_checked(storage.read(EARLIER))
                front = tuple(Enqueued.read(entry, None) for entry in plain["front"])
                return cls(tuple(map(Source.from_mapping, plain["sources"])), front)
        except ConfigError as error:  # of a plugin that is not loaded
            raise ConfigError(error.path, error.problem, storage.locate(EARLIER)) from error
        except (KeyError, TypeError, ValueError) as error:
            problem = f"damaged ({error}); launch under another --name, with the same --from"
            raise ValueError(f"{storage.locate(EARLIER)}: {problem}") from error

    def at(self, places: Mapping[str, str]) -> Self:
        """The same with these places of the sources, by their names without credentials; the file
        has no others.
        """
        return replace(
            self,
            sources=tuple(replace(s, store=places.get(s.store, s.store)) for s in self.sources),
        )

    def worker_arguments(self) -> list[dict[str, Any]]:
        """For the workers (see `WorkerSpec`)."""
        return [source.worker_arguments() for source in self.sources]

    @property
    def required_facts(self) -> dict[str, Any]:
        """Facts that workers must share with those that generated the images; empty without any."""
        return next((source.required_facts for source in self.sources if source.shards), {})


def _goals(sweep: SweepConfig) -> set[str]:
    """The metrics of a sweep's objectives and constraints."""
    return {
        *(objective.metric for objective in sweep.objectives),
        *(limit.metric for limit in sweep.constraints),
    }


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
    known, vanilla = earlier.identity.metrics, earlier.baseline
    goals = [(objective.metric, objective.direction) for objective in sweep.objectives]
    if all(name in known for name, _ in goals):
        metrics = tuple(
            replace(known[name], direction=given or known[name].direction) for name, given in goals
        )
        earlier = replace(earlier, identity=replace(earlier.identity, objectives=metrics))
    if vanilla is None:
        return earlier
    limits = [constraint for constraint in sweep.constraints if constraint.metric in known]
    records = (
        replace(record, constraints=violations(record, limits, [vanilla]))
        for record in earlier.records
    )
    return replace(earlier, records=tuple(records))


def _expected(sweep: Sweep, running: Collection[DecodingConfig]) -> list[TrialRecord]:
    """The records to tell, without what the search does not need. running: configs that the new
    sweep runs itself.
    """
    vanilla, found = sweep.baseline, list[TrialRecord]()
    for record in sweep.records:
        config = record.config
        if config is None or config in running or record.duplicate_of is not None:
            continue
        if vanilla is not None:
            record = at_full_size(record, vanilla)
        found.append(replace(record, history=(), passes={}, shards=()))
    return found


def _trials_before(sweep: Sweep) -> int:
    """The number of trials of the sweeps that a sweep took over, and of those that they did."""
    if not sweep.storage.exists(EARLIER):
        return 0
    try:
        counts = [
            fit_type(int, source["trials"])
            for source in load_checked(sweep.storage.read(EARLIER))["sources"]
        ]
        if min(counts, default=0) < 0:
            raise ValueError("a number of trials is negative")
        return sum(counts)
    except (KeyError, TypeError, ValueError) as error:
        problem = (
            f"{sweep.storage.locate(EARLIER)} is damaged ({error}); restore it, or leave this "
            "sweep out"
        )
        raise EarlierSweepError(f"--from {sweep.name}: {problem}") from error
