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
from orchestrator.launch.earlier_source import Source
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
from workers.data.reference import FILE, check_reference, count_images
from workers.data.shards import FORMAT
from workers.loading.models import Capabilities
from workers.metrics.definition import FEATURES, REFERENCE, Metric
from workers.metrics.estimate import BLOCKS
from workers.metrics.extractors import Extractors, unavailable_metrics
from workers.metrics.library import LibraryMetric, try_metric
from workers.metrics.registry import uses_timings
from workers.models.checkpoint_files import collect_notes

Check = Callable[[Inspection], object]

_DEBIASED = "fid_debiased"
_SCENES = "scenes"  # the source of captions, or of real images, that are built in


def check(inspection: Inspection) -> None:
    """Raise an error for anything that would fail later. Starts and writes nothing, but for the
    files that --pull fetches. Takes a few seconds, and the time to read the reference images, or a
    resumed sweep's weights.

    Raises:
        ValueError, OSError: one line with the key or option, the file, the problem and the fix.
        PoolError: the Ray cluster does not respond.
    """
    with _located(inspection.request.sweep), collect_notes() as notes:
        for _, check_stage in CHECKS:
            check_stage(inspection)
        if (
            inspection.has_files
        ):  # else the cluster's machines have them, and its workers check them
            for _, check_stage in FILE_CHECKS:
                check_stage(inspection)
    inspection.notes.extend(notes)


@contextmanager
def _located(sweep: SweepConfig) -> Iterator[None]:
    """As `SweepConfig.locate_errors`, but an error about a section of the file that names a value
    of --set is located at that option.
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


def _check_metric_names(inspection: Inspection) -> None:
    """Metrics that do not exist, or need another batch size of timing."""
    sweep = inspection.request.sweep
    for path, name in sweep.named_metrics:
        if name not in inspection.metrics:
            raise ConfigError(path, unknown_choice(name, inspection.metrics))
        size = split_batch(name)[1]
        if size is not None and size not in sweep.timing.batches[1:]:
            sizes = ", ".join(map(str, sweep.timing.batches))
            raise ConfigError(
                path,
                f"{name}: timing.batch lacks {size} after its first size ({sizes}); add it there",
            )


def _check_reference(inspection: Inspection) -> None:
    """A reference that does not suit the extractor, if that takes the images at their size, and
    there are images.
    """
    sweep = inspection.request.sweep
    side = inspection.capabilities.image_size
    if inspection.models.target.no_images:
        return
    takes_images = inspection.extractors["features"].image_size in (None, side)
    if takes_images and sweep.reference.source != NO_REFERENCE:
        with in_section("reference"):
            check_reference(
                **sweep.reference.to_mapping(),
                extractors=tuple(inspection.extractors.values()),
                size=side,
                has_features=inspection.request.storage.exists(FILE),
            )


def _note_reference(inspection: Inspection) -> None:
    """A distance of images of other captions to the built-in scenes, which is a number without a
    meaning.
    """
    sweep = inspection.request.sweep
    source = sweep.captions.source
    if source == _SCENES or sweep.reference.source != _SCENES:
        return
    names = dict.fromkeys(name for _, name in sweep.named_metrics)
    distances = [name for name in names if REFERENCE in inspection.metrics[name].needs]
    if distances:
        inspection.notes.append(
            f"{' and '.join(distances)}: images of {source} are compared with the built-in scenes; "
            "if the captions describe something else, set reference.source to a folder of real "
            "images of that, or `reference: none` and other objectives"
        )


def _check_stored_captions(inspection: Inspection) -> None:
    """Captions that have changed since the sweep started."""
    identity = inspection.identity
    if identity is None or identity.captions.get("hash") == captions_hash(inspection.captions):
        return
    source = inspection.sweep.captions.source
    storage = inspection.request.storage
    raise ConfigError(
        ("captions",),
        f"{source} has changed since the sweep in {storage.display_name} started; restore the "
        "original, or launch under another --name",
    )


def _check_metrics(inspection: Inspection) -> None:
    """Metrics that cannot be computed with the sweep's models and captions."""
    sweep = inspection.sweep
    reasons = unavailable_metrics(
        [name for _, name in sweep.named_metrics],
        inspection.entry.folder,
        image_size=inspection.capabilities.image_size,
        captions=[caption.text for caption in inspection.captions],
        weights=inspection.entry.metrics,
        reference=sweep.reference.source != NO_REFERENCE,
        registered=inspection.metrics,
        no_images=inspection.models.target.no_images,
    )
    for path, name in sweep.named_metrics:
        if name in reasons:
            raise ConfigError(
                path,
                f"{name} is not available: {reasons[name]}; add what is missing, or remove the "
                "metric",
            )


def _check_torchmetrics(inspection: Inspection) -> None:
    """Classes of torchmetrics that give no number on noise of the images' size; their networks are
    loaded here.
    """
    sweep = inspection.sweep
    decisive = {metric.name for _, metric in inspection.decisive}
    for path, name in sweep.named_metrics:
        metric = inspection.metrics[name]
        if path[0] != "metrics" or not isinstance(metric, LibraryMetric):
            continue
        problem = try_metric(
            metric,
            image_size=inspection.capabilities.image_size,
            width=inspection.extractors[FEATURES].width,
            images=_replicate(len(inspection.captions)) * sweep.quality.samples,
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
    captions: int  # of the sweep
    samples: int  # images of a caption
    width: int  # features of an image

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
            samples = self.width // max(1, _replicate(self.captions)) + 1
            raise ConfigError(
                (),
                f"{self.metric} needs more images: {self.describe(self.captions)}; raise "
                f"captions.count to at least {enough}, or quality.samples to at least {samples}",
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


def _check_image_counts(inspection: Inspection) -> None:
    """Fréchet distances with too few images, on all captions or at a rung (see `_ImageCounts`), or
    with too few real ones.
    """
    reference = inspection.sweep.reference
    for path, metric in inspection.decisive:
        if not metric.covariance_of:
            continue
        width = inspection.extractors[metric.covariance_of].width
        if REFERENCE in metric.needs:
            count, _ = count_images(reference.source, count=reference.count)
            if count <= width:
                raise ConfigError(
                    ("reference",),
                    f"{metric.name} needs more images: {count} of {reference.source} are too few "
                    f"for a covariance of {width} features; use more than {width}, or a metric "
                    "without a covariance, such as kid",
                )
        counts = _ImageCounts(
            metric.name, len(inspection.captions), inspection.sweep.quality.samples, width
        )
        with at(*path):
            counts.check_captions()
        for index, rung in enumerate(_tested_rungs(inspection.sweep, metric)):
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


def _check_timing(inspection: Inspection) -> None:
    """Too few captions for timing."""
    sweep = inspection.sweep
    if uses_timings(sweep.requested_metrics):
        with in_section("timing"):
            session_of(sweep, [DecodingConfig(sampling=sweep.sampling)], len(inspection.captions))


def _check_racing(inspection: Inspection) -> None:
    """Rungs that do not divide into equal blocks."""
    sweep = inspection.sweep
    if sweep.racing is None:
        return
    for index, rung in enumerate(sweep.racing.rungs):
        if rung % min(BLOCKS, sweep.captions.count):
            raise ConfigError(
                ("racing", "rungs", f"[{index}]"),
                f"{rung} captions do not divide into {BLOCKS} equal blocks; use multiples of "
                f"{BLOCKS}",
            )


def _check_constraints(inspection: Inspection) -> None:
    """Constraints that multiply a value of vanilla that is 0 by definition."""
    for index, constraint in enumerate(inspection.sweep.constraints):
        vanilla = inspection.metrics[constraint.metric].vanilla
        if vanilla is not None:
            with at("constraints", f"[{index}]"):
                constraint.check_vanilla(vanilla)


def _check_objectives(inspection: Inspection) -> None:
    """Objectives that compare a trial's images with vanilla's: lossless settings differ there by
    the images that they happen to draw, so a search for the best would chase luck.
    """
    for index, objective in enumerate(inspection.sweep.objectives):
        metric = inspection.metrics[objective.metric]
        compares = not (metric.is_of_counts or metric.is_of_distribution)
        # the file says it already of a metric of torchmetrics
        is_said = objective.against is not None or metric.definition
        if compares and not is_said:
            instead = "optimise fid or fid_gain"
            if inspection.sweep.reference.source == NO_REFERENCE:
                instead = "give a reference and optimise fid"
            raise ConfigError(
                ("objectives", f"[{index}]"),
                f"{metric.name} compares images with vanilla's: a lossless setting, which draws "
                "other samples of the same distribution, has a worse value than vanilla; "
                f"{instead}, or add `against: vanilla` if that is what you mean",
            )
        if not compares and objective.against is not None:
            raise ConfigError(
                ("objectives", f"[{index}]", "against"),
                f"{metric.name} does not compare images with vanilla's; leave it out",
            )


def _check_files(inspection: Inspection) -> None:
    """Check that the images of a resumed sweep, or of earlier ones, depend on the same files. Reads
    all of these files.

    Raises:
        IdentityError, EarlierSweepError: names the files' keys, with both hashes.
    """
    identity = inspection.identity
    earlier = inspection.request.earlier
    sources: Sequence[Source] = ()
    if earlier is not None and identity is None:
        sources = earlier.sources
    if identity is None and not sources:
        return
    sweep = inspection.sweep
    entry = inspection.entry
    extractors = Extractors.load(
        entry.folder,
        image_size=inspection.capabilities.image_size,
        captions=[caption.text for caption in inspection.captions],
        device=torch.device("meta"),
        weights=entry.metrics,
        metrics=sorted(sweep.requested_metrics) or None,
        no_images=inspection.models.target.no_images,
    )
    facts = {
        "format": FORMAT,
        "seed": sweep.seed,
        "models": entry.hashes,
        "extractors": extractors.identities,
    }
    if identity is not None:
        check_unchanged(inspection.request.storage, identity, facts, ("models", "extractors"))
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
    ("trials to revive", lambda inspection: inspection.request.revived),
    ("files to fetch", lambda inspection: inspection.fetch_files()),
    ("place of MLflow's runs", lambda inspection: inspection.tracking_uri),
    ("names of metrics", _check_metric_names),
    ("cluster", surroundings.check_cluster),
    ("folders", surroundings.check_folders),
    ("stored results", surroundings.check_stored_results),
    ("MLflow's address", surroundings.check_tracking_uri),
    ("studies and databases of others", surroundings.check_owners),
)
#: The checks that read the files of models, captions and reference, in the order of the refusals.
FILE_CHECKS: tuple[tuple[str, Check], ...] = (
    ("models", lambda inspection: inspection.models),
    ("feature extractors", lambda inspection: inspection.extractors),
    ("captions", lambda inspection: inspection.captions),
    ("reference", _check_reference),
    ("reference of other captions", _note_reference),
    ("sampling", lambda inspection: inspection.sweep),
    ("captions of the stored sweep", _check_stored_captions),
    ("metrics", _check_metrics),
    ("metrics of torchmetrics", _check_torchmetrics),
    ("numbers of images", _check_image_counts),
    ("timing", _check_timing),
    ("racing", _check_racing),
    ("constraints", _check_constraints),
    ("objectives", _check_objectives),
    ("files of the stored sweep and of earlier ones", _check_files),
    (
        "enqueued settings and space",
        lambda inspection: check_configs(inspection.sweep, inspection.capabilities),
    ),
    (
        "settings to predict",
        lambda inspection: check_pool(inspection.sweep, inspection.capabilities),
    ),
    ("search", lambda inspection: Search(inspection.sweep, inspection.directions)),
)
