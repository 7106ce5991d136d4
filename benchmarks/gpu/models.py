"""The models of the measurements, on the device."""

from __future__ import annotations

from benchmarks.gpu.record import Setup
from benchmarks.random_models import published_shape, randomise, with_codes, with_usual_drafter
from search_spaces.presets import preset
from search_spaces.trial import DecodingConfig
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder

XL = "llamagen-xl-stage1"
_SMALL = {"rows": 4, "cols": 4}  # tokens of an image at reduced size


def builtin_models(setup: Setup, codes: int | None = None) -> Models:
    """The built-in models, or with a larger vocabulary its target and EAGLE layer."""
    if codes is None:
        return load_folder(device=setup.device)
    models = with_codes(load_folder(), codes)
    for module in (models.target, *models.drafters.values()):
        module.to(setup.device)
    return models


def random_models(setup: Setup, name: str) -> Models:
    """A published target and an EAGLE layer with random weights."""
    models = shapes_of(setup, name)
    for module in (models.target, *models.drafters.values()):
        randomise(module, setup.device)
    return models


def shapes_of(setup: Setup, name: str) -> Models:
    """A published target and an EAGLE layer on the meta device."""
    changes = _SMALL if setup.is_tiny else {}
    return with_usual_drafter(
        published_shape(name, setup.dtype, tiny=setup.is_tiny, **changes), preset("eagle2")
    )


def needed(models: Models, config: DecodingConfig) -> Models:
    """The models that a config uses."""
    kind = config.drafter.kind
    return Models(models.target, {kind: models.drafters[kind]} if kind in models.drafters else {})
