"""Earlier sweeps of the same models: what a new sweep takes over from them (`launch --from`).

Images: a worker looks for a shard's images among those of the earlier sweeps first (`workers.runtime.earlier`). So none
is generated twice, and a sweep of more captions generates the others alone.

Fronts: the configs on the earlier fronts, by the new sweep's objectives and constraints where these were measured, run
after those of `enqueue`, on the images that they have, so that the new front has them too. The budget of trials is
raised by their number.

Results: the search is told the other trials as finished, stopped or failed, whatever they are, before its first
proposal, if they have all metrics of the objectives and constraints. It needs the same captions, reference, samples and
baseline for that, and the same device if it searches for speed.

The store's file `earlier.json` has all of it, written when the sweep starts: a resumed sweep is the same one, whatever
the earlier ones do meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from itertools import count as count_from
from typing import Any, Self

from orchestrator.results.prices import is_priced, violations
from orchestrator.results.store import EARLIER, plugins_of
from orchestrator.results.sweep import Sweep
from orchestrator.results.trials import FAILED, TrialRecord, may_compare_speeds
from orchestrator.run.placement import diff_images
from orchestrator.run.racing import at_full_size
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import Enqueued
from search_spaces.trial import DecodingConfig
from workers.data.checked_json import dump_checked, load_checked
from workers.data.shards import FORMAT, Experiment
from workers.data.storage import Storage

_FACTS = ("experiment", "format", "models", "extractors", "captions", "reference", "seed", "samples", "baseline",
          "timing", "device", "numerics")  # fmt: skip
_PARTS = ("format", "models", "extractors", "seed")  # of the experiment, besides captions and precision


class EarlierSweepError(ValueError):
    """An earlier sweep's results cannot be taken over; the message names it, what differs, and the fix."""


@dataclass(frozen=True, slots=True)
class Source:
    """One earlier sweep, as it was when the new one started.

    store: its folder or URI. facts: of its identity (`_FACTS`). hardware: of the device of its speeds; "" if it has
    none. shards: the files of its images by their config's digest. records: its trials that the new sweep does not run,
    with the metrics that are expected on all images, and the new sweep's constraints (see `_as_new`).
    """

    store: str
    name: str
    facts: Mapping[str, Any]
    hardware: str
    shards: Mapping[str, tuple[str, ...]]
    records: tuple[TrialRecord, ...]

    @classmethod
    def read(cls, sweep: Sweep, records: Sequence[TrialRecord]) -> Self:
        """The sweep as it is now. records: those to tell (see `Source`)."""
        plain = json.loads(json.dumps(sweep.identity.to_mapping(), default=str))
        shards: dict[str, dict[str, None]] = {}
        for record in sweep.records:
            if record.config is not None:
                shards.setdefault(record.digest, {}).update(dict.fromkeys(record.image_shards))
        return cls(
            sweep.storage.uri,
            sweep.name,
            {name: plain[name] for name in _FACTS},
            sweep.machine.device.hardware if sweep.machine else "",
            {digest: tuple(names) for digest, names in shards.items() if names},
            tuple(records),
        )

    def check(self, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        """Check that the new sweep's images would be the same ones. facts: of a worker.

        Raises:
            EarlierSweepError: they depend on something else.
        """
        if replace(experiment, captions=self.facts["captions"]["hash"]).digest() == self.facts["experiment"]:
            if problem := diff_images(self.required_facts, facts):
                raise EarlierSweepError(f"--from {self.name}: its images are others: {problem}; leave this sweep out")
            return
        own = {"format": FORMAT, "seed": experiment.seed, **{part: facts[part] for part in ("models", "extractors")}}
        changed = [part for part in _PARTS if own[part] != self.facts[part]] or ["the models' dtype"]
        raise EarlierSweepError(
            f"--from {self.name}: its images depend on other values of {', '.join(changed)}; restore them, or leave "
            "this sweep out"
        )

    @property
    def required_facts(self) -> dict[str, Any]:
        """Facts that workers must share with those that generated its images; empty without any."""
        return {name: self.facts[name] for name in ("device", "numerics") if self.shards and self.facts[name]}

    def results(self, sweep: SweepConfig, facts: Mapping[str, Any]) -> list[TrialRecord]:
        """The trials to tell to the search of a new sweep; none if their values cannot be compared with its own."""
        names = [*(objective.metric for objective in sweep.objectives), *(c.metric for c in sweep.constraints)]
        comparable = (
            self.facts["captions"]["hash"] == facts["captions"]["hash"]
            and self.facts["reference"] == facts["reference"]
            and self.facts["samples"] == sweep.quality.samples
            and self.facts["baseline"] == DecodingConfig(sampling=sweep.sampling).to_mapping()
        )
        if any(map(is_priced, names)):
            own, new = self.facts["timing"], sweep.timing.to_mapping()
            comparable &= own.get("batch") == new["batch"]
            if nodes := new.get("nodes"):  # those that time may not have the device of the first worker
                comparable &= own.get("nodes") == nodes
            else:
                comparable &= may_compare_speeds(self.hardware, facts["timing_device"])
        if not comparable:
            return []
        return [record for record in self.records if record.state == FAILED or record.metrics.keys() >= {*names}]

    def to_mapping(self) -> dict[str, Any]:
        """Plain data; without credentials."""
        records = [record.to_json().decode() for record in self.records]
        shards = {digest: list(names) for digest, names in self.shards.items()}
        return {
            "store": Storage(self.store).display_name, "name": self.name, "facts": dict(self.facts),
            "hardware": self.hardware, "shards": shards, "records": records,
        }  # fmt: skip

    @classmethod
    def from_mapping(cls, plain: Mapping[str, Any]) -> Self:
        records = tuple(TrialRecord.from_json(record.encode()) for record in plain["records"])
        shards = {digest: tuple(names) for digest, names in plain["shards"].items()}
        return cls(plain["store"], plain["name"], plain["facts"], plain["hardware"], shards, records)


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
            EarlierSweepError: one is given twice, or has another seed.
        """
        sweeps: dict[str, tuple[Sweep, Sweep]] = {}  # as they are, and by the new sweep's goals
        running: set[DecodingConfig] = set()
        front: dict[DecodingConfig, str] = {}
        labels = {entry.label for entry in sweep.enqueue}
        for earlier in map(Sweep.open, locations):
            if earlier.storage.uri in sweeps:
                raise EarlierSweepError(f"--from {earlier.name}: given twice; name it once")
            if earlier.identity.seed != sweep.seed:
                seeds = f"its images have the seed {earlier.identity.seed}, this sweep {sweep.seed}"
                raise EarlierSweepError(f"--from {earlier.name}: {seeds}; give both the same, or leave this sweep out")
            compared = _as_new(earlier, sweep)
            sweeps[earlier.storage.uri] = earlier, compared
            sampling = sweep.sampling or earlier.identity.sampling  # the target's own, if the sweep does not say
            running |= {entry.config.with_sampling(entry.config.sampling or sampling) for entry in sweep.enqueue}
            for record in compared.front_records:
                config = record.config
                if config is None or config.is_vanilla or config in running:
                    continue
                running.add(config)
                front[config] = _free_label(record, earlier.name, labels)
                labels.add(front[config])
        sources = tuple(Source.read(earlier, _expected(compared, running)) for earlier, compared in sweeps.values())
        return cls(sources, tuple(Enqueued(label, config) for config, label in front.items()))

    def extend(self, sweep: SweepConfig) -> SweepConfig:
        """The sweep with the earlier fronts' configs after its own, and a budget that is larger by their number."""
        budget = replace(sweep.budget, trials=sweep.budget.trials + len(self.front))
        return replace(sweep, enqueue=(*sweep.enqueue, *self.front), budget=budget)

    def to_json(self) -> bytes:
        front = [entry.to_mapping() for entry in self.front]
        return dump_checked({"sources": [source.to_mapping() for source in self.sources], "front": front}, indent=1)

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
        """The same with these places of the sources, by their names without credentials; the file has no others."""
        return replace(self, sources=tuple(replace(s, store=places.get(s.store, s.store)) for s in self.sources))

    def worker_arguments(self) -> list[dict[str, Any]]:
        """For the workers (see `WorkerSpec`)."""
        return [{"store": s.store, "shards": {d: list(names) for d, names in s.shards.items()}} for s in self.sources]

    @property
    def required_facts(self) -> dict[str, Any]:
        """Facts that workers must share with those that generated the images; empty without any."""
        return next((source.required_facts for source in self.sources if source.shards), {})


def _free_label(record: TrialRecord, sweep: str, labels: Collection[str]) -> str:
    """A label that is not among `labels`: the record's own, or its number in the sweep of this name."""
    numbered = f"{sweep} {record.number}"  # of two sweeps of one name, both may have it
    names = chain([record.label, numbered], (f"{numbered} ({count})" for count in count_from(2)))
    return next(name for name in names if name and name not in labels)


def _as_new(earlier: Sweep, sweep: SweepConfig) -> Sweep:
    """The earlier sweep with the new one's objectives, if all were measured, and constraints, as far as they were."""
    known, vanilla = earlier.identity.metrics, earlier.baseline
    goals = [(objective.metric, objective.direction) for objective in sweep.objectives]
    if all(name in known for name, _ in goals):
        metrics = tuple(replace(known[name], direction=given or known[name].direction) for name, given in goals)
        earlier = replace(earlier, identity=replace(earlier.identity, objectives=metrics))
    if vanilla is None:
        return earlier
    limits = [constraint for constraint in sweep.constraints if constraint.metric in known]
    records = (replace(record, constraints=violations(record, limits, [vanilla])) for record in earlier.records)
    return replace(earlier, records=tuple(records))


def _expected(sweep: Sweep, running: Collection[DecodingConfig]) -> list[TrialRecord]:
    """The records to tell, without what the search does not need. running: configs that the new sweep runs itself."""
    vanilla, found = sweep.baseline, list[TrialRecord]()
    for record in sweep.records:
        config = record.config
        if config is None or config.is_vanilla or config in running or record.duplicate_of is not None:
            continue
        if vanilla is not None:
            record = at_full_size(record, vanilla)
        found.append(replace(record, history=(), passes={}, shards=()))
    return found
