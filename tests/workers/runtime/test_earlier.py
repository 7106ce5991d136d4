"""Images of an earlier sweep, found by config, caption and sample, in shards of any size."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from search_spaces.presets import PRESETS
from search_spaces.trial import Sampling
from workers.data.records import write_shard
from workers.data.shards import QualityShard
from workers.data.storage import Storage, StorageError
from workers.decoding.state import Request
from workers.runtime.earlier import EarlierImages

CONFIG = PRESETS["eagle1"].with_sampling(Sampling())
FILES = {"shards/one": (0, 1, 2), "shards/two": (3, 4)}


@pytest.fixture
def earlier(tmp_path: Path) -> EarlierImages:
    storage = Storage(tmp_path)
    for name, captions in FILES.items():
        images = [(caption, sample) for caption in captions for sample in (0, 1)]
        rows = {
            "caption_id": [caption for caption, _ in images],
            "sample": [sample for _, sample in images],
            "caption": [f"caption {caption}" for caption, _ in images],
            "tokens": [[10 * caption + sample] for caption, sample in images],
        }
        write_shard(storage, name, pa.table(rows), {"kind": "quality", "name": name})
    return EarlierImages(storage, {CONFIG.digest(): list(FILES)})


def tokens(
    earlier: EarlierImages, captions: range, text: str = "caption", samples: int = 2
) -> list[list[int]] | None:
    shard = QualityShard(CONFIG, captions.start, captions.stop, samples, 4)
    requests = [
        Request(number, f"{text} {number}", sample)
        for number in captions
        for sample in range(samples)
    ]
    table = earlier.find(shard, requests)
    found: list[list[int]] | None = None if table is None else table["tokens"].to_pylist()
    return found


def test_rows_come_in_the_order_of_the_requests(earlier: EarlierImages) -> None:
    assert tokens(earlier, range(1, 5)) == [
        [10 * caption + sample] for caption in range(1, 5) for sample in (0, 1)
    ]
    assert tokens(earlier, range(2), samples=1) == [[0], [10]]


def test_all_images_or_none(earlier: EarlierImages) -> None:
    assert tokens(earlier, range(3, 6)) is None
    assert tokens(earlier, range(1), samples=3) is None
    assert tokens(earlier, range(2), text="another") is None
    other = QualityShard(CONFIG.with_sampling(Sampling(temperature=0.5)), 0, 1, 1, 4)
    assert earlier.find(other, [Request(0, "caption 0", 0)]) is None


def test_a_place_that_cannot_be_reached_has_none() -> None:
    assert EarlierImages.open({"store": "nothing://host/mine", "shards": {}}) is None


@pytest.mark.parametrize("is_known", [False, True])
def test_a_store_that_does_not_respond_has_no_images(
    earlier: EarlierImages, is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: Storage, name: str) -> bytes:
        raise StorageError(f"{name}: access denied")

    if is_known:
        assert tokens(earlier, range(5)) is not None
    monkeypatch.setattr(Storage, "read", refuse)
    assert tokens(earlier, range(5)) is None


@pytest.mark.parametrize("is_known", [False, True])
def test_files_that_cannot_be_read_count_as_missing(
    earlier: EarlierImages, tmp_path: Path, is_known: bool
) -> None:
    if is_known:
        assert tokens(earlier, range(5)) is not None
    (tmp_path / "shards" / "one").write_bytes(b"torn")
    assert tokens(earlier, range(1, 5)) is None
    assert tokens(earlier, range(3, 5)) is not None
