"""Models of the Hub: pulled before a sweep or on every node, found by its workers, pinned in its
identity.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.models import pull_files
from orchestrator.cluster.pull import Pulled, _pull, pull_on_nodes
from orchestrator.cluster.ray_internals import without_services
from orchestrator.store.files import IDENTITY
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.hub import HubServer, hub_server
from tests.fakes.local_pool import local_launches
from tests.fakes.ray_starts import start_ray
from tests.fakes.real_sweeps import SWEEP, SweepRun, ray_folder
from tests.fakes.tiny_models import tiny_scenes
from workers.loading.hub import HubFile

pytestmark = pytest.mark.slow(seconds=40)
TEXT = SWEEP.replace("name: small", "name: hubs")
ENTRY = "mine: {family: scenes, folder: 'hf://lab/scenes', dtype: float32}\n"


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    """A Hub with the weights of the small sweep."""
    folder = tiny_scenes(tmp_path / "made")
    with hub_server(tmp_path / "cache") as server:
        files = {
            file.relative_to(folder).as_posix(): file.read_bytes()
            for file in folder.rglob("*")
            if file.is_file()
        }
        server.commit("lab/scenes", files)
        yield server


def write_models(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "models.yaml"
    path.write_text(ENTRY)
    return path


def test_a_sweep_of_models_that_are_on_the_hub(hub: HubServer, tmp_path: Path) -> None:
    run = SweepRun(tmp_path / "run", TEXT, models=write_models)
    arguments = run.arguments("--no-mlflow", "--trials", "2")
    refused = error_of(*arguments, code=2)
    assert "hf://lab/scenes" in refused
    assert "specfrontier models pull" in refused
    assert hub.fetched == [], "a launch downloads nothing unless it is told to"
    with local_launches():
        launched = specfrontier(*arguments, "--pull")
    assert launched.code == 0, launched.err
    (commit,) = hub.repos["lab/scenes"]
    identity = json.loads((run.store / IDENTITY).read_text())
    assert identity["files"]["target"] == f"hf://lab/scenes/target.safetensors@{commit}"
    fetched = len(hub.fetched)
    with local_launches():
        assert specfrontier(*arguments, "--resume").code == 0
    assert len(hub.fetched) == fetched

    hub.commit("lab/scenes", dict(hub.repos["lab/scenes"][commit]) | {"config.json": b"{}"})
    assert "--resume" in error_of(*arguments, "--pull", code=2)
    assert len(hub.fetched) == fetched, "what is refused downloads nothing"

    newer = dict(hub.repos["lab/scenes"][commit])
    name = next(name for name in newer if name.startswith("eagle"))
    hub.commit("lab/scenes", newer | {name: changed(newer[name])})
    assert (
        specfrontier("models", "pull", str(tmp_path / "run" / "weights" / "models.yaml")).code == 0
    )
    with local_launches():
        moved = error_of(*arguments, "--resume", code=2)
    assert f"@{commit}" in moved, "the revision to go back to"


def test_a_ray_client_has_the_files_too(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def ask(address: str, references: Sequence[str]) -> Iterator[Pulled]:
        asked.append(address)
        return iter(())

    monkeypatch.setattr("orchestrator.cluster.pull.pull_on_nodes", ask)
    pull_files({"folder": "hf://lab/scenes"}, "127.0.0.1:6379")
    assert HubFile("lab/scenes").cached() is None, "this machine is a node, which fetches its own"
    pull_files({"folder": "hf://lab/scenes"}, "ray://127.0.0.1:10001")
    assert HubFile("lab/scenes").cached() is not None
    assert len(asked) == 2


def test_a_failure_on_a_node_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: HubFile) -> Path:
        raise RuntimeError("no space")

    monkeypatch.setattr(HubFile, "pull", broken)
    assert _pull("hf://lab/scenes") == ("", "RuntimeError: no space")


def changed(weights: bytes) -> bytes:
    """The same safetensors file with another last number."""
    return weights[:-1] + bytes([weights[-1] ^ 1])


def test_pull_on_every_node(hub: HubServer) -> None:
    from ray.cluster_utils import Cluster

    with ray_folder() as folder, pytest.MonkeyPatch.context() as patch, without_services():
        patch.setenv("RAY_TMPDIR", str(folder))
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        memory: dict[str, Any] = {"object_store_memory": 80 << 20}
        head = {"num_cpus": 0, "include_dashboard": False} | memory
        cluster: Any = start_ray(lambda: Cluster(initialize_head=True, head_node_args=dict(head)))
        try:
            start_ray(lambda: cluster.add_node(num_cpus=1, **memory))
            done = list(pull_on_nodes(cluster.address, ["hf://lab/scenes", "hf://lab/nothing"]))
        finally:
            cluster.shutdown()
    found, missing = (
        [one for one in done if one.reference == f"hf://lab/{name}"]
        for name in ("scenes", "nothing")
    )
    assert len(found) == len(missing) == 2
    for one in found:
        assert set(hub.repos["lab/scenes"][Path(one.path).name]) >= {
            file.name for file in Path(one.path).iterdir()
        }
    assert all("hf://lab/nothing" in one.problem for one in missing)
