"""Images from captions with one setting, in Python."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.front.trial import Trial
from orchestrator.store.names import describe
from search_spaces.documents import read_document
from search_spaces.paths import local_path
from search_spaces.presets import preset
from search_spaces.sweep_sections import BUILTIN
from search_spaces.trial import DecodingConfig, Sampling
from workers.data.pictures import to_pictures
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import find_entry, load_entry
from workers.runtime.device import AUTO, pick_device

if TYPE_CHECKING:
    from PIL.Image import Image

    from workers.decoding.statistics import ImageStatistics

_BATCH = 16  # by default, as of `generate`


@dataclass(frozen=True, slots=True, eq=False)
class DrawnImage:
    """An image, its tokens [rows * cols], and how it was decoded (accepted lengths, target passes,
    seconds).
    """

    caption: str
    sample: int
    image: Image
    tokens: Sequence[int]
    statistics: ImageStatistics

    def __repr__(self) -> str:
        length = self.statistics.mean_accepted_length
        return (
            f"DrawnImage({self.caption!r}, {self.statistics.passes} target passes, {length:.2f} "
            "tokens each)"
        )

    def _repr_png_(self) -> bytes | None:
        data: bytes | None = self.image._repr_png_()
        return data


class ImageEngine:
    """A target, a drafter and a setting on one device. `decoder` is the library's own engine.

    setting: the setting's name where it has one, as a trial's has; for reading.
    """

    def __init__(self, decoder: Engine, setting: str = "") -> None:
        self.decoder = decoder
        self._setting = setting or describe(decoder.config, decoder.target.sampling)

    @property
    def config(self) -> DecodingConfig:
        return self.decoder.config

    def draw(self, captions: str | Sequence[str], samples: int = 1) -> list[DrawnImage]:
        """One image for each caption and sample, in that order. Seed, place in the list and sample
        determine an image. The images have the target's own size.

        Raises:
            ValueError: the model cannot read a caption.
            DecodingError: a model computed numbers that are not finite.
        """
        target, captions = (
            self.decoder.target,
            [captions] if isinstance(captions, str) else captions,
        )
        target.check(captions)
        requests = [
            Request(index, text, sample)
            for index, text in enumerate(captions)
            for sample in range(samples)
        ]
        images = {}
        for result in self.decoder.run(requests):
            request, tokens = result.request, result.tokens
            (picture,) = to_pictures(target.decode(tokens[None].to(self.decoder.device)))
            drawn = DrawnImage(
                request.caption, request.sample, picture, tokens.tolist(), result.statistics
            )
            images[request.caption_id, request.sample] = drawn
        return [images[key] for key in sorted(images)]

    def __repr__(self) -> str:
        return f"ImageEngine({self.decoder.target.name}, {self._setting}, {self.decoder.device})"


def load_engine(
    setting: Trial | DecodingConfig | Mapping[str, Any] | str | Path,
    models: str | None = None,
    *,
    device: str | None = None,
    batch: int | None = None,
    seed: int = 0,
) -> ImageEngine:
    """Load models and prepare them to generate with a setting.

    setting: a trial, a config, a mapping with its keys, the name of a preset, or a YAML file.
    models: builtin, a folder of weights, or FILE#ENTRY of a models.yaml; None for those of the
    trial's sweep, else the built-in ones. device: None for the first GPU, else the CPU. batch:
    images generated together; None for the batch at which the trial was timed, else 16.

    Raises:
        ConfigError: the setting is invalid, or the models do not support it.
        ValueError, OSError: weights or files cannot be read; the message names the file and the
            fix.
    """
    trial = setting if isinstance(setting, Trial) else None
    models = models or (BUILTIN if trial is None else trial.models)
    batch = batch or (_BATCH if trial is None else trial.batch)
    loaded = load_entry(find_entry(models), pick_device(device or AUTO))
    engine = loaded.engine(_config(setting, loaded.target.sampling), seed=seed, batch_size=batch)
    return ImageEngine(engine, "" if trial is None else trial.title)


def _config(
    setting: Trial | DecodingConfig | Mapping[str, Any] | str | Path, sampling: Sampling
) -> DecodingConfig:
    """The setting with the target's sampling where it has none."""
    if isinstance(setting, Trial):
        return setting.config
    if isinstance(setting, str) and Path(setting).suffix not in {".yaml", ".yml"}:
        setting = preset(setting)
    if isinstance(setting, DecodingConfig):
        return setting if setting.sampling is not None else setting.with_sampling(sampling)
    if isinstance(setting, Mapping):
        return DecodingConfig.from_mapping(setting, sampling)
    if not (path := local_path(setting)).is_file():
        raise FileNotFoundError(
            f"{path}: no such file; `Trial.save` and `specfrontier pareto --config` write one"
        )
    document = read_document(path.read_bytes(), str(path))
    with document.locate_errors():
        return DecodingConfig.from_mapping(document.data, sampling)
