"""The Python API of sweeps: choices, plots, and what a notebook shows."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from matplotlib.collections import PathCollection

import specfrontier
from orchestrator.front.front import front_of
from orchestrator.store.records import write_trial
from orchestrator.text import percent
from search_spaces.trial import DecodingConfig
from specfrontier import CommandError, QueryError, Sweep
from tests.fakes.local_pool import local_launches
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.tiny_models import tiny_scenes
from workers.data.storage import Storage


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("sweep")
    write_sweep(folder, trials=16, name="mine")
    return Sweep.open(folder)


def test_best_is_the_fastest_within_the_limits(sweep: Sweep) -> None:
    best = sweep.best("fid <= 1.3 * vanilla")
    limit = 1.3 * sweep.trial(0)["fid"]
    fids, speeds = (sweep.to_pandas()[name] for name in ("fid", "speedup"))
    assert best["fid"] <= limit
    assert best["speedup"] == speeds[fids <= limit].max()
    assert best.probability is not None
    assert 0 < best.probability <= 1
    assert best.gain_probability is not None
    assert 0.9 < best.gain_probability <= 1
    assert "better than vanilla" in best._repr_html_()
    assert sweep.trial(0).gain_probability is None
    assert sweep.best("speedup <= vanilla", "speedup >= vanilla").probability is None, (
        "vanilla is certain"
    )
    assert best["speedup"] < sweep.best()["speedup"], "without limits the fastest of all"
    assert sweep.best(x="fid", y="speedup")["fid"] == fids.min()
    with pytest.raises(QueryError, match=r"none of \d+ trials is within fid <= 0"):
        sweep.best("fid <= 0")


def test_names_in_files_do_not_control_the_terminal(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=8)
    write_trial(Storage(str(tmp_path)), replace(records[1], label="\x1b[31mred"))
    opened = Sweep.open(tmp_path)
    opened = replace(opened, identity=replace(opened.identity, name="one\x1b[2J"))
    texts = repr(opened), repr(opened.best(lossless=True))
    assert all("[31mred" in text and "\x1b" not in text for text in texts)


def test_the_fastest_lossless_setting(sweep: Sweep) -> None:
    best = sweep.best(lossless=True)
    assert not best.config.acceptance.is_relaxed
    lossless = sweep.to_pandas().query("lossless and state == 'complete'")
    assert best["speedup"] == lossless["speedup"].max() < sweep.best()["speedup"]
    assert "better than vanilla" in best._repr_html_()
    equal = sweep.best(lossless=True, x="fid", y="speedup")
    assert "better than vanilla" not in equal._repr_html_(), "it has vanilla's own fid"


def test_the_knee_is_on_the_front(sweep: Sweep) -> None:
    knee = sweep.knee()
    assert knee.number in sweep.front()["number"].to_pylist()
    assert knee.objectives == ("speedup", "fid")


def test_a_trial_by_its_number(sweep: Sweep) -> None:
    assert sweep.trial(2).config == sweep.records[2].config
    with pytest.raises(QueryError, match="999"):
        sweep.trial(999)
    with pytest.raises(KeyError, match="trial 2, 'fud': unknown metric; did you mean 'fid'"):
        sweep.trial(2)["fud"]


def test_a_config_is_saved_as_generate_reads_it(sweep: Sweep, tmp_path: Path) -> None:
    from search_spaces.documents import read_document

    best = sweep.best()
    path = best.save(tmp_path / "fast.yaml")
    assert (
        DecodingConfig.from_mapping(read_document(path.read_bytes(), "fast.yaml").data)
        == best.config
    )


def test_a_repr_says_where_the_sweep_is_from_here(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(sweep.storage.display_name)
    assert f"({folder})" in repr(sweep)
    monkeypatch.chdir(folder.parent)
    assert f"({folder.name})" in repr(sweep)


def test_a_sweep_shows_what_it_recommends(sweep: Sweep) -> None:
    headline, *choices = repr(sweep).split("\n")
    assert len(headline) < 200
    best, lossless, knee = (
        sweep.best("fid <= 1.2 * vanilla"),
        sweep.best(lossless=True),
        sweep.knee(),
    )
    for line, trial in zip(choices, (best, lossless, knee), strict=True):
        assert line == f"  {trial.choice}: {trial!r}"
        assert f", {trial.against_vanilla('fid')}" in line
    assert lossless.change("fid") == "vanilla's (lossless)"
    assert "%" in best.change("fid")
    html = replace(sweep, identity=replace(sweep.identity, name="<b>mine</b>"))._repr_html_()
    assert "&lt;b&gt;mine" in html
    assert "<b>mine" not in html
    assert html.count("<tr>") == 2 + 3 + sweep.front().num_rows
    assert best.change("fid") in html
    assert "100 %" not in html, "draws make nothing certain"


def test_the_default_front_is_made_once(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    fresh = sweep.reload()
    with mock.patch("specfrontier.sweep.front_of", wraps=front_of) as made:
        shown = repr(fresh), fresh._repr_html_(), fresh.best().number, fresh.knee().number
        fresh.plot()
        assert made.call_count == 1
        assert fresh.best(x="latency", y="drift").objectives == ("latency", "drift")
        assert made.call_count == 2
        assert fresh.reload().knee().number == shown[-1]
        assert made.call_count == 3


def test_a_trial_shows_its_change_against_vanilla(sweep: Sweep) -> None:
    best, vanilla = sweep.best("fid <= 1.2 * vanilla"), sweep.trial(0)
    value, error = best.changes["fid"]
    assert value == pytest.approx(100 * (best["fid"] / vanilla["fid"] - 1))
    assert error > 0
    assert "speedup against vanilla" not in best._repr_html_(), "it is relative to vanilla already"
    assert not vanilla.changes
    html = best._repr_html_()
    assert best.choice.replace("<", "&lt;") in html
    assert f"{percent(best.probability or 0).replace('>', '&gt;')} of draws" in html
    assert "<tr></tr>" not in html


def test_reload_sees_new_trials(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=6)
    before = Sweep.open(tmp_path)
    write_sweep(tmp_path, trials=8)
    assert (len(before.records), len(before.reload().records)) == (6, 8)
    assert type(before.reload()) is Sweep


def test_plots_show_every_candidate(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    candidates = sweep.front(everything=True).num_rows
    axes = sweep.plot()
    labels = [axes.get_xlabel(), axes.get_ylabel()]
    assert all(name in label for name, label in zip(("speedup", "fid"), labels, strict=True))
    points = [
        drawn
        for drawn in axes.collections
        if isinstance(drawn, PathCollection) and len(drawn.get_facecolor())
    ]
    assert sum(np.shape(drawn.get_offsets())[0] for drawn in points) == candidates, (
        "rings have no face"
    )
    assert sweep.plot(ax=axes) is axes


def test_every_public_name_exists() -> None:
    assert all(getattr(specfrontier, name) is not None for name in specfrontier.__all__)
    with pytest.raises(AttributeError):
        _ = specfrontier.nothing


def test_questions_and_plots_need_no_torch(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=8, shards=True)
    code = (
        "import sys, json; from specfrontier import Sweep; s = Sweep.open(sys.argv[1]); "
        "s.front(everything=True)\ns.best(), s.knee(), s.plot(), s._repr_html_(), "
        "s.images(1)\nprint(json.dumps([m for m in ('torch', 'ray', 'optuna', 'mlflow', "
        "'transformers') if m in sys.modules]))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert json.loads(ran.stdout) == []


def test_launch_runs_a_sweep_and_resumes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_scenes(tmp_path / "weights")
    space = tmp_path / "tiny.yaml"
    space.write_text(
        f"name: tiny\nmodels: {tmp_path}/weights\ncaptions: {{source: scenes, count: 24}}\n"
        "reference: {source: none}\nobjectives: [step_compression, caption_accuracy]\n"
        "metrics: [step_compression, caption_accuracy]\nquality: {batch: 24, shard: 24}\n"
        "budget: {trials: 2}\nenqueue: [vanilla]\n"
        "space: {drafter: eagle, tree: {policy: chain, length: {values: [2, 4]}}}\n"
    )
    with local_launches():
        sweep = Sweep.launch(
            space, tmp_path, settings={"captions.count": 12, "quality.shard": 12}, mlflow=False
        )
        assert (sweep.name, len(sweep.records)) == ("tiny", 2)
        assert {record.images for record in sweep.records} == {12}
        with pytest.raises(CommandError, match="a sweep exists here"):
            Sweep.launch(space, tmp_path, mlflow=False)
        settings = {"captions.count": 12, "quality.shard": 12}
        longer = Sweep.launch(
            space, tmp_path, settings=settings, trials=3, resume=True, mlflow=False
        )
    assert len(longer.records) == 3
    assert "3 trials" in capsys.readouterr().out


def test_an_interrupted_call_names_the_call_that_resumes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "orchestrator.launch.supervise.launch", mock.Mock(side_effect=KeyboardInterrupt)
    )
    with pytest.raises(CommandError, match="resume=True") as interrupted:
        Sweep.launch("quickstart", tmp_path, mlflow=False)
    assert interrupted.value.code == 130
    assert "specfrontier launch" not in str(interrupted.value)
