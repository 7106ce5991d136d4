"""Images of several trials for the same captions, decoded from the tokens in the store: one sheet
of tiles per trial; and the image grids that the trials' details show.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from orchestrator.report.section import SECTIONS, Note, Section, Subject, ignore
from orchestrator.report.trials import PageTrial
from orchestrator.store import files
from orchestrator.store.identity import plugins_of
from orchestrator.store.sweep import Sweep
from workers.data.folders import size_on_disk
from workers.data.pictures import grid_tiles, is_intact_png
from workers.data.storage import in_parallel

if TYPE_CHECKING:
    from workers.models.target import Target

Key = tuple[int, int]  # caption and sample
Rows = dict[Key, tuple[str, list[int]]]  # caption and tokens of images
Sheet = tuple[tuple[int, int], int, str]  # size of a tile in pixels, number of tiles, data URI

CAPTIONS = 60
COLUMNS = 10
_MAX_SIDE = 128  # pixels of a tile
_MAX_CHARACTERS = 1_300_000  # of all sheets together
# of a target's files; larger targets are loaded for a report on a GPU only
_MAX_BYTES_ON_CPU = 2 << 30
_MAX_PIXELS = 1 << 18  # of the images that are decoded at once
GRID_SIDE = 288  # pixels of the longer side of an image grid in the page
_MAX_GRID_CHARACTERS = 500_000  # of all image grids together


def images(subject: Subject) -> dict[str, Any]:
    """Sheets of the trials in the order of their importance, as far as they fit.

    Each sweep's own target decodes the tokens. Without `decode`, or if a target fails to load or to
    decode, `from_tokens` is false and the tiles are those of the image grids that the sweeps wrote.
    Skips what is missing or damaged, and trials of other captions than the first one's; `note` is
    called with a sentence about what is left out.

    Returns:
        captions: of the tiles, in order. width, height: of a tile in pixels. columns: of a sheet.
            sheets: {key: data
        URI}; empty if no trial has any.
    """
    trials = subject.trials
    note = subject.note
    if not any(map(_has_images, trials)):
        return {"sheets": {}}
    alike = [trial for trial in trials if _captions(trial) == _captions(trials[0])]
    found = _comparable(alike, note)
    count = min((len(rows) for _, rows in found), default=0)
    from_tokens = subject.decode and all(
        files.read_sweep_yaml(trial.sweep.storage).get("models") for trial, _ in found
    )
    if from_tokens:
        try:
            sheets = _decoded_sheets(found)
        except Exception as error:  # of any kind: the report is worth more than these images
            reason = (
                f"{type(error).__name__}: {error}"
                if not isinstance(error, (ValueError, OSError))
                else str(error)
            )
            note(f"the report shows the first images of each trial only: {reason}")
            from_tokens = False
    if not from_tokens:
        sheets = _sheets((trial.key, _stored_tiles(trial)[:count]) for trial, _ in found)
    if not sheets:
        return {"sheets": {}}
    (width, height), *_ = next(iter(sheets.values()))
    captions = [caption for caption, _ in found[0][1].values()][
        : min(count for _, count, _ in sheets.values())
    ]
    shape = {"captions": captions, "width": width, "height": height, "columns": COLUMNS}
    return shape | {
        "sheets": {name: uri for name, (_, _, uri) in sheets.items()},
        "from_tokens": from_tokens,
    }


def _has_images(trial: PageTrial) -> bool:
    """Whether the target could decode images. If not, no network has read them, and there is no
    image grid.
    """
    storage = trial.sweep.storage
    return bool(trial.sweep.identity.extractors) or storage.exists(_grid_name(trial))


def _grid_name(trial: PageTrial) -> str:
    return f"{files.IMAGE_GRIDS}/{trial.record.digest}.png"


def _captions(trial: PageTrial) -> tuple[Any, Any]:
    captions = trial.sweep.identity.captions
    return captions.get("hash"), captions.get("count")


def _comparable(trials: Sequence[PageTrial], note: Note) -> list[tuple[PageTrial, Rows]]:
    """The trials with rows for the first captions of the first readable one, once per key; notes
    others. There are at most `CAPTIONS`, and no more than each complete trial has.
    """
    complete = [trial.record.images for trial in trials if trial.record.is_complete]
    count = min([CAPTIONS, *complete])
    others = iter(_unique(trials))
    found: dict[str, tuple[PageTrial, Rows]] = {}
    first: Rows = {}
    for trial in others:
        rows = _rows(trial, first.keys())
        if isinstance(rows, ValueError):
            note(str(rows))
        elif rows:
            first = dict(sorted(rows.items())[:count])
            found[trial.key] = trial, first
            break
    left = list(others)
    for trial, rows in zip(
        left, in_parallel(partial(_rows, needed=first.keys()), left), strict=True
    ):
        if isinstance(rows, ValueError):
            note(str(rows))
        elif len(rows) < len(first):  # racing stopped it before
            continue
        elif all(key in rows and rows[key][0] == caption for key, (caption, _) in first.items()):
            found[trial.key] = trial, {key: rows[key] for key in first}
        else:
            note(
                f"{trial.sweep.storage.display_name}: trial {trial.record.number} has other "
                "captions than the first; the report does not compare its images"
            )
    return list(found.values())


def _unique(trials: Iterable[PageTrial]) -> list[PageTrial]:
    """The first trial of each key."""
    unique: dict[str, PageTrial] = {}
    for trial in trials:
        unique.setdefault(trial.key, trial)
    return list(unique.values())


def _rows(trial: PageTrial, needed: Set[Key]) -> Rows | ValueError:
    """The rows of a trial's first shards up to all `needed` ones, or `CAPTIONS` of any; the error
    of a damaged one.
    """
    rows: Rows = {}
    for shard in trial.record.image_shards:
        try:
            columns = ["caption_id", "sample", "caption", "tokens"]
            table = files.read_table(
                trial.sweep.storage, shard, columns, fix="the report lacks its images"
            )
        except ValueError as error:
            return error
        rows |= {
            (r["caption_id"], r["sample"]): (str(r["caption"]), r["tokens"])
            for r in table.to_pylist()
        }
        is_complete = rows.keys() >= needed if needed else len(rows) >= CAPTIONS
        if is_complete:
            break
    return rows


def _decoded_sheets(found: Sequence[tuple[PageTrial, Rows]]) -> dict[str, Sheet]:
    """Sheets of the images that the sweeps' targets decode. Raises what loading and decoding
    raise.
    """
    sweeps = {trial.index: trial.sweep for trial, _ in found}
    targets = {index: _load_target(sweep) for index, sweep in sweeps.items()}
    return _sheets(
        (trial.key, _decode(targets[trial.index], trial.sweep, rows)) for trial, rows in found
    )


def _sheets(tiled: Iterable[tuple[str, list[Image.Image]]]) -> dict[str, Sheet]:
    """The sheets of trials that have tiles, as far as they fit."""
    sheets: dict[str, Sheet] = {}
    left = _MAX_CHARACTERS
    for name, tiles in tiled:
        if not tiles:
            continue
        size, uri = _sheet(tiles)
        if len(uri) > left:
            break
        left -= len(uri)
        sheets[name] = size, len(tiles), uri
    return sheets


def _decode(target: Target, sweep: Sweep, rows: Rows) -> list[Image.Image]:
    import torch

    from workers.data.pictures import to_pictures

    batch = max(1, _MAX_PIXELS // sweep.identity.image_size**2)
    tokens = torch.tensor([list(own) for _, own in rows.values()], device=target.device)
    starts = range(0, len(tokens), batch)
    return [
        picture for at in starts for picture in to_pictures(target.decode(tokens[at : at + batch]))
    ]


def _load_target(sweep: Sweep) -> Target:
    """The target that generated the sweep's images.

    Raises:
        ValueError, OSError: its files are missing, damaged, others than the sweep's, or too large
            for this machine.
    """
    import torch

    from workers.loading.models_yaml import find_entry
    from workers.models.checkpoint_files import collect_notes

    with plugins_of(sweep.storage):  # the target's family may be a plugin's
        entry = find_entry(sweep.models)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        size = sum(size_on_disk(Path(path)) for path in entry.family.target_files.values())
        if device.type == "cpu" and size > _MAX_BYTES_ON_CPU:
            gib = f"{size / 2**30:.0f} GiB"
            raise ValueError(
                f"{sweep.models}: the target's files have {gib}; write the report on a GPU machine"
            )
        hashes = sweep.identity.models
        if any(
            hashes.get(key, found) != found for key, found in entry.hashes.items() if "." not in key
        ):
            raise ValueError(
                f"{sweep.models}: the model's files have changed since the sweep; restore them"
            )
        with collect_notes():  # the launch reported them
            return entry.family.load(device, entry.dtype_on(device))


def _stored_tiles(trial: PageTrial) -> list[Image.Image]:
    """The images of a trial's grid; none if it is missing, damaged, or of another size than the
    sweep's images.
    """
    identity = trial.sweep.identity
    grid = _stored_grid(trial)
    if not isinstance(grid, Image.Image):
        return []
    return grid_tiles(grid, identity.image_size, identity.grid[:2])


def _stored_grid(trial: PageTrial) -> Image.Image | str | None:
    """The image grid that a trial wrote; None if it is missing, a sentence if it is damaged."""
    name = _grid_name(trial)
    storage = trial.sweep.storage
    if not trial.record.digest or not storage.exists(name):
        return None
    data = storage.read(name)
    with suppress(Exception):  # Pillow's readers raise errors of many kinds
        if is_intact_png(data):
            return Image.open(io.BytesIO(data)).convert("RGB")
    return f"{storage.locate(name)}: damaged; the report lacks it"


def _sheet(tiles: Sequence[Image.Image]) -> tuple[tuple[int, int], str]:
    """The size of a tile, and all tiles in rows of `COLUMNS` as a data URI."""
    small = [tile.copy() for tile in tiles]
    for tile in small:
        tile.thumbnail((_MAX_SIDE, _MAX_SIDE), Image.Resampling.LANCZOS)
    width, height = small[0].size
    sheet = Image.new("RGB", (COLUMNS * width, -(-len(small) // COLUMNS) * height))
    for number, tile in enumerate(small):
        sheet.paste(tile, (number % COLUMNS * width, number // COLUMNS * height))
    return (width, height), _data_uri(sheet, "webp", quality=86, method=5)


def embed_grids(trials: Iterable[PageTrial], note: Note = ignore) -> dict[str, Any]:
    """{key: "uri", "width", "height"} of the grids of trials in the order of their importance, as
    far as they fit.

    Skips a missing or damaged grid. note: called with a sentence about each damaged file.
    """
    left = _MAX_GRID_CHARACTERS
    grids: dict[str, Any] = {}
    unique = _unique(trials)
    for trial, grid in zip(unique, in_parallel(_stored_grid, unique), strict=True):
        if isinstance(grid, str):
            note(grid)
            continue
        if grid is None:
            continue
        grid.thumbnail((GRID_SIDE, GRID_SIDE), Image.Resampling.LANCZOS)
        uri = _data_uri(grid, "jpeg", quality=78, subsampling=0, optimize=True)
        if len(uri) > left:  # later grids matter less
            break
        left -= len(uri)
        grids[trial.key] = {"uri": uri, "width": grid.width, "height": grid.height}
    return grids


def _data_uri(image: Image.Image, kind: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(buffer.getvalue()).decode()}"


SECTIONS.add("images", Section("Images of the same captions", 20, images, link="Images"))
