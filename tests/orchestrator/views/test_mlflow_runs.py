"""What is said about a trial in MLflow, the log, and addresses: without MLflow."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.front.questions import front_records
from orchestrator.store.identity import write_identity
from orchestrator.store.names import SettingNames
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from orchestrator.views import mlflow_runs as runs
from orchestrator.views.mlflow import sole_writer as sole_writer
from orchestrator.views.mlflow_client import (
    TrackingError,
    artifact_folder,
    as_tracking_error,
    public_uri,
    resolve_uri,
)
from search_spaces.presets import PRESETS
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.synthetic_sweeps import identity, write_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate

SETTING = PRESETS["lantern"].with_sampling(Sampling(1.0, 0, 1.0, 1.5))
RECORD = TrialRecord(
    number=3,
    label="lantern",
    state="complete",
    config=SETTING,
    metrics={"fid": Estimate(4.0, 0.1, 96), "speedup": Estimate(2.0, math.inf, 9)},
    constraints={"drift <= 2": -0.5},
    history=(
        (48, {"fid": Estimate(5.0, 0.2, 48), "is": Estimate(2.0, math.inf, 48)}),
        (96, {"is": Estimate(2.5, math.inf, 96)}),
    ),
    images=96,
    seconds=7.5,
    started="2026-01-02T03:04:05+00:00",
    finished="2026-01-02T03:04:06.500000+00:00",
)


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    write_sweep(tmp_path / "sweep", 1)
    return Sweep.open(tmp_path / "sweep")


GOALS = identity("demo")  # whose objectives are speedup and fid


def test_results_stand_alone_beside_their_errors_and_series() -> None:
    entries = runs.metrics(RECORD, 0, GOALS)
    assert {(entry.key, entry.step): entry.value for entry in entries} == {
        ("speedup", 9): 2.0,
        ("fid", 96): 4.0,
        ("images", 96): 96,
        ("seconds", 96): 7.5,
        ("error/fid", 96): 0.1,
        ("series/fid", 48): 5.0,
        ("series/fid", 96): 4.0,
        ("series/is", 48): 2.0,
        ("series/is", 96): 2.5,
    }
    assert {entry.key for entry in entries[:2]} == {"speedup", "fid"}, "the objectives come first"


def test_what_is_not_a_finite_number_is_never_sent() -> None:
    odd = {
        "a": Estimate(float("nan"), 1.0, 5),
        "b": Estimate(float("inf"), float("nan"), 5),
        "c": Estimate(1, -1, 5),
    }
    history = (
        (2, {"a": Estimate(float("-inf"), math.inf, 2), "c": Estimate(0.5, math.inf, 2)}),
        (5, odd),
    )
    names = [
        entry.key for entry in runs.metrics(replace(RECORD, metrics=odd, history=history), 0, GOALS)
    ]
    assert names == ["c", "images", "seconds", "error/a", "error/c", "series/c", "series/c"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("fid@32", "fid_32"),
        ("a%b", "a_b"),
        ("/x.", "x"),
        ("acceptance.lambda", "acceptance.lambda"),
        ("@", "_"),
    ],
)
def test_names_are_made_legal(name: str, expected: str) -> None:
    assert runs.legal_name(name) == expected


def test_long_texts_that_differ_at_their_end_stay_different(sweep: Sweep) -> None:
    """MLflow cuts long params and refuses long tags and names."""

    def logged(end: str) -> list[str]:
        text = "a" * 9000 + end
        record = replace(RECORD, label=text, cause=text, constraints={f"fid <= {text}": 1.0})
        tags = runs.trial_tags(record, sweep.identity)
        name = runs.run_name(record, SettingNames(sweep.identity.sampling))
        violated = runs.marks("abc", record, pareto=False)["specfrontier.violated_constraints"]
        named = [runs.legal_name(text), *runs.clean_tags({text: "x"})]
        assert all(re.fullmatch(r"[\w\-]{,250}", key) for key in named)
        assert len(name) <= 250
        values = [
            tags["specfrontier.label"],
            tags["specfrontier.cause"],
            violated,
            runs.param(text),
        ]
        assert max(map(len, values)) <= 6000
        assert all("…" in value for value in (name, *values))
        return [*named, name, *values]

    for one, other in zip(logged("b"), logged("c"), strict=True):
        assert one != other
    assert runs.param("short") == "short"


def test_long_trees_that_differ_at_their_end_have_different_params() -> None:
    def paths(last: int) -> str:
        nodes = [[number, *[0] * depth] for number in range(60) for depth in range(10)]
        tree = {"policy": "static", "paths": [*nodes, *([60 + number] for number in range(last))]}
        config = DecodingConfig.from_mapping(SETTING.to_mapping() | {"tree": tree})
        return runs.params(replace(RECORD, config=config))["tree.paths"]

    assert len(paths(1)) == 6000
    assert paths(1) != paths(2)


def test_tags_say_what_the_trial_is(sweep: Sweep) -> None:
    tags = runs.trial_tags(RECORD, sweep.identity)
    marks = runs.marks("abc", RECORD, pareto=True)
    assert marks == {
        "mlflow.parentRunId": "abc", "specfrontier.pareto": "true", "specfrontier.feasible": "true",
        "specfrontier.violated_constraints": "",
        "specfrontier.timed_on": "",
    }  # fmt: skip
    wanted = {
        "trial": "3",
        "lossless": "false",
        "digest": SETTING.digest(),
        "label": "lantern",
        "state": "complete",
        "target": "scenes",
        "seed": "0",
        "version": "0.1.0",
        "kind": "trial",
        **{f"model.{name}": value for name, value in sweep.identity.models.items()},
        **{f"extractor.{name}": value for name, value in sweep.identity.extractors.items()},
    }
    assert len(wanted) >= 12
    assert {key: tags[f"specfrontier.{key}"] for key in wanted} == wanted
    assert "specfrontier.cause" not in tags
    exact = PRESETS["eagle2"].with_sampling(sweep.identity.sampling)
    tags = runs.trial_tags(replace(RECORD, config=exact), sweep.identity)
    assert tags["specfrontier.lossless"] == "true"
    broken = replace(
        RECORD,
        state="failed",
        cause="gone: s3://key:secret@bucket/x",
        constraints={"drift <= 2": 0.5},
    )
    tags = runs.trial_tags(broken, sweep.identity)
    assert tags["specfrontier.cause"] == "gone: s3://***@bucket/x"
    marks = runs.marks("abc", broken, pareto=False)
    assert (marks["specfrontier.feasible"], marks["specfrontier.violated_constraints"]) == (
        "false",
        "drift <= 2",
    )


def test_run_names_are_short_and_leave_out_the_usual_sampling(sweep: Sweep) -> None:
    names = SettingNames(sweep.identity.sampling)
    assert runs.run_name(RECORD, names) == "3 lantern: eagle-dyn(d5,w10,n58) add(k100,d0.1)"
    assert (
        runs.run_name(replace(RECORD, label=""), names) == "3 eagle-dyn(d5,w10,n58) add(k100,d0.1)"
    )
    assert len(runs.run_name(replace(RECORD, label="long " * 100), names)) == 250
    vanilla = replace(
        RECORD, label="vanilla", config=PRESETS["vanilla"].with_sampling(sweep.identity.sampling)
    )
    assert runs.run_name(vanilla, names) == "3 vanilla"
    assert runs.run_name(replace(RECORD, config=None, label=""), names) == "3 invalid setting"


def test_a_sweep_is_the_same_wherever_its_folder_lies(tmp_path: Path) -> None:
    def sweep_id(folder: str, **changed: object) -> str:
        storage = Storage(tmp_path / folder)
        write_identity(storage, identity("a", **changed))
        return runs.sweep_id(Sweep.open(storage).identity)

    ids = [
        sweep_id("one"),
        sweep_id("two", versions={}),
        sweep_id("one", started="2026-01-02T03:00:01+00:00"),
    ]
    assert ids[0] == ids[1] != ids[2]


def test_the_front_is_of_feasible_complete_trials(sweep: Sweep) -> None:
    def trial(number: int, speedup: float, fid: float, **changed: object) -> TrialRecord:
        metrics = {"speedup": Estimate(speedup, 0.1, 9), "fid": Estimate(fid, 0.1, 96)}
        return replace(RECORD, number=number, metrics=metrics, **changed)  # type: ignore[arg-type]

    trials = [
        trial(0, 1.0, 4.0),
        trial(1, 2.0, 5.0),
        trial(2, 1.5, 6.0),
        trial(3, 9.0, 1.0, constraints={"drift <= 2": 1.0}),
        trial(4, 9.0, 1.0, state="failed"),
        replace(RECORD, number=5, metrics={"fid": Estimate(0.1, math.inf, 96)}),
    ]
    assert [record.number for record in front_records(replace(sweep, records=tuple(trials)))] == [
        0,
        1,
    ]
    assert front_records(replace(sweep, records=())) == ()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("https://me:pw@lab.example:5000/base/?token=abc#x", "https://lab.example:5000/base"),
        ("postgresql://me:p%40w@db/mlflow?sslmode=require", "postgresql://db/mlflow"),
        ("sqlite:////data/sweeps/mlflow.db", "sqlite:////data/sweeps/mlflow.db"),
        ("http://127.0.0.1:5000", "http://127.0.0.1:5000"),
    ],
)
def test_a_tracking_uri_is_shown_without_credentials(uri: str, expected: str) -> None:
    assert public_uri(uri) == expected


def test_messages_lose_credentials_in_whole_and_in_parts() -> None:
    uri = "postgresql://me:pass-word@db/mlflow?sslkey=abcdef"
    with pytest.raises(TrackingError) as caught, as_tracking_error(uri):
        raise OSError(
            f"cannot open {uri}: password 'pass-word' refused, sslkey=abcdef, tried http://u:v@w/"
        )
    message = str(caught.value)
    assert message.startswith(
        "MLflow at postgresql://db/mlflow: cannot open postgresql://db/mlflow: "
    )
    assert not [secret for secret in ("pass-word", "abcdef", "u:v") if secret in message]
    assert caught.value.__suppress_context__, "a traceback would show the original"


def test_where_a_sweep_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = Storage(str(tmp_path / "sweeps" / "one"))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    local = f"sqlite:///{tmp_path}/sweeps/mlflow.db"
    assert resolve_uri(storage, None) == local
    assert artifact_folder(local) == tmp_path / "sweeps" / "mlartifacts"
    assert artifact_folder("http://lab") is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://lab")
    assert resolve_uri(storage, None) == "http://lab"
    assert resolve_uri(storage, "http://other") == "http://other"


def test_one_writer_at_a_time_and_none_after_its_death(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path))
    code = (
        "import sys, time; from workers.data.storage import Storage\n"
        "from orchestrator.views.mlflow import sole_writer as sole_writer\n"
        "with sole_writer(Storage(sys.argv[1])): print('held', flush=True); time.sleep(3600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TrackingError, match="another process"), sole_writer(storage):
            pass
        other.kill()
        other.wait()
    with sole_writer(storage):
        assert (tmp_path / "mlflow.lock").exists()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    code = (
        "import sys; import orchestrator.views.mlflow, orchestrator.views.mlflow_client, "
        "orchestrator.cli.mlflow; print(sorted({'mlflow', 'torch', 'pyarrow', 'optuna', 'ray'} & "
        "set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_a_stopped_trials_metrics_have_names_of_their_own(sweep: Sweep) -> None:
    stopped = replace(RECORD, state="stopped", cause="trial 1 is better", images=48)
    names = {entry.key for entry in runs.metrics(stopped, 0, GOALS)}
    assert {"stopped/fid", "stopped/error/fid", "stopped/speedup", "images", "seconds"} <= names
    assert not names & {"fid", "error/fid", "speedup"}
    tags = runs.trial_tags(stopped, sweep.identity)
    assert (tags["specfrontier.state"], tags["specfrontier.images"]) == ("stopped", "48")
    assert tags["specfrontier.cause"] == "trial 1 is better"
    both = [replace(RECORD, number=0, constraints={}), replace(stopped, constraints={})]
    assert [record.number for record in front_records(replace(sweep, records=tuple(both)))] == [0]
