"""What can be said of a sweep from the headers of its model's files: captions that cannot be read, a reference that
cannot be used, metrics that cannot be had, settings that cannot be served.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

from search_spaces.params import ConfigError, not_one_of
from search_spaces.space import MOST_BRANCHES, resolve_config
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from search_spaces.trial import DecodingConfig
from workers.data.storage import Storage

if TYPE_CHECKING:
    from orchestrator.results.store import Identity
    from orchestrator.run.study import Direction
    from workers.data.captions import Caption
    from workers.loading.headers import Headers
    from workers.loading.manifest import Entry


@contextmanager
def told(key: str) -> Iterator[None]:
    """Errors raised inside, said of a key of the sweep's file or of an option."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def metrics_there_are(sweep: SweepConfig) -> None:
    """Refuse names that no metric has.

    Raises:
        ValueError: the section, the name, and the nearest.
    """
    from workers.metrics.registry import registered_metrics

    every = tuple(registered_metrics())
    for section, name in metric_names(sweep):
        if name not in every:
            raise ValueError(f"{section}: metric {not_one_of(name, every)}")


def metric_names(sweep: SweepConfig) -> list[tuple[str, str]]:
    """Section and name of every metric that the sweep names."""
    return [
        *(("objectives", objective.metric) for objective in sweep.objectives),
        *(("constraints", constraint.metric) for constraint in sweep.constraints),
        *(("metrics", name) for name in sweep.metrics or ()),
    ]


def entry_of(sweep: SweepConfig) -> Entry | None:
    """The entry of models.yaml that a sweep names; None if it names a folder of weights.

    Raises:
        ValueError: the sweep says no file; the file has no such entry, or a mistake.
    """
    from workers.loading.manifest import read_entry

    models = sweep.models
    if models.name is None:
        return None
    if models.file is None:
        raise ValueError(
            f"models.name: {models.name} is an entry of a models.yaml, but of which? Say where: --models models.yaml"
        )
    with told("models.name"):
        return read_entry(models.file, models.name)


def headers_of(sweep: SweepConfig) -> Headers:
    """What the weight files say of the model: its own, or those of its entry, held against the architecture.

    Raises:
        ValueError: a file is missing, truncated or of another family; sizes do not fit.
    """
    from workers.loading.headers import headers_of_models, read_headers
    from workers.loading.manifest import sketch_entry
    from workers.loading.models import weights_folder
    from workers.metrics.extractors import check_weights

    entry = entry_of(sweep)
    if entry is not None:
        with told("models.name"):
            model = headers_of_models(sketch_entry(entry), entry.folder, entry.metrics)
        for key, problem in check_weights(entry.folder, entry.metrics, sweep.asked).items():
            raise ValueError(f"{entry.where}: {entry.name}.metrics.{key}: {problem}")
        return model
    with told("models.weights"):
        return read_headers(weights_folder(sweep.models.weights))


def readable_captions(sweep: SweepConfig, model: Headers) -> list[Caption]:
    """The captions, each of which the target can read.

    Raises:
        ValueError: see `read_captions`; the first caption that the target cannot read, and how many more.
    """
    from workers.data.captions import read_captions
    from workers.data.faults import and_more

    with told("captions"):
        captions = read_captions(**sweep.captions.to_mapping())
    bad = model.unreadable(texts_of(captions))
    if bad:
        place, problem = min(bad, key=lambda found: captions[found[0]].id)
        raise ValueError(f"captions: {captions[place].where}: {problem}{and_more(len(bad) - 1, 'caption')}")
    return captions


def texts_of(captions: list[Caption]) -> list[str]:
    return [caption.text for caption in captions]


def same_captions(storage: Storage, identity: Identity | None, captions: list[Caption], source: str) -> None:
    """Refuse to go on with other captions than the sweep began with.

    Raises:
        ValueError: the file has changed.
    """
    from workers.data.captions import captions_hash

    if identity is not None and identity.captions["hash"] != captions_hash(captions):
        raise ValueError(
            f"captions: {source} has changed since the sweep in {storage.shown} began; bring the old ones back, or "
            "launch under another --name"
        )


def usable_reference(sweep: SweepConfig, model: Headers) -> None:
    """Refuse a reference that `fid` cannot be measured against, where the model's images have features at all.

    Raises:
        ValueError: see `check_reference`.
    """
    from workers.data.reference import check_reference

    if model.features_size != model.image_size or sweep.reference.source == NO_REFERENCE:
        return
    with told("reference"):
        check_reference(
            **sweep.reference.to_mapping(),
            identity=model.features,
            size=model.image_size,
            width=model.width,
            also=model.beside,
        )


def servable(sweep: SweepConfig, model: Headers) -> None:
    """Refuse enqueued settings, and branches of the space, that the model cannot serve at either end of any knob.

    Raises:
        ConfigError: the setting's label or the branch, and what it wants.
    """
    sizes: dict[str, Any] = {
        "codebook_size": model.vocab,
        "image_tokens": model.image_tokens,
        "drafters": model.drafters,
        "medusa_heads": model.medusa_heads,
    }
    for entry in sweep.enqueue:
        try:
            entry.config.check_model(**sizes)
        except ConfigError as error:
            raise error.under("enqueue", entry.label) from None
    assert sweep.sampling is not None
    for branch in islice(sweep.space.branches(), MOST_BRANCHES):
        ends = [leaf.domain.corners() for leaf in branch.leaves]
        lowest = [end[0] for end in ends]
        for place in range(-1, len(ends)):  # all knobs at their lowest, then each in turn at its highest
            values = [end[-1] if at == place else low for at, (end, low) in enumerate(zip(ends, lowest, strict=True))]
            try:
                setting = resolve_config(branch.setting(values), sweep.sampling)
            except ConfigError:
                continue  # such corners were held against the vocabulary when the space was read
            try:
                setting.check_model(**sizes)
            except ConfigError as error:
                words = ", ".join(branch.params.values())
                raise error.under(*(("space", f"({words})") if words else ("space",))) from None


def timeable(sweep: SweepConfig, captions: int) -> None:
    """Refuse timing shards that take more captions than there are, or that leave a goal without an uncertainty.

    Raises:
        ValueError: how many they take, or too few.
    """
    from workers.data.shards import plan_timing
    from workers.metrics.metric import TIMINGS
    from workers.metrics.registry import registered_metrics, uses_timings

    if not uses_timings(sweep.asked):
        return
    assert sweep.sampling is not None
    vanilla, timing = DecodingConfig(sampling=sweep.sampling).to_mapping(), sweep.timing
    with told("timing"):
        plan_timing(
            vanilla, vanilla, captions, images=timing.images, batch=timing.batch, repetitions=timing.repetitions
        )
    for section, name in metric_names(sweep):
        if section != "metrics" and timing.images <= timing.batch and TIMINGS in registered_metrics()[name].needs:
            raise ValueError(
                f"timing: a single batch of captions gives {name} no uncertainty, however often it is repeated; raise "
                "timing.images above timing.batch"
            )


def searchable(sweep: SweepConfig) -> None:
    """Refuse a sampler that cannot be made: options that it does not know, a grid without end.

    Raises:
        StudyError: what it refuses.
    """
    from orchestrator.run.study import Search
    from workers.metrics.registry import registered_metrics

    ways = [o.direction or registered_metrics()[o.metric].direction for o in sweep.objectives]
    Search(sweep, cast("list[Direction]", ways))


def metrics_that_can_be_had(sweep: SweepConfig, model: Headers, captions: list[Caption]) -> None:
    """Refuse metrics that this model and its captions do not give.

    Raises:
        ValueError: the section, the metric, and what it lacks.
    """
    from workers.metrics.extractors import available_inputs
    from workers.metrics.metric import NET
    from workers.metrics.registry import select_metrics

    net = model.features_size == model.image_size
    scores, absent = scores_of(sweep, model, captions) if wants_scores(sweep) else (set[str](), {})
    columns = {*scores, *(("features", NET) if net else ())}
    against = net and sweep.reference.source != NO_REFERENCE
    if not net:
        absent["features"] = (
            f"the feature net takes images of {model.features_size} pixels, not {model.image_size}; give Inception's "
            "file as metrics.inception of the entry in models.yaml"
        )
    elif not against:
        absent["reference"] = f"the sweep has no reference images (reference.source: {NO_REFERENCE})"
    for section, name in metric_names(sweep):
        _, lacking = select_metrics([name], available_inputs(columns, reference=against))
        if lacking:
            reasons = [reason for need, reason in absent.items() if need in lacking[name]]
            why = "; ".join(reasons) or lacking[name]
            raise ValueError(f"{section}: {name} cannot be had here: {why}; give what it lacks, or leave it out")


def enough_images(sweep: SweepConfig, model: Headers, captions: int) -> None:
    """Refuse Fréchet distances as goals of so few images that no trial could have them.

    Raises:
        ValueError: how many images remain for the covariance.
    """
    from workers.metrics import fid, frechet

    distances, samples = {metric.name for metric in fid.METRICS}, sweep.quality.samples
    largest = -(-captions // min(frechet.GROUPS, captions))  # captions that the jackknife leaves out at once
    left = (captions - largest) * samples
    for section, name in metric_names(sweep):
        if section != "metrics" and name in distances and left <= model.width:
            raise ValueError(
                f"{section}: {name} needs more images: {captions} captions x {samples} leave {left} when its error is "
                f"worked out, which cannot fill a covariance of {model.width} features; raise captions.count"
            )


def wants_scores(sweep: SweepConfig) -> bool:
    from workers.metrics.registry import registered_metrics

    return any(
        need.startswith("score.") for _, name in metric_names(sweep) for need in registered_metrics()[name].needs
    )


def scores_of(sweep: SweepConfig, model: Headers, captions: list[Caption]) -> tuple[set[str], dict[str, str]]:
    """Columns of the per-image scores that apply, and for the others why not: their nets are made, without numbers."""
    import torch

    from workers.loading.models import weights_folder
    from workers.metrics.extractors import Extractors
    from workers.models.checkpoint_files import shapes_only

    entry = entry_of(sweep)
    folder = weights_folder(sweep.models.weights) if entry is None else entry.folder
    with shapes_only():
        found = Extractors.load(
            folder,
            image_size=model.image_size,
            captions=texts_of(captions),
            device=torch.device("meta"),
            weights=entry.metrics if entry else None,
            metrics=[name for _, name in metric_names(sweep)],
        )
    return {f"score.{name}" for name in found.scores}, dict(found.absent)
