"""Recordings on disk: used again if they fit, refused if they are of other weights or captions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from search_spaces.params import ConfigError
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_models import tiny_scenes
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.models.checkpoint_files import WeightsError, load_tensors
from workers.models.own_files import read_config, save
from workers.replay.replayer import Replayer
from workers.scenes.images import sample_captions

REQUESTS = [Request(index, text) for index, text in enumerate(sample_captions(1, 3))]


def config(tree: dict[str, object], temperature: float = 1.0) -> DecodingConfig:
    mapping = {"drafter": "eagle", "tree": tree, "acceptance": {"schedule": "constant", "budget": 1.5}}
    return DecodingConfig.from_mapping(mapping).with_sampling(Sampling(temperature=temperature))


ADJACENCY = {"depth_range": [1, 2], "width_range": [1, 2], "start_depth": 1, "start_width": 1, "nodes": 3}
SETTINGS = [
    config({"policy": "chain", "length": 3}),
    config({"policy": "chain", "length": 2}),
    config({"policy": "dynamic", "depth": 2, "width": 2, "nodes": 3}),
    config({"policy": "adjacency", **ADJACENCY}),
    config(
        {
            "policy": "adjacency",
            "depth_range": [1, 2],
            "width_range": [1, 2],
            "start_depth": 1,
            "start_width": 1,
            "nodes": 3,
        }
    ),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return load_folder(tiny_scenes(tmp_path_factory.mktemp("weights")))


def replayer(models: Models, folder: Path, requests: list[Request] = REQUESTS) -> Replayer:
    return Replayer(models, requests, folder=folder)


def forbid_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(*_: object, **__: object) -> None:
        raise AssertionError("recorded again")

    monkeypatch.setattr(Engine, "run", run)


def test_recordings_are_used_again(models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = replayer(models, tmp_path)
    first.record(SETTINGS)
    forbid_runs(monkeypatch)
    again = replayer(models, tmp_path)
    again.record(SETTINGS[1:])
    for setting in SETTINGS[1:]:
        assert again.predict(setting) == first.predict(setting)
    again.record(SETTINGS)  # in memory by now


def test_a_larger_tree_or_another_temperature_is_recorded(models: Models, tmp_path: Path) -> None:
    replayer(models, tmp_path).record(SETTINGS[:1])
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    again = replayer(models, tmp_path)
    longer = config({"policy": "chain", "length": 4})
    again.record([longer, config({"policy": "chain", "length": 3}, 0.7)])
    assert again.predict(longer).mean_accepted_length.value >= 1
    assert path.read_bytes() != before
    assert len(list(tmp_path.iterdir())) == 2


def test_other_weights_and_captions_are_refused(models: Models, tmp_path: Path) -> None:
    replayer(models, tmp_path).record(SETTINGS[:1])
    (path,) = tmp_path.iterdir()
    changed = replace(models, hashes=dict.fromkeys(models.hashes, "0" * 16))
    for other, what in (
        (replayer(changed, tmp_path), "weights"),
        (replayer(models, tmp_path, REQUESTS[:2]), "captions"),
    ):
        with pytest.raises(WeightsError) as refused:
            other.record(SETTINGS[:1])
        assert str(path) in str(refused.value)
        assert what in str(refused.value)
        assert "delete" in str(refused.value)


def test_a_recording_of_a_plugins_tree_is_not_damaged(models: Models, tmp_path: Path) -> None:
    replayer(models, tmp_path).record(SETTINGS[:1])
    (path,) = tmp_path.iterdir()
    facts = read_config(path)
    save(path, load_tensors(path), facts | {"tree": {"policy": "comb"}})
    with pytest.raises(ConfigError, match=f"{path.name}.*'comb'") as refused:
        replayer(models, tmp_path).record(SETTINGS[:1])
    assert "delete" not in str(refused.value)


def test_a_file_is_refused_before_any_image_of_others(
    models: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, dynamic = SETTINGS[0], SETTINGS[2]
    replayer(models, tmp_path).record([dynamic])
    changed = replace(models, hashes=dict.fromkeys(models.hashes, "0" * 16))
    forbid_runs(monkeypatch)
    with pytest.raises(WeightsError, match="weights"):
        replayer(changed, tmp_path).record([chain, dynamic])


def test_a_file_that_is_no_recording_is_refused(models: Models, tmp_path: Path) -> None:
    replayer(models, tmp_path).record(SETTINGS[:1])
    (path,) = tmp_path.iterdir()
    path.write_bytes(b"no safetensors")
    with pytest.raises(WeightsError, match=path.name):
        replayer(models, tmp_path).record(SETTINGS[:1])
