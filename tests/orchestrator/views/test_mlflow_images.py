"""A trial's images in MLflow, by caption, and what else its run says: datasets, description, commit."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from orchestrator.store.identity import write_identity
from orchestrator.store.records import TrialRecord, write_trial
from orchestrator.store.sweep import Sweep
from orchestrator.views.mlflow import MlflowView
from orchestrator.views.mlflow_images import grid_keys, image_keys, write_images
from orchestrator.views.mlflow_page import describe_trial
from orchestrator.views.mlflow_sync import sync
from tests.fakes.synthetic_sweeps import CAPTIONS, GRID, identity, stop_early, write_sweep
from workers.data.pictures import image_grid, png
from workers.data.storage import Storage

SIDE = 32  # of a made-up sweep's images
COLUMNS = 4
# as MLflow's interface takes a name apart
NAME = re.compile(
    r"(?P<key>[^+]+)\+step\+(?P<step>\d+)\+timestamp\+\d+\+\w+(?P<small>\+compressed)?"
)


def write_grids(storage: Storage, sweep: Sweep) -> dict[str, list[np.ndarray]]:
    """Grids of images for all trials; the images by the digest of their trial."""
    rng = np.random.default_rng(0)
    found = {}
    for record in sweep.records:
        pixels = [rng.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8) for _ in CAPTIONS]
        grid = image_grid([Image.fromarray(image) for image in pixels], COLUMNS)
        storage.write(f"pictures/{record.digest}.png", png(grid))
        found[record.digest] = pixels
    return found


def test_each_run_has_its_images_under_the_keys_of_their_captions(
    tmp_path: Path, empty_database: Path
) -> None:
    from mlflow.tracking import MlflowClient

    shutil.copy(empty_database, tmp_path / "mlflow.db")
    *_, last = write_sweep(tmp_path / "sweep", 4, name="demo", failed=(2,), shards=True)
    storage = Storage(str(tmp_path / "sweep"))
    write_trial(storage, stop_early(last, 1))
    write_identity(storage, identity("demo", versions={"commit": 40 * "a"}))
    sweep = Sweep.open(storage)
    pixels = write_grids(storage, sweep)
    location = sync(storage).location
    client = MlflowClient(location.uri)
    for record in sweep.records:
        run = client.get_run(location.runs[record.number])
        files = client.list_artifacts(run.info.run_id, "images")
        assert bool(files) == (not record.has_failed) == ("mlflow.loggedImages" in run.data.tags)
        by_key: dict[str, dict[bool, Path]] = defaultdict(dict)
        for file in files:
            parts = NAME.match(Path(file.path).name)
            assert parts is not None
            assert parts["step"] == "0"
            path = Path(client.download_artifacts(run.info.run_id, file.path))
            by_key[parts["key"].replace("~", "/")][bool(parts["small"])] = path
        if not record.has_failed:
            assert sorted(by_key) == grid_keys(sweep)
            for (key, (large, small)), image in zip(
                sorted((key, (own[False], own[True])) for key, own in by_key.items()),
                pixels[record.digest],
                strict=True,
            ):
                assert np.array_equal(np.array(Image.open(large)), image), key
                assert Image.open(small).format == "WEBP"
        assert run.data.tags["mlflow.source.git.commit"] == 40 * "a"
        assert "| fid |" in run.data.tags["mlflow.note.content"] or not record.is_complete
        assert run.inputs is not None
        inputs = {entry.tags[0].value: entry.dataset for entry in run.inputs.dataset_inputs}
        assert inputs.keys() == {"captions", "reference"}
        assert "192" in str(inputs["captions"].profile)
    names = [key.partition(" ")[2] for key in grid_keys(sweep)]
    assert names[0] == CAPTIONS[0]
    assert all(re.fullmatch(r"[\w\-. ]+", name, re.ASCII) for name in names)


def test_a_server_that_refuses_datasets_has_the_rest_and_only_changes_are_described_again(
    tmp_path: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND
    from mlflow.tracking import MlflowClient

    def refuse(*_: object) -> None:
        raise MlflowException("no such endpoint", ENDPOINT_NOT_FOUND)

    described: list[int] = []

    def describe(sweep: Sweep, record: TrialRecord, *, pareto: bool) -> str:
        described.append(record.number)
        return describe_trial(sweep, record, pareto=pareto)

    monkeypatch.setattr(MlflowClient, "log_inputs", refuse)
    monkeypatch.setattr("orchestrator.views.mlflow.describe_trial", describe)
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    *_, last = write_sweep(tmp_path / "sweep", 2, name="demo", failed=())
    storage = Storage(str(tmp_path / "sweep"))
    view = MlflowView(storage)
    view.update(Sweep.open(storage))
    write_trial(storage, replace(last, label="changed"))
    view.update(Sweep.open(storage))
    view.close()
    assert described == [0, 1, 1]
    assert len([note for note in view.notes if "no such endpoint" in note]) == 1
    assert view.location is not None
    client = MlflowClient(view.uri)
    for run_id in view.location.runs.values():
        assert client.get_run(run_id).info.status == "FINISHED"


def test_samples_of_a_caption_are_steps_of_one_key(tmp_path: Path) -> None:
    write_sweep(tmp_path, 1, shards=True)
    sweep = Sweep.open(tmp_path)
    (record,) = sweep.records
    keys = image_keys(sweep.storage, record)
    assert [key.step for key in keys] == [0, 0, 0]
    tile = Image.new("RGB", (SIDE, SIDE))
    samples = [keys[0], keys[0]._replace(step=1)]
    folder = tmp_path / "run"
    folder.mkdir()
    write_images(folder, png(image_grid([tile, tile], COLUMNS)), sweep.identity, record, samples)
    found = [NAME.match(path.name) for path in (folder / "images").glob("*.png")]
    assert {(parts["key"], parts["step"]) for parts in found if parts} == {
        (keys[0].key.replace("/", "~"), "0"),
        (keys[0].key.replace("/", "~"), "1"),
    }


def test_a_grid_of_another_size_has_no_images(tmp_path: Path) -> None:
    write_sweep(tmp_path, 1, shards=True)
    sweep = Sweep.open(tmp_path)
    (record,) = sweep.records
    keys = image_keys(sweep.storage, record)
    write_images(tmp_path, png(Image.new("RGB", (SIDE - 1, SIDE))), sweep.identity, record, keys)
    wide = replace(sweep.identity, grid=(GRID[0], 2 * GRID[1]))
    write_images(tmp_path, png(Image.new("RGB", (SIDE - 1, SIDE // 2))), wide, record, keys)
    assert not (tmp_path / "images").exists()
