"""One earlier sweep, and which of its images and results a new one may take over.

Images depend on the models, the seed, the extractors and the precision; which ones are copied, the
captions say. Results can be compared with the new sweep's if captions, reference, samples and
baseline are the same, and the device if the search is for speed.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from orchestrator.cluster.placement import diff_images
from orchestrator.store import files
from orchestrator.store.identity import Identity
from orchestrator.store.lossless import QualityGroups
from orchestrator.store.prices import is_priced
from orchestrator.store.records import TrialRecord, may_compare_speeds
from orchestrator.store.sweep import Sweep
from orchestrator.text import counted, ranges
from search_spaces.documents import describe_differences, differences
from search_spaces.params import ConfigError, at, expect_mapping
from search_spaces.plain_data import field_types, fit_entries, fit_type
from search_spaces.samplers import SAMPLERS
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.captions import read_captions
from workers.data.checked_json import parse_checked
from workers.data.shards import FORMAT, Experiment
from workers.data.storage import Storage
from workers.metrics.definition import Metric
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
    "metrics",
    "grid",
)
# of the experiment, without captions and precision
_PARTS = ("format", "seed", "models", "extractors")


class EarlierSweepError(ValueError):
    """An earlier sweep's results cannot be taken over; the message names it, what differs, and the
    fix.
    """


@dataclass(frozen=True, slots=True)
class Source:
    """One earlier sweep, as it was when the new one started."""

    store: str  # its folder or URI
    name: str
    facts: Mapping[str, Any]  # what its identity says of its images and values (`_FACTS`)
    hardware: str  # the device of its speeds; "" if it has none
    # The number of its trials and of those of the sweeps that it took over itself, because its
    # front was chosen from all of them.
    trials: int
    # The files of its images by their config's digest, and the numbers of the images.
    shards: Mapping[str, tuple[str, ...]]
    images: Mapping[str, int]
    # Its trials that the new sweep does not run, with the metrics that are expected on all images,
    # and the new sweep's constraints. Once the new sweep has started: those that its search was
    # told (see `Earlier.decide`).
    records: tuple[TrialRecord, ...]
    # the numbers of the others by the reason why the search is not told them
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        sweep: Sweep,
        records: Sequence[TrialRecord],
        left_out: Mapping[str, Sequence[int]],
    ) -> Self:
        """The sweep as it is now.

        Args:
            sweep: the earlier sweep.
            records: see `Source`.
            left_out: see `Source`.
        """
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
            {reason: tuple(numbers) for reason, numbers in left_out.items()},
        )

    def check(self, facts: Mapping[str, Any]) -> None:
        """Check that the new sweep's images would be the same ones. facts: its `format`, `seed`,
        `models` and `extractors`.

        Raises:
            EarlierSweepError: they depend on something else.
        """
        own, new = ({part: given[part] for part in _PARTS} for given in (self.facts, facts))
        if changes := differences(own, new):
            raise self._refused(f"depend on other values: {describe_differences(changes)}")

    def check_loaded(self, experiment: Experiment, facts: Mapping[str, Any]) -> None:
        """As `check`, with all that images depend on. facts: of a worker."""
        self.check({"format": FORMAT, "seed": experiment.seed, **facts})
        of_own_captions = replace(experiment, captions=self.facts["captions"]["hash"])
        if of_own_captions.digest() != self.facts["experiment"]:
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
        goals = [name for name in _goals(sweep) if name in self.facts["metrics"]]
        goals = [name for name in goals if name in facts.get("metrics", ())]
        own["metrics"] = _meanings(self.facts["metrics"], goals)
        new["metrics"] = _meanings(facts.get("metrics", {}), goals)
        own["captions"] = own["captions"]["hash"]
        new["captions"] = new["captions"]["hash"]
        if any(map(is_priced, _goals(sweep))):
            timing = sweep.timing.to_mapping()
            device = facts.get("timing_device", "")
            for key in ("batch", "nodes"):
                if timing.get(key):
                    own[key] = self.facts["timing"].get(key)
            new |= timing
            # with named nodes, those that time may not have the device of the first worker
            if not timing.get("nodes") and not may_compare_speeds(self.hardware, device):
                own["timing_device"] = self.hardware
        return differences(own, {key: new[key] for key in own})

    def decide(
        self, sweep: SweepConfig, facts: Mapping[str, Any], reported: Mapping[DecodingConfig, str]
    ) -> Self:
        """The same with only those trials that the search of a new sweep is told: none if their
        values cannot be compared with its own.

        Args:
            sweep: the new sweep.
            facts: see `incomparable`.
            reported: the configs that other sweeps tell, with the names of these sweeps.
        """
        changes = describe_differences(self.incomparable(sweep, facts))
        goals = _goals(sweep)
        kept: list[TrialRecord] = []
        left_out = {reason: list(numbers) for reason, numbers in self.left_out.items()}
        for record in self.records:
            config = record.config
            assert config is not None, "a trial without one is left out when the sweep is read"
            missing = sorted(goals - record.metrics.keys())
            if changes:
                reason = changes
            elif config in reported:
                reason = f"told from {reported[config]}"
            elif missing and not record.has_failed:
                reason = f"without {' and '.join(missing)}"
            elif not self._is_usable(config, sweep):
                reason = "outside the new space"
            else:
                # other metrics of these names may be other ones (see `incomparable`)
                known = {name: entry for name, entry in record.metrics.items() if name in goals}
                kept.append(replace(record, metrics=known))
                continue
            left_out.setdefault(reason, []).append(record.number)
        numbers = {reason: tuple(found) for reason, found in left_out.items()}
        return replace(self, records=tuple(kept), left_out=numbers)

    def _is_usable(self, config: DecodingConfig, sweep: SweepConfig) -> bool:
        """Whether the search of a new sweep can use the result of a config: one of its space, or
        any if it chooses from a pool.
        """
        if SAMPLERS.lookup(sweep.search.sampler).from_pool:
            return True
        # the target's own sampling, if the sweep does not say
        sampling = sweep.sampling or DecodingConfig.from_mapping(self.facts["baseline"]).sampling
        return sweep.space.params_of(config, sampling or Sampling()) is not None

    @property
    def groups(self) -> QualityGroups:
        """The groups of lossless settings among its trials."""
        metrics = self.facts["metrics"]
        return QualityGroups(
            {name: Metric.from_mapping(name, plain) for name, plain in metrics.items()},
            DecodingConfig.from_mapping(self.facts["baseline"]).sampling or Sampling(),
            self.facts["grid"][1],
        )

    def describe_reported(self) -> str:
        """Which trials the search is told, and why not the others, once it is decided: `2 trials:
        3, 7; not told: 0, 1 (run again)`.
        """
        told = [record.number for record in self.records]
        text = f"{counted(len(told), 'trial')}: {ranges(told)}" if told else "no trial"
        others = [f"{ranges(numbers)} ({reason})" for reason, numbers in self.left_out.items()]
        return f"{text}; not told: {', '.join(others)}" if others else text

    def places(self, sweep: SweepConfig, captions: Mapping[str, Any]) -> list[int]:
        """The place of each caption of a new sweep among its own, the largest integer for one that
        is not among them; empty if its images cannot be reached. captions: `hash` and `count` of
        the new sweep's.
        """
        try:
            images = EarlierImages.open(self.worker_arguments())
            if images is None or not images.storage.exists(files.IDENTITY) or not self.images:
                return []
            if captions["hash"] == self.facts["captions"]["hash"]:
                return list(range(captions["count"]))
            new = read_captions(**sweep.captions.to_mapping())
            most = max(self.images, key=lambda digest: self.images[digest])
            own = {caption: place for place, caption in enumerate(images.captions(most))}
        except (OSError, ValueError):  # no such place, or the captions are another machine's
            return []
        return [own.get((caption.id, caption.text), sys.maxsize) for caption in new]

    def captions_of(self, digest: str, samples: int) -> int:
        """How many of its captions have `samples` images of a config, by its digest."""
        own = int(self.facts["samples"])
        if samples > own:
            return 0
        return self.images.get(digest, 0) // own

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
            "left_out": {reason: list(numbers) for reason, numbers in self.left_out.items()},
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
            plain_types = {"baseline": Mapping[str, Any] | None, "metrics": Mapping[str, Any]}
            fit_entries({**field_types(Identity), **plain_types}, facts)
            if missing := {"hash", "count"} - facts["captions"].keys():
                raise ConfigError(("captions",), f"lacks {', '.join(sorted(missing))}")
        if found["trials"] < 0:
            raise ConfigError(("trials",), "is negative")
        if not all(reason.isprintable() for reason in found["left_out"]):
            raise ConfigError(("left_out",), "must have no control characters")
        records = tuple(TrialRecord.from_json(record.encode()) for record in found["records"])
        return cls(**found | {"records": records})


def _meanings(metrics: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """What metrics in plain data mean (see `Metric.meaning`)."""
    return {name: Metric.from_mapping(name, metrics[name]).meaning for name in names}


def _goals(sweep: SweepConfig) -> set[str]:
    """The metrics of a sweep's objectives and constraints."""
    return {
        *(objective.metric for objective in sweep.objectives),
        *(limit.metric for limit in sweep.constraints),
    }


def _trials_before(sweep: Sweep) -> int:
    """The number of trials of the sweeps that a sweep took over, and of those that they did."""
    if not sweep.storage.exists(files.EARLIER):
        return 0

    def count(entries: dict[str, Any]) -> int:
        counts = [fit_type(int, source["trials"]) for source in entries["sources"]]
        if min(counts, default=0) < 0:
            raise ValueError("a number of trials is negative")
        return sum(counts)

    try:
        return parse_checked(sweep.storage.read(files.EARLIER), count)
    except ValueError as error:
        raise EarlierSweepError(
            f"--from {sweep.name}: {sweep.storage.locate(files.EARLIER)}: {error}; restore the "
            "file, or leave this sweep out"
        ) from error
