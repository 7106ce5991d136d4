"""A sweep's files, opened with Optuna, its dashboard, pandas and DuckDB."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.fakes.ports import HOST, claim_port
from tests.fakes.real_sweeps import CAPTIONS, SweepRun
from tests.fakes.waiting import HANG_S

pytestmark = pytest.mark.slow(seconds=40)


def get(address: str, process: subprocess.Popen[bytes]) -> bytes:
    """The answer of a server that is starting."""
    end = time.monotonic() + HANG_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=HANG_S) as answer:
                content: bytes = answer.read()
                return content
        except (urllib.error.URLError, OSError):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.2)


def test_optuna_opens_the_study_and_plots_its_front(small: SweepRun) -> None:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    storage = JournalStorage(JournalFileBackend(str(small.store / "study.log")))
    study = optuna.load_study(study_name="small", storage=storage)
    assert study.metric_names == ["step_compression", "caption_accuracy"]
    for trial, record in zip(study.trials, small.records, strict=True):
        assert list(trial.params.values()) == list(record.params.values())
        assert trial.values == [record.metrics[name].value for name in study.metric_names]
    figure = optuna.visualization.plot_pareto_front(study)
    drawn = {
        (x, y) for part in figure.data for x, y in zip(part.x or (), part.y or (), strict=True)
    }
    assert drawn == {tuple(trial.values) for trial in study.trials}


def test_optunas_dashboard_shows_the_study(small: SweepRun) -> None:
    port = claim_port()
    command = [
        str(Path(sys.executable).with_name("optuna-dashboard")),
        str(small.store / "study.log"),
    ]
    with subprocess.Popen(
        [*command, "--host", HOST, "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert b"<html" in get(f"http://{HOST}:{port}/dashboard", process).lower()
            (study,) = json.loads(get(f"http://{HOST}:{port}/api/studies", process))[
                "study_summaries"
            ]
            assert study["study_name"] == "small"
            assert study["directions"] == ["maximize", "maximize"]
            trials = json.loads(
                get(f"http://{HOST}:{port}/api/studies/{study['study_id']}", process)
            )["trials"]
            assert [trial["state"] for trial in trials] == ["Complete"] * 6
        finally:
            process.terminate()


def test_pandas_opens_the_trials_and_the_images(small: SweepRun) -> None:
    import pandas as pd

    trials = pd.read_parquet(small.store / "trials.parquet")
    assert trials["number"].tolist() == list(range(6))
    assert trials["step_compression"].tolist() == [
        r.metrics["step_compression"].value for r in small.records
    ]
    assert trials["speedup"].min() > 0
    timings = pd.concat(map(pd.read_parquet, (small.store / "timings").glob("timing-*.parquet")))
    assert (timings["wall"] > timings["prefill"]).all()
    shapes = {
        config.digest(): config.shape for record in small.records if (config := record.config)
    }
    assert {shapes[setting] for setting in timings["setting"]} == set(shapes.values())
    images = pd.read_parquet(next((small.store / "shards").glob("quality-*.parquet")))
    assert len(images) == 14
    assert images["tokens"].map(len).unique().tolist() == [len(images["tokens"][0])]
    assert images["caption"].str.len().min() > 0


def test_duckdb_opens_the_trials_and_all_images_at_once(small: SweepRun) -> None:
    import duckdb

    def first(query: str) -> object:
        return duckdb.connect().execute(query).fetchone()

    table = f"'{small.store}/trials.parquet'"
    best = first(
        f'SELECT number, "drafter.kind" FROM {table} ORDER BY step_compression DESC LIMIT 1'
    )
    values = {record.number: record.metrics["step_compression"].value for record in small.records}
    assert best == (max(values, key=values.__getitem__), "eagle")
    rows = first(
        f"SELECT count(*), count(DISTINCT caption) FROM '{small.store}/shards/quality-*.parquet'"
    )
    settings = {record.digest for record in small.records}
    assert rows == (CAPTIONS * len(settings), CAPTIONS)
