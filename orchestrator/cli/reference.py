"""`specfrontier reference`: compute the features of real images once, for the FID of all later
sweeps.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator import options as o
from orchestrator.cli.text import show
from orchestrator.errors import FAILED, INTERRUPTED, WRONG_USAGE, ends_with

EPILOG = """\b
Examples:
  specfrontier reference photos --out photos.parquet
  specfrontier reference coco/val2017 --count 5000 --out s3://lab/coco5k.parquet --json
  specfrontier reference coco/val2017 --models models.yaml#llamagen --out coco.parquet
  then, in the sweep's YAML:  reference: {source: photos.parquet}
"""


Folder = Annotated[
    str,
    typer.Argument(
        metavar="DIR",
        help="Folder with images, read with its subfolders and links; or: scenes.",
        callback=o.input_path,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Extraction:
    """The options that say which features are computed, of which images."""

    out: str = o.option(
        "Output path or URI.",
        "FILE",
        default="reference.parquet",
        callback=o.output_file((".parquet",)),
    )
    count: int | None = o.option("Maximum number of images (all).", "N", min=1)
    seed: int = o.option("Selects the images or scenes.", "N", default=0, min=0, max=o.MAX_SEED)
    models: str = o.option(
        "builtin, a folder with its own features.safetensors, or a models.yaml: FILE#ENTRY, whose "
        "`metrics` name the networks.",
        "MODELS",
        default="builtin",
    )
    device: o.Device = None
    threads: o.Threads = None


@o.grouped
def reference(folder: Folder, options: Extraction, as_json: o.AsJson = False) -> None:
    """Compute the features of real images, which a sweep compares its images with.

    Each image is cut to its centre square and resized to the extractor's image size (256 pixels for
    Inception and VGG) by an antialiased Lanczos filter (Pillow), as for training. A sweep with
    another extractor refuses the result.
    """
    from workers.data.reference import (
        build_reference,
        check_reference,
        count_images,
        write_reference,
    )
    from workers.data.storage import Storage
    from workers.loading.models_yaml import find_entry
    from workers.metrics.extractors import load_extractors
    from workers.models.checkpoint_files import WeightsError

    torch_device = o.pick_device(options.device)
    stopped = ends_with(
        INTERRUPTED, KeyboardInterrupt, message="interrupted; nothing was written: run it again"
    )
    with stopped, ends_with(WRONG_USAGE), ends_with(FAILED, WeightsError):
        storage, name = Storage.holding(options.out)
        entry = find_entry(options.models)
        extractors = list(load_extractors(entry.folder, entry.metrics, torch_device).values())
        images: dict[str, Any] = {
            "size": extractors[0].side,
            "count": options.count,
            "seed": options.seed,
        }
        check_reference(folder, extractors, **images)  # before the features of any are computed
        _, left_out = count_images(folder, count=options.count)
        built = build_reference(folder, extractors, **images, on_progress=_progress)
    with ends_with(FAILED):
        write_reference(storage, name, built)
    where = storage.locate(name)
    width = built.features[0].shape[1]
    facts = {"file": where, "width": width, **built.facts, "left_out": left_out}
    line = (
        f"{where}: {facts['count']} images of {facts['source']}, {width} features of "
        f"{facts['identity']}"
    )
    line += f"; left out: {left_out}" if left_out else ""
    show(facts, [line], as_json=as_json)


def _progress(done: int, total: int) -> None:
    """A counter on a terminal; nothing elsewhere."""
    if sys.stderr.isatty():
        typer.echo(f"\r{done} of {total} images", err=True, nl=done == total)
