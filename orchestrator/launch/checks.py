"""The checks of a launch before any worker starts. Whatever would fail later, in the workers or
after their work, is refused here; workers repeat the checks that need loaded weights.

`CHECKS` and `FILE_CHECKS`, at the end, are in the order of the refusals. Before them,
`orchestrator.launch.read` has refused a wrong file of the sweep, wrong earlier sweeps, and a stored
sweep that is not to be resumed or differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from orchestrator.launch import surroundings
from orchestrator.launch.inspection import Inspection, in_section
from orchestrator.replay.predict import check_pool
from orchestrator.run.search import Search
from orchestrator.run.timing import session_of
from orchestrator.store.identity import check_unchanged
from search_spaces.constraints import split_batch
from search_spaces.documents import OVERRIDE
from search_spaces.params import ConfigError, at, unknown_choice
from search_spaces.space import MAX_CHECKED_BRANCHES
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.captions import captions_hash
from workers.data.reference import FILE, check_reference
from workers.data.shards import FORMAT
from workers.loading.models import Capabilities
from workers.metrics import fid
from workers.metrics.definition import DINOV2, FEATURES, Metric
from workers.metrics.estimate import BLOCKS
from workers.metrics.extractors import Extractors, unavailable_metrics
from workers.metrics.library import LibraryMetric, try_metric
from workers.metrics.registry import uses_timings
from workers.models.checkpoint_files import collect_notes

Check = Callable[[Inspection], object]

_DEBIASED = "fid_debiased"


def check(found: Inspection) -> None:
    """Raise an error for anything that would fail later. Starts and writes nothing, but for the
    files that --pull fetches. Takes a few seconds, and the time to read the reference images, or a
    resumed sweep's weights.

    Raises:
        ValueError, OSError: one line with the key or option, the file, the problem and the fix.
        PoolError: the Ray cluster does not respond.
    """
    with _located(found.request.sweep), collect_notes() as notes:
        for _, check_stage in CHECKS:
            check_stage(found)
        if found.has_files:  # else the cluster's machines have them, and its workers check them
            for _, check_stage in FILE_CHECKS:
                check_stage(found)
    found.notes.extend(notes)


@contextmanager
def _located(sweep: SweepConfig) -> Iterator[None]:
    """As `SweepConfig.locate_errors`; but an error about a section of the file that names a value
    which --set gave is located there.
    """
    with sweep.locate_errors():
        try:
            yield
        except ConfigError as error:
            if error.location or not _names_override(sweep, error):
                raise
            raise ConfigError(error.path, error.problem, OVERRIDE) from error


_MIN_NAMED = 2  # characters; a shorter value may be in any message


def _names_override(sweep: SweepConfig, error: ConfigError) -> bool:
    """Whether an error about a section names the value of one of its keys that --set gave."""
    size = len(error.path)
    if sweep.document is None or size == 0:
        return False
    for path, location in sweep.document.locations.items():
        if location != OVERRIDE or path[:size] != error.path or len(path) == size:
            continue
        value = sweep.document.data
        for key in path:
            value = value[int(key[1:-1])] if isinstance(value, list) else value[key]
        name = Path(str(value)).name  # messages may write a path in another form
        if len(name) < _MIN_NAMED:
            continue
        if re.search(rf"(?<!\w){re.escape(name)}(?!\w)", error.problem):
            return True
    return False


def _check_metric_names(found: Inspection) -> None:
    """Metrics that do not exist, or need another batch size of timing."""
    sweep = found.request.sweep
    for path, name in sweep.named_metrics:
        if name not in found.metrics:
            raise ConfigError(path, unknown_choice(name, found.metrics))
        size = split_batch(name)[1]
        if size is not None and size not in sweep.timing.batches[1:]:
            sizes = ", ".join(map(str, sweep.timing.batches))
            raise ConfigError(
                path,
                f"{name}: timing.batch lacks {size} after its first size ({sizes}); add it there",
            )


def _check_reference(found: Inspection) -> None:
    """A reference that does not suit the extractor, if that takes the images at their size."""
    sweep = found.request.sweep
    side = found.capabilities.image_size
    takes_images = found.extractors["features"].image_size in (None, side)
    if takes_images and sweep.reference.source != NO_REFERENCE:
        with in_section("reference"):
            check_reference(
                **sweep.reference.to_mapping(),
                extractors=tuple(found.extractors.values()),
                size=side,
                has_features=found.request.storage.exists(FILE),
            )


def _check_stored_captions(found: Inspection) -> None:
    """Captions that have changed since the sweep started."""
    identity = found.identity
    if identity is None or identity.captions.get("hash") == captions_hash(found.captions):
        return
    source = found.sweep.captions.source
    storage = found.request.storage
    raise ConfigError(
        ("captions",),
        f"{source} has changed since the sweep in {storage.display_name} started; restore the "
        "original, or launch under another --name",
    )


def _check_metrics(found: Inspection) -> None:
    """Metrics that cannot be computed with the sweep's models and captions."""
    sweep = found.sweep
    reasons = unavailable_metrics(
        [name for _, name in sweep.named_metrics],
        found.entry.folder,
        image_size=found.capabilities.image_size,
        captions=[caption.text for caption in found.captions],
        weights=found.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
        registered=found.metrics,
    )
    for path, name in sweep.named_metrics:
        if name in reasons:
            raise ConfigError(
                path,
                f"{name} is not available: {reasons[name]}; add what is missing, or remove the "
                "metric",
            )


def _check_torchmetrics(found: Inspection) -> None:
    """Classes of torchmetrics that give no number on noise of the images' size; their networks are
    loaded here.
    """
    sweep = found.sweep
    decisive = {metric.name for _, metric in found.decisive}
    for path, name in sweep.named_metrics:
        metric = found.metrics[name]
        if path[0] != "metrics" or not isinstance(metric, LibraryMetric):
            continue
        problem = try_metric(
            metric,
            image_size=found.capabilities.image_size,
            width=found.extractors[FEATURES].width,
            images=_replicate(len(found.captions)) * sweep.quality.samples,
            own_vanilla=name in decisive,
        )
        if problem is not None:
            raise ConfigError(path, f"{name} is not available: {problem}")


@dataclass(frozen=True, slots=True)
class _ImageCounts:
    """Whether a Fréchet distance has enough images for the covariance of its features.

    The test of racing, and fid_debiased, take off a bias of order 1 / n; too few images have other
    orders. Without a test, few images order trials well enough.
    """

    metric: str
    # Captions of the sweep, and images of each.
    captions: int
    samples: int
    # Features of an image.
    width: int

    def are_enough(self, captions: int) -> bool:
        """Whether so many captions are."""
        return _replicate(captions) * self.samples > self.width

    def describe(self, captions: int) -> str:
        """What is left of so many captions, which are too few."""
        left = _replicate(captions) * self.samples
        return (
            f"{captions} captions x {self.samples} leave {left} in a jackknife replicate, too few "
            f"for a covariance of {self.width} features"
        )

    def check_captions(self) -> None:
        """Raise ConfigError (no path) if the sweep has too few captions."""
        if not self.are_enough(self.captions):
            numbers = range(self.captions, (self.width + 2) * BLOCKS)
            enough = next(number for number in numbers if self.are_enough(number))
            raise ConfigError(
                (),
                f"{self.metric} needs more images: {self.describe(self.captions)}; raise "
                f"captions.count to at least {enough}",
            )

    def check_rung(self, captions: int) -> None:
        """Raise ConfigError (no path) if a rung of racing has too few captions."""
        if self.are_enough(captions):
            return
        numbers = range(BLOCKS, self.captions + BLOCKS, BLOCKS)
        least = next(number for number in numbers if self.are_enough(number))
        fix = "raise captions.count above" if least >= self.captions else "use rungs of at least"
        fix += f" {least}"
        if self.metric != _DEBIASED:
            fix += ", or use `stop: dominated`, which is not a test"
        raise ConfigError((), f"{self.metric} cannot be measured: {self.describe(captions)}; {fix}")


def _check_image_counts(found: Inspection) -> None:
    """Fréchet distances with too few images, on all captions or at a rung (see `_ImageCounts`)."""
    for path, metric in found.decisive:
        if metric.name not in fid.FRECHET_METRICS:
            continue
        counts = _ImageCounts(
            metric.name,
            len(found.captions),
            found.sweep.quality.samples,
            found.extractors[DINOV2 if DINOV2 in metric.needs else FEATURES].width,
        )
        with at(*path):
            counts.check_captions()
        for index, rung in enumerate(_tested_rungs(found.sweep, metric)):
            with at("racing", "rungs", f"[{index}]"):
                counts.check_rung(rung)


def _tested_rungs(sweep: SweepConfig, metric: Metric) -> tuple[int, ...]:
    """The rungs at which a Fréchet distance needs images for its covariance."""
    racing = sweep.racing
    if racing is None or (racing.error_rate is None and metric.name != _DEBIASED):
        return ()
    return racing.rungs


def _replicate(captions: int) -> int:
    """The captions of a jackknife replicate, which leaves out the largest block."""
    return captions - -(-captions // min(BLOCKS, captions))


def _check_timing(found: Inspection) -> None:
    """Too few captions for timing."""
    sweep = found.sweep
    if uses_timings(sweep.requested_metrics):
        with in_section("timing"):
            session_of(sweep, [DecodingConfig(sampling=sweep.sampling)], len(found.captions))


def _check_racing(found: Inspection) -> None:
    """Rungs that do not divide into equal blocks."""
    sweep = found.sweep
    for index, rung in enumerate(sweep.racing.rungs if sweep.racing else ()):
        if rung % min(BLOCKS, sweep.captions.count):
            raise ConfigError(
                ("racing", "rungs", f"[{index}]"),
                f"{rung} captions do not divide into {BLOCKS} equal blocks; use multiples of "
                f"{BLOCKS}",
            )


def _check_constraints(found: Inspection) -> None:
    """Constraints that multiply a value of vanilla that is 0 by definition."""
    for index, constraint in enumerate(found.sweep.constraints):
        vanilla = found.metrics[constraint.metric].vanilla
        if vanilla is not None:
            with at("constraints", f"[{index}]"):
                constraint.check_vanilla(vanilla)


def _check_objectives(found: Inspection) -> None:
    """Objectives that compare a trial's images with vanilla's: lossless settings differ there by
    the images that they happen to draw, so a search for the best would chase luck.
    """
    for index, objective in enumerate(found.sweep.objectives):
        metric = found.metrics[objective.metric]
        compares = not (metric.is_of_counts or metric.is_of_distribution)
        if compares and objective.against is None:
            raise ConfigError(
                ("objectives", f"[{index}]"),
                f"{metric.name} compares images with vanilla's: a lossless setting, which draws "
                "other samples of the same distribution, has a worse value than vanilla; optimise "
                "fid or fid_gain, or add `against: vanilla` if that is what you mean",
            )
        if not compares and objective.against is not None:
            raise ConfigError(
                ("objectives", f"[{index}]", "against"),
                f"{metric.name} does not compare images with vanilla's; leave it out",
            )


def _check_files(found: Inspection) -> None:
    """Check that the images of a resumed sweep, or of earlier ones, depend on the same files: all
    of them are read.

    Raises:
        IdentityError, EarlierSweepError: names the files' keys, with both hashes.
    """
    identity = found.identity
    earlier = found.request.earlier
    sources = earlier.sources if earlier and identity is None else ()
    if identity is None and not sources:
        return
    sweep = found.sweep
    entry = found.entry
    extractors = Extractors.load(
        entry.folder,
        image_size=found.capabilities.image_size,
        captions=[caption.text for caption in found.captions],
        device=torch.device("meta"),
        weights=entry.metrics,
        metrics=sorted(sweep.requested_metrics) or None,
    )
    facts = {
        "format": FORMAT,
        "seed": sweep.seed,
        "models": entry.hashes,
        "extractors": extractors.identities,
    }
    if identity is not None:
        check_unchanged(found.request.storage, identity, facts, ("models", "extractors"))
    for source in sources:
        source.check(facts)


def check_configs(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Check that the models support the enqueued configs and every branch of the space, at the ends
    of its ranges.

    Raises:
        ConfigError: names the label or the branch, and the key.
    """
    check_enqueued(sweep, capabilities)
    assert sweep.sampling is not None
    for branch in islice(sweep.space.branches(), MAX_CHECKED_BRANCHES):
        kinds = ", ".join(branch.params.values())
        path = ("space", f"({kinds})") if kinds else ("space",)
        for values in _corners([leaf.domain.corners for leaf in branch.leaves]):
            with at(*path):
                try:
                    config = branch.config(values, sweep.sampling)
                except ConfigError:
                    continue  # the space itself reported invalid corners when it was read
                capabilities.check(config)


def _corners(leaves: Sequence[Sequence[Any]]) -> Iterator[list[Any]]:
    """Values of leaves, of which the ends are given: all at their lowest, then each in turn at its
    highest.
    """
    lowest = [ends[0] for ends in leaves]
    yield lowest
    for index, ends in enumerate(leaves):
        yield [*lowest[:index], ends[-1], *lowest[index + 1 :]]


def check_enqueued(sweep: SweepConfig, capabilities: Capabilities) -> None:
    """Raise ConfigError, with the label, if the models do not support an enqueued config."""
    for entry in sweep.enqueue:
        with at("enqueue", entry.label):
            capabilities.check(entry.config)


#: Stage and check, in the order of the refusals.
CHECKS: tuple[tuple[str, Check], ...] = (
    ("address of notices", surroundings.check_webhook),
    ("resources of the workers", surroundings.check_resources),
    ("trials to revive", lambda found: found.request.revived),
    ("files to fetch", lambda found: found.missing_files),
    ("place of MLflow's runs", lambda found: found.tracking_uri),
    ("names of metrics", _check_metric_names),
    ("cluster", surroundings.check_cluster),
    ("folders", surroundings.check_folders),
    ("stored results", surroundings.check_stored_results),
    ("MLflow's address", surroundings.check_tracking_uri),
    ("studies and databases of others", surroundings.check_owners),
)
#: The checks that read the files of models, captions and reference, in the order of the refusals.
FILE_CHECKS: tuple[tuple[str, Check], ...] = (
    ("models", lambda found: found.models),
    ("feature extractors", lambda found: found.extractors),
    ("captions", lambda found: found.captions),
    ("reference", _check_reference),
    ("sampling", lambda found: found.sweep),
    ("captions of the stored sweep", _check_stored_captions),
    ("metrics", _check_metrics),
    ("metrics of torchmetrics", _check_torchmetrics),
    ("numbers of images", _check_image_counts),
    ("timing", _check_timing),
    ("racing", _check_racing),
    ("constraints", _check_constraints),
    ("objectives", _check_objectives),
    ("files of the stored sweep and of earlier ones", _check_files),
    ("enqueued settings and space", lambda found: check_configs(found.sweep, found.capabilities)),
    ("settings to predict", lambda found: check_pool(found.sweep, found.capabilities)),
    ("search", lambda found: Search(found.sweep, found.directions)),
)
