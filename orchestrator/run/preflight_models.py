"""Preflight checks that need the headers of the model's files: captions, reference, and the configs of the sweep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any

from search_spaces.params import ConfigError
from search_spaces.space import MOST_BRANCHES, resolve_config
from search_spaces.sweep import SweepConfig
from search_spaces.sweep_sections import NO_REFERENCE
from workers.data.storage import Storage

if TYPE_CHECKING:
    from orchestrator.results.store import Identity
    from workers.data.captions import Caption
    from workers.loading.headers import Headers
    from workers.loading.manifest import Entry


@contextmanager
def prefix_errors(key: str) -> Iterator[None]:
    """Prefix the message of a ValueError raised inside with a key of the sweep's file, or an option."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def models_entry(sweep: SweepConfig) -> Entry | None:
    """The sweep's entry of models.yaml; None if the sweep names a folder of weights.

    Raises:
        ValueError: the sweep names no file, or the file has no such entry or is invalid.
    """
    from workers.loading.manifest import read_entry

    models = sweep.models
    if models.name is None:
        return None
    if models.file is None:
        raise ValueError(f"models.name: {models.name} is an entry of a models.yaml; add --models models.yaml")
    with prefix_errors("models.name"):
        return read_entry(models.file, models.name)


def read_model(sweep: SweepConfig) -> Headers:
    """The headers of the model's files, checked against its architecture.

    Raises:
        ValueError: a file is missing, truncated or of another family, or its sizes do not fit.
    """
    from workers.loading.headers import headers_of_models, read_headers
    from workers.loading.manifest import sketch_entry
    from workers.loading.models import weights_folder
    from workers.metrics.extractors import check_weights

    entry = models_entry(sweep)
    if entry is not None:
        with prefix_errors("models.name"):
            model = headers_of_models(sketch_entry(entry), entry.folder, entry.metrics)
        for key, problem in check_weights(entry.folder, entry.metrics, sweep.asked).items():
            raise ValueError(f"{entry.where}: {entry.name}.metrics.{key}: {problem}")
        return model
    with prefix_errors("models.weights"):
        return read_headers(weights_folder(sweep.models.weights))


def read_sweep_captions(sweep: SweepConfig, model: Headers) -> list[Caption]:
    """The captions, checked against the target's vocabulary.

    Raises:
        ValueError: see `read_captions`; or the first caption that the target cannot encode, and the number of others.
    """
    from workers.data.captions import read_captions
    from workers.data.faults import and_more

    with prefix_errors("captions"):
        captions = read_captions(**sweep.captions.to_mapping())
    problems = model.unreadable([caption.text for caption in captions])
    if problems:
        index, problem = min(problems, key=lambda entry: captions[entry[0]].id)
        raise ValueError(f"captions: {captions[index].where}: {problem}{and_more(len(problems) - 1, 'caption')}")
    return captions


def check_captions_unchanged(storage: Storage, identity: Identity | None, captions: list[Caption], source: str) -> None:
    """Compare the captions with those of the sweep that is resumed.

    Raises:
        ValueError: they differ.
    """
    from workers.data.captions import captions_hash

    if identity is not None and identity.captions["hash"] != captions_hash(captions):
        raise ValueError(
            f"captions: {source} has changed since the sweep in {storage.shown} started; restore the original, or "
            "launch under another --name"
        )


def check_reference(sweep: SweepConfig, model: Headers) -> None:
    """Check that the reference suits the feature extractor, if the extractor takes the model's images at all.

    Raises:
        ValueError: see `workers.data.reference.check_reference`.
    """
    from workers.data import reference

    if model.features_size != model.image_size or sweep.reference.source == NO_REFERENCE:
        return
    with prefix_errors("reference"):
        reference.check_reference(
            **sweep.reference.to_mapping(),
            identity=model.features,
            size=model.image_size,
            width=model.width,
            also=model.beside,
        )


def check_configs(sweep: SweepConfig, model: Headers) -> None:
    """Check that the model can serve the enqueued configs and every branch of the space, at both ends of each range.

    Raises:
        ConfigError: names the label or the branch, and the key.
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
        corners = [leaf.domain.corners() for leaf in branch.leaves]
        lowest = [ends[0] for ends in corners]
        # all fields at their lowest, then each in turn at its highest
        points = [lowest, *([*lowest[:i], ends[-1], *lowest[i + 1 :]] for i, ends in enumerate(corners))]
        for values in points:
            try:
                config = resolve_config(branch.setting(values), sweep.sampling)
            except ConfigError:
                continue  # the space itself reported invalid corners when it was read
            try:
                config.check_model(**sizes)
            except ConfigError as error:
                kinds = ", ".join(branch.params.values())
                raise error.under(*(("space", f"({kinds})") if kinds else ("space",))) from None
