"""Loading the models of a setting, in Python."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orchestrator.front.trial import Trial
from orchestrator.images import DEFAULT_BATCH, ImageEngine
from search_spaces.documents import read_document
from search_spaces.paths import local_path
from search_spaces.presets import preset
from search_spaces.sweep_sections import BUILTIN
from search_spaces.trial import DecodingConfig, Sampling
from workers.loading.models_yaml import find_entry, load_entry
from workers.runtime.device import AUTO, pick_device


def load_engine(
    setting: Trial | DecodingConfig | Mapping[str, Any] | str | Path,
    models: str | None = None,
    *,
    device: str | None = None,
    batch: int | None = None,
    seed: int = 0,
) -> ImageEngine:
    """Load models and prepare them to generate with a setting.

    Args:
        setting: A trial, a config, a mapping with its keys, the name of a preset, or a YAML file.
        models: builtin, a folder of weights, or FILE#ENTRY of a models.yaml; None for those of the
            trial's sweep, else the built-in ones.
        device: cpu, cuda or cuda:N; None for the first GPU, else the CPU.
        batch: Images generated together; None for the batch at which the trial was timed, else 16.
        seed: Seed of all images.

    Raises:
        ConfigError: the setting is invalid, or the models do not support it.
        ValueError, OSError: weights or files cannot be read; the message names the file and the
            fix.
    """
    title = ""
    if isinstance(setting, Trial):
        title = setting.title
        models = models or setting.models
        batch = batch or setting.batch
    loaded = load_entry(find_entry(models or BUILTIN), pick_device(device or AUTO))
    config = _config(setting, loaded.target.sampling)
    engine = loaded.engine(config, seed=seed, batch_size=batch or DEFAULT_BATCH)
    return ImageEngine(engine, title)


def _config(
    setting: Trial | DecodingConfig | Mapping[str, Any] | str | Path, sampling: Sampling
) -> DecodingConfig:
    """The setting with the target's sampling where it has none."""
    if isinstance(setting, Trial):
        return setting.config
    if isinstance(setting, str) and Path(setting).suffix not in {".yaml", ".yml"}:
        setting = preset(setting)
    if isinstance(setting, DecodingConfig):
        if setting.sampling is None:
            return setting.with_sampling(sampling)
        return setting
    if isinstance(setting, Mapping):
        return DecodingConfig.from_mapping(setting, sampling)
    if not (path := local_path(setting)).is_file():
        raise FileNotFoundError(
            f"{path}: no such file; `Trial.save` and `specfrontier pareto --config` write one"
        )
    document = read_document(path.read_bytes(), str(path))
    with document.locate_errors():
        return DecodingConfig.from_mapping(document.data, sampling)
