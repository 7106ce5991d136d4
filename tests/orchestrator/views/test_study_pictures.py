"""The artifacts of a study in a sweep's folder: its pictures, by links."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.artifacts import FileSystemArtifactStore, get_all_artifact_meta

from orchestrator.views.study import open_storage
from search_spaces.presets import preset
from tests.fakes.studies import named_config, plain_record, write_study

CONFIG = preset("vanilla")
PICTURE, HEAT_MAP = b"picture", b"heat map"


def write_pictured_study(folder: Path) -> None:
    """A study of two trials with the same config beside its pictures."""
    records = [replace(plain_record(number), config=CONFIG) for number in range(2)]
    write_study(named_config("mine"), folder / "study.log", records)


def artifacts(folder: Path) -> list[dict[str, bytes]]:
    """The artifacts of each trial, by their files' names."""
    storage, store = open_storage(str(folder / "study.log")), FileSystemArtifactStore(folder / "artifacts")
    found = []
    for trial in optuna.load_study(study_name="mine", storage=storage).trials:
        entries = get_all_artifact_meta(trial, storage=storage)
        assert {entry.mimetype for entry in entries} <= {"image/png"}
        found.append({entry.filename: store.open_reader(entry.artifact_id).read() for entry in entries})
    return found


def draw(folder: Path, name: str, content: bytes) -> None:
    (folder / name).mkdir(exist_ok=True)
    (folder / name / f"{CONFIG.digest()}.png").write_bytes(content)


def test_each_trial_has_the_pictures_of_its_config(tmp_path: Path) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    draw(folder, "pictures", PICTURE)
    draw(folder, "heatmaps", HEAT_MAP)
    write_pictured_study(folder)
    assert artifacts(folder) == [{"images.png": PICTURE, "heatmap.png": HEAT_MAP}] * 2
    moved = folder.rename(tmp_path / "there")
    draw(moved, "pictures", b"of a revived trial")
    assert artifacts(moved) == [{"images.png": b"of a revived trial", "heatmap.png": HEAT_MAP}] * 2


def test_a_study_elsewhere_has_no_artifacts(tmp_path: Path) -> None:
    write_pictured_study(tmp_path)
    assert artifacts(tmp_path) == [{}, {}]
    assert [path.name for path in tmp_path.iterdir()] == ["study.log"]


def test_a_file_system_without_links_has_no_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    draw(tmp_path, "pictures", PICTURE)
    write_pictured_study(tmp_path)
    assert artifacts(tmp_path) == [{}, {}]
