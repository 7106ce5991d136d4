"""What a resumed sweep must share with its start, whatever its own file says; a cluster that is
lost.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from benchmarks.simulated import file_launches
from orchestrator.cluster.placement import Node, Slots
from orchestrator.cluster.tasks import ClusterLost, PoolError
from orchestrator.launch import launch as launch_module
from orchestrator.launch.earlier import Earlier
from orchestrator.launch.launch import launch
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.read import LaunchRequest
from orchestrator.launch.start import _check_facts, keep_identity, stored_facts
from orchestrator.run.trial import Trials
from orchestrator.store.events import Event, Launch
from orchestrator.store.files import SWEEP
from orchestrator.store.identity import IdentityError, read_identity
from orchestrator.views.follower import Views
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.metric_inputs import write_session
from tests.fakes.synthetic_sweeps import identity
from workers.data.storage import Storage
from workers.metrics.timings import EAGER
from workers.runtime.specification import WorkerSpec

NEW = identity("kept")


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A store whose sweep has just started."""
    store = Storage(tmp_path / "kept")
    assert keep_identity(store, SweepConfig.read("quickstart"), NEW) == NEW
    return store


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("experiment", "f" * 20),
        ("target", "another"),
        ("models", {"target.safetensors": "00" * 8}),
        ("extractors", {"features": "another"}),
        ("captions", {"count": 3, "hash": "00" * 8, "source": "scenes"}),
        ("reference", None),
        ("baseline", DecodingConfig(sampling=Sampling(cfg=7.5))),
        ("seed", 1),
    ],
)
def test_a_resumed_sweep_with_other_facts_is_refused(
    key: str, other: Any, storage: Storage
) -> None:
    before = storage.read(SWEEP)
    with pytest.raises(IdentityError, match=f"changed .*{key}") as refused:
        keep_identity(storage, SweepConfig.read("cool"), replace(NEW, **{key: other}))
    assert "--name" in str(refused.value)
    assert storage.read(SWEEP) == before
    assert read_identity(storage) == NEW


def test_a_refusal_names_the_old_and_the_new_value(storage: Storage) -> None:
    models = {"target.safetensors": "0f" * 8, "eagle.safetensors": "77" * 8}
    with pytest.raises(IdentityError) as refused:
        keep_identity(
            storage, SweepConfig.read("cool"), replace(NEW, models=models, experiment="f" * 20)
        )
    assert "models.eagle.safetensors" in str(refused.value)
    assert "1e" * 8 in str(refused.value)
    assert "77" * 8 in str(refused.value)
    assert "target.safetensors" not in str(refused.value), "it is the same"
    assert NEW.experiment not in str(refused.value), "a digest says nothing to a reader"


def test_a_resumed_sweep_keeps_the_plugins_of_all_launches(storage: Storage) -> None:
    sweep = SweepConfig.read("quickstart")
    for given, kept in (("b", ("b",)), ("a", ("b", "a")), ("b", ("b", "a"))):
        assert keep_identity(storage, sweep, replace(NEW, plugins=(given,))).plugins == kept
        stored = read_identity(storage)
        assert stored == replace(NEW, plugins=kept)


@pytest.mark.parametrize("exists", [True, False])
def test_a_relative_path_of_models_is_found_from_other_folders(
    exists: bool, storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if exists:
        Path("models.yaml").touch()
    keep_identity(
        storage,
        SweepConfig.read("quickstart", {"models": {"file": "models.yaml", "name": "own"}}),
        NEW,
    )
    stored = SweepConfig.read(str(Path(storage.uri) / "sweep.yaml")).models
    file = str(tmp_path / "models.yaml") if exists else "models.yaml"
    assert (stored.file, stored.name) == (file, "own")
    keep_identity(storage, SweepConfig.read("quickstart", {"models": "models.yaml#own"}), NEW)
    stored = SweepConfig.read(str(Path(storage.uri) / "sweep.yaml")).models
    assert (stored.file, stored.name) == (f"{file}#own", None)


def test_versions_and_threads_may_change(storage: Storage) -> None:
    assert (
        keep_identity(storage, SweepConfig.read("quickstart"), replace(NEW, versions={}, threads=7))
        == NEW
    )


def test_workers_are_told_what_timed_a_resumed_sweep(storage: Storage) -> None:
    """During the sweep: `specfrontier time` may have timed it elsewhere since."""
    assert "timing_device" not in stored_facts(storage)
    write_session(storage, device="a processor", threads=2)
    write_session(storage, device="another", name="timings/two.parquet", is_later=True)
    assert stored_facts(storage)["timing_device"] == "a processor, 2 threads"
    assert stored_facts(Storage(f"{storage.uri}/none")) == {}


def test_a_gpu_that_gave_up_graphs_resumes_its_sweep(storage: Storage) -> None:
    """Its new process does not know yet that it will."""
    write_session(storage, device="a GPU" + EAGER, threads=0)
    assert stored_facts(storage)["timing_device"] == "a GPU"


@pytest.mark.parametrize(("new_shards", "clusters"), [((), 3), ((1, 2, 3, 4), 6), ((2,), 4)])
def test_lost_clusters_are_replaced_while_there_is_progress(
    new_shards: tuple[int, ...], clusters: int, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """new_shards: the clusters that draw a shard before they are lost."""
    started: list[int] = []
    events: list[Event] = []

    def lose(*arguments: object) -> None:
        started.append(len(started) + 1)
        if started[-1] in new_shards:
            storage.write(f"shards/{started[-1]}.parquet", b"")
        raise ClusterLost("Ray on this machine lost its raylet")

    monkeypatch.setattr(launch_module, "_launch", lose)
    request = LaunchRequest(LaunchOptions(), mock.Mock(), storage)
    with pytest.raises(PoolError, match="lost its raylet"):
        launch(request, Views(storage, []), events.append, cores=1)
    assert len(started) == clusters
    assert [type(event) for event in events] == [Launch] * clusters
    assert "raylet" in (events[1].note or "")


def test_a_metric_that_the_loaded_models_cannot_give_is_named() -> None:
    facts = {"metrics": ["speedup"]}
    with pytest.raises(
        ConfigError, match=r"objectives\[1\]: these models cannot give the metric 'fid'"
    ):
        _check_facts(SweepConfig.read("quickstart"), facts, mock.Mock())


def test_a_cluster_without_nodes_asks_for_the_kind_of_node(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a worker starts: an autoscaler would take the demand for one of CPUs."""
    monkeypatch.setattr(launch_module, "connected", lambda *arguments: nullcontext(Slots(4)))
    monkeypatch.setattr(launch_module, "alive_nodes", lambda: [Node({"CPU": 0.0})])
    monkeypatch.setattr(
        launch_module, "Pool", mock.Mock(side_effect=AssertionError("a worker started"))
    )
    options = LaunchOptions(address="head:6379", workers=4)
    request = LaunchRequest(options, SweepConfig.read("quickstart"), storage)
    with pytest.raises(PoolError, match="--gpus-per-worker"):
        launch(request, Views(storage, []), lambda event: None, cores=1)


def test_racing_counts_the_trials_of_earlier_sweeps(tmp_path: Path) -> None:
    """Those of the first sweep, of which the second one's rivals are the front, at its start and
    when it is resumed.
    """
    counts: list[int] = []

    class Counting(Trials):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            counts.append(self.racing.earlier)

    def run(name: str, taken: Earlier | None) -> str:
        changes = {
            "budget.trials": 4,
            "captions.count": 48,
            "reference.count": 96,
            "racing.rungs": [24],
        }
        changes["search"] = {"sampler": "random"}
        sweep = replace(SweepConfig.read("quickstart", changes), name=name)
        storage = Storage(tmp_path / name)
        Path(tmp_path / name).mkdir(exist_ok=True)
        extended = (taken or Earlier()).extend(sweep)
        request = LaunchRequest(LaunchOptions(), extended, storage, taken)
        with file_launches([]), mock.patch.object(launch_module, "Trials", Counting):
            launch(request, Views(storage, []), lambda event: None, cores=1)
        return storage.uri

    first = run("first", None)
    taken = Earlier.read([first], SweepConfig.read("quickstart"))
    second = Storage(run("second", taken))
    run("second", Earlier.stored(second))
    assert counts == [0, 4, 4]


@pytest.mark.parametrize(("share", "is_checked"), [(0.5, True), (1.0, False), (0.0, False)])
def test_workers_that_share_a_gpu_are_given_the_sweep(
    share: float, is_checked: bool, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They check its peak against their memory."""
    specs: list[dict[str, Any]] = []

    def start(spec: dict[str, Any], *_: object) -> None:
        specs.append(spec)
        raise PoolError("enough")

    monkeypatch.setattr(launch_module, "connected", lambda *_: nullcontext(Slots(2, 1.0, share)))
    monkeypatch.setattr(launch_module, "Pool", start)
    sweep = SweepConfig.read("quickstart")
    request = LaunchRequest(LaunchOptions(gpus_per_worker=share), sweep, storage)
    with pytest.raises(PoolError, match="enough"):
        launch(request, Views(storage, []), lambda event: None, cores=1)
    (spec,) = specs
    assert spec["gpu_share"] == (share or 1.0)
    assert spec["sweep"] == (sweep.to_mapping() if is_checked else None)
    assert WorkerSpec(**spec).sweep == spec["sweep"]
