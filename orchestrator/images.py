"""Images from captions with one setting: what `specfrontier generate` and Python's `load_engine`
generate with.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from orchestrator.store.names import describe
from search_spaces.trial import DecodingConfig
from workers.data.pictures import to_pictures
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.decoding.statistics import ImageStatistics, Result
from workers.decoding.token_check import TokenCheck
from workers.decoding.token_checker import check_images
from workers.runtime.timing import time_in_turn

if TYPE_CHECKING:
    from PIL.Image import Image

DEFAULT_BATCH = 16  # images that are generated together


@dataclass(frozen=True, slots=True, eq=False)
class DrawnImage:
    """An image that was generated from a caption."""

    caption: str
    sample: int  # its number among the images of the caption
    image: Image
    tokens: Sequence[int]  # [tokens], those of a preview first
    statistics: ImageStatistics  # accepted lengths, target passes, seconds

    def __repr__(self) -> str:
        passes = self.statistics.passes
        length = self.statistics.mean_accepted_length
        return f"DrawnImage({self.caption!r}, {passes} target passes, {length:.2f} tokens each)"

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
            ValueError: the model cannot read a caption, or decode images.
            DecodingError: a model computed numbers that are not finite.
        """
        self.decoder.target.require_images()
        texts = [captions] if isinstance(captions, str) else captions
        requests = self.requests(texts, samples)
        images = {result.request: self.image_of(result) for result in self.decoder.run(requests)}
        return [images[request] for request in requests]

    def requests(self, captions: Sequence[str], samples: int) -> list[Request]:
        """What the decoder generates for captions: `samples` images of each, in their order.

        Raises:
            ValueError: the model cannot read a caption; all are checked before the first image.
        """
        self.decoder.target.check(captions)
        return [
            Request(index, text, sample)
            for index, text in enumerate(captions)
            for sample in range(samples)
        ]

    def check(self, images: Sequence[DrawnImage]) -> TokenCheck:
        """Whether the tokens of images of this setting are samples of the target's own
        distribution, which a lossless setting claims (see `workers.decoding.token_checker`).

        Raises:
            ValueError: no images.
        """
        captions = [drawn.caption for drawn in images]
        tokens = torch.tensor([drawn.tokens for drawn in images])
        decoder = self.decoder
        return check_images(decoder.target, decoder.sampling, captions, tokens, decoder.seed)

    def image_of(self, result: Result) -> DrawnImage:
        """Decode the tokens of a result to pixels, which its seconds do not include."""
        request = result.request
        tokens = result.tokens[None].to(self.decoder.device)
        (picture,) = to_pictures(self.decoder.target.decode(tokens))
        return DrawnImage(
            request.caption, request.sample, picture, result.tokens.tolist(), result.statistics
        )

    def __repr__(self) -> str:
        return f"ImageEngine({self.decoder.target.name}, {self._setting}, {self.decoder.device})"


def time_against_vanilla(
    vanilla: Engine,
    engine: Engine,
    requests: Sequence[Request],
    add: Callable[[int, Result], object],
) -> list[dict[str, Any]]:
    """Generate images with vanilla decoding and with a setting, in turn, batch by batch; returns
    the timings (see `time_in_turn`): vanilla is setting 0, the other one setting 1.

    Both first generate a batch that is not timed. A batch ends with its longest image, as in a
    sweep's timings. add: called with the number of the setting for each of its results; those of
    the batch that is not timed come twice.
    """
    size = engine.batch_size
    batches = [requests[start : start + size] for start in range(0, len(requests), size)]

    def run(setting: int, decoder: Engine, batch: Sequence[Request]) -> list[Result]:
        results = list(decoder.run(batch))
        for result in results:
            add(setting, result)
        return results

    return time_in_turn(
        {"0": partial(run, 0, vanilla), "1": partial(run, 1, engine)},
        batches,
        engine.device,
        encode=lambda batch: engine.target.encode([r.caption for r in batch], guided=False),
    )
