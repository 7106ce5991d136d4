"""`specfrontier launch` before any worker starts: options, files, the store, and the printed
plan.
"""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from pathlib import Path
from typing import IO, Any
from unittest import mock

import optuna
import pytest
import ray
import torch
import yaml
from PIL import Image

from orchestrator.cli.launch import _summary
from orchestrator.cli.launch_plan import describe_plan, describe_reference
from orchestrator.cli.text import say
from orchestrator.cluster.tasks import Outcome, PoolError
from orchestrator.launch.inspection import Inspection
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.read import LaunchRequest
from orchestrator.launch.supervise import _finish, _only_vanilla_ran, _sweep_views
from orchestrator.store import events, locks
from orchestrator.store.checked_text import dump_yaml
from orchestrator.store.files import write_sweep_text
from orchestrator.store.identity import write_identity
from orchestrator.store.locks import Lock, driver_lock
from orchestrator.store.records import EarlyStop, TrialRecord, write_trial
from orchestrator.views.follower import Ending, View, Views
from orchestrator.views.mlflow import MlflowView
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.real_sweeps import ROOT
from tests.fakes.synthetic_sweeps import identity, write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.captions import captions_hash, read_captions
from workers.data.files import hidden_name
from workers.data.storage import Storage
from workers.loading.models_yaml import find_entry
from workers.metrics.extractors import Extractors
from workers.scenes.images import IMAGE_SIZE, sample_captions

SPACE = """\
name: tested
captions: {source: scenes, count: 96, seed: 1}
reference: {source: scenes, count: 128, seed: 2}
quality: {batch: 8, shard: 48}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
objectives: [speedup, fid]
search: {sampler: random, parallel: 2}
budget: {trials: 3}
enqueue: [vanilla, {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}
"""
Words = tuple[str, ...]


class RayStarted(BaseException):
    """Raised instead of starting Ray."""


pytestmark = pytest.mark.usefixtures("equal_dry_runs_once")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A working folder with tested.yaml; Ray must not start."""

    def start(*arguments: object, **options: object) -> None:
        raise RayStarted

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    write()


def write(**sections: Any) -> None:
    """tested.yaml, with sections replaced."""
    text = yaml.safe_dump(yaml.safe_load(SPACE) | sections, sort_keys=False) if sections else SPACE
    Path("tested.yaml").write_text(text)


def refusal(*words: str, code: int = 2, space: str = "tested.yaml") -> str:
    """The one-line error of a launch, alone if the sweep's file is refused, else after a line about
    the checks.
    """
    *before, message = error_of("launch", space, *words, code=code).splitlines(keepends=True)
    assert message.startswith("Error: ")
    assert len(before) <= 1
    return message


def assert_starts(*words: str) -> None:
    with pytest.raises(RayStarted):
        specfrontier("launch", "tested.yaml", "--no-mlflow", *words)


def test_the_first_line_comes_before_anything_heavy_is_imported() -> None:
    code = (
        "import sys, typer; from orchestrator.cli import app; heavy = {'torch', 'ray', 'optuna', "
        "'pyarrow', 'numpy'}\ndef echo(text, **options): print(sorted(heavy & set(sys.modules))); "
        "raise SystemExit\ntyper.echo = echo; sys.argv = ['specfrontier', 'launch', "
        "'tested.yaml', '--check']; app.main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_check_prints_the_plan_and_leaves_no_files() -> None:
    result = specfrontier("launch", "tested.yaml", "--check")
    assert result.code == 0, result.err
    assert "3 trials" in result.out
    assert "96 images a trial, fewer of a lossless one, at most 288 in all" in result.out
    for line in (
        "images of scenes\n",
        "sampling    temperature 1, top_k 0, top_p 1, cfg 1.5",
        "    tree.length 2 to 6",
        "objectives  ",
        "seed        ",
    ):
        assert line in result.out
    assert sorted(path.name for path in Path().iterdir()) == ["tested.yaml"]
    assert_starts()


def test_the_number_of_reference_images_is_the_true_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In `--check` and in the output of a launch: 70 of 150 files are images, and a count of 5000
    does not hide it.
    """
    Path("photos").mkdir()
    for number in range(70):
        Image.new("RGB", (48, 48), (number, 0, 0)).save(f"photos/{number}.png")
        Path(f"photos/{number}.tiff").write_bytes(b"x")
    write(reference={"source": "photos", "count": 5000})
    text = "70 images of photos; left out: 70 .tiff\n"
    assert f"  reference   {text}" in specfrontier("launch", "tested.yaml", "--check").out
    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.cli.launch.run_sweep", lambda *_, **__: None)
        assert (
            f"tested: reference: {text}" in specfrontier("launch", "tested.yaml", "--no-mlflow").err
        )
    write(reference={"source": "photos", "count": 66})
    assert (
        "  reference   66 images of photos; left"
        in specfrontier("launch", "tested.yaml", "--check").out
    )


def test_the_files_left_out_of_a_folder_of_captions_are_said() -> None:
    folder = Path("scenes that I drew")
    folder.mkdir()
    for number, text in enumerate(sample_captions(0, 96)):
        Image.new("RGB", (48, 48), (number, 0, 0)).save(folder / f"{number}.png")
        (folder / f"{number}.txt").write_text(text)
        (folder / f"{number}.tiff").write_bytes(b"x")
    write(captions={"source": str(folder), "count": 96})
    text = f"  captions    96 of {folder}, seed 1; left out: 96 .tiff\n"
    assert text in specfrontier("launch", "tested.yaml", "--check").out


def test_a_reference_on_the_clusters_machines_only() -> None:
    found = SweepConfig.parse(
        Path("tested.yaml").read_bytes(), "tested.yaml", {"reference.source": "/mnt/photos"}
    )
    assert describe_reference(found.reference).startswith(
        "at most 128 images of /mnt/photos; not checked: "
    )


def test_a_launch_removes_what_killed_ones_left() -> None:
    """In folders that only the driver and its workers write to; where other commands write, only
    old files.
    """
    sweep = Path("sweeps/tested")
    left = {
        folder: sweep / folder / hidden_name("x.json")
        for folder in ("trials", "shards", "measures", "timings", "")
    }
    old = [sweep / folder / hidden_name("y.json") for folder in ("timings", "")]
    for path in (*left.values(), *old):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"half")
    for path in old:
        os.utime(path, (0, 0))
    with driver_lock(Storage(sweep)):
        assert "another launch" in error_of("launch", "tested.yaml", "--no-mlflow", code=1)
    assert all(path.exists() for path in (*left.values(), *old)), "they are the other launch's"
    assert_starts()
    assert [folder for folder, path in left.items() if path.exists()] == ["timings", ""]
    assert not any(path.exists() for path in old)


def plan_lines(sweep: SweepConfig, storage: Storage | None = None) -> list[str]:
    """The plan of a sweep whose models are not on this machine."""
    request = LaunchRequest(LaunchOptions(), sweep, storage or Storage("sweeps/tested"))
    with mock.patch.object(Inspection, "has_files", False):
        return describe_plan(Inspection(request)).splitlines()


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_the_plan_fits_the_terminal(
    columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    lines = plan_lines(SweepConfig.read("quickstart"), Storage(tmp_path / "quickstart"))
    assert max(map(len, lines)) <= min(columns, 120)
    assert len(lines) > 15


def test_the_plan_names_keys_their_branches_and_a_space_smaller_than_the_budget() -> None:
    write(
        space=[
            {"drafter": "eagle", "tree": {"policy": "chain", "length": {"values": [2, 3]}}},
            {"drafter": "none"},
        ]
    )
    out = specfrontier("launch", "tested.yaml", "--check", "--trials", "9").out
    assert "    branch      eagle | none\n" in out
    assert "    tree.length 2, 3\n" in out
    assert "budget      9 trials; there are at most " in out


def test_the_plan_of_an_untimed_sweep() -> None:
    write(objectives=["step_compression", "mean_accepted_length"], metrics=["target_passes"])
    assert "timing      none" in specfrontier("launch", "tested.yaml", "--check").out


def test_the_plan_says_how_many_captions_a_session_takes() -> None:
    """Whole batches of each size, at least two."""
    write(timing={"batch": [1, 8], "images": 3, "repetitions": 4})
    line = "each shape in turn with vanilla, 16 captions x at most 4 in a session, batch 1 and 8"
    assert line in " ".join(specfrontier("launch", "tested.yaml", "--check").out.split())


def test_the_plan_has_vanilla_first_where_the_target_is_not_there() -> None:
    write(
        sampling=None,
        enqueue=["eagle1"],
        space={"drafter": "eagle", "tree": {"policy": "chain", "length": 3}},
    )
    lines = plan_lines(SweepConfig.read("tested.yaml", {"budget.trials": 9}))
    assert "  first       vanilla, eagle1" in lines
    assert "  budget      9 trials; there are at most 3 settings" in lines


def test_the_plan_of_a_single_setting() -> None:
    write(space={"drafter": "eagle", "tree": {"policy": "chain", "length": 3}})
    lines = plan_lines(SweepConfig.read("tested.yaml"))
    assert "  space       1 point" in lines


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("budget: {trials: 3}", "budget: {trials: 3", ("tested.yaml:10",)),
        ("budget:", "budgets:", ("tested.yaml:9: budgets", "budget")),
        ("{low: 2, high: 6}", "{low: 6, high: 2}", ("tested.yaml:11: space.tree.length",)),
        ("[vanilla,", "[vanila,", ("tested.yaml:10: enqueue[0]", "vanilla")),
        ("sampler: random", "sampler: cmaes", ("tested.yaml:8: search.sampler", "tpe")),
        ("name: tested", "name: ../tested", ("tested.yaml:1: name",)),
    ],
)
def test_errors_name_the_line(old: str, new: str, parts: Words) -> None:
    assert SPACE.count(old) == 1
    Path("tested.yaml").write_text(SPACE.replace(old, new))
    message = refusal()
    for part in parts:
        assert part in message
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (("--set", "quality.batch"), 2, ("--set quality.batch", "KEY=VALUE")),
        (("--set", "quality.batch={"), 2, ("--set quality.batch", "not valid YAML")),
        (("--set", "quality.count=5"), 2, ("quality.count", "unknown key")),
        (("--set", "objectives=[speedup,fed]"), 2, ("--set: objectives[1]: ", "fed")),
        (("--name", "a/b"), 2, ("name", "folder")),
        (("--sampler", "best"), 2, ("search.sampler", "best", "tpe")),
        (("--seed", "-1"), 2, ("seed", "got -1")),
        (("--models", "mine"), 2, ("models.file: mine: no such file or folder",)),
        (("--study", "none/study.log"), 2, ("--study: none/study.log",)),
        (("--study", "nosuch://user:hunter22@h/d"), 2, ("--study: nosuch://***@h/d", "database")),
        (("--tracking-uri", "nonsense"), 2, ("--tracking-uri nonsense", "http://HOST:PORT")),
        (("--tracking-uri", "ftp://me:hunter22@h/"), 2, ("ftp://***@h/", "sqlite:///FILE")),
        (("--tracking-uri", "http://me:hunter22/a@h:5000"), 2, ("--tracking-uri: ", "/ as %2F")),
        (("--tracking-uri", "sqlite:////tmp/z/what?/a.db"), 2, ("--tracking-uri: ", "%3F")),
        (("--study", "postgresql://me:hunter22#a@h/d"), 2, ("--study: ", "# as %23")),
        (("--out", "s3://bucket/my sweeps"), 2, ("' '", "s3://bucket/my%20sweeps")),
        (("--tracking-uri", "http://"), 2, ("--tracking-uri http://",)),
        (("--out", "nope://me:hunter22@h/s"), 2, ("nope://h",)),
        (("--address", "127.0.0.1:1"), 1, ("127.0.0.1:1", "no response", "ray status")),
        (("--address", "ray://127.0.0.1:1"), 1, ("ray://127.0.0.1:1", "no response")),
        (("--address", "127.0.0.1:99999999"), 2, ("HOST:PORT",)),
        (("--address", "local"), 2, ("--address local", "HOST:PORT")),
    ],
)
def test_options(words: Words, code: int, parts: Words) -> None:
    with mock.patch("ray.init", side_effect=AssertionError("Ray itself would try for minutes")):
        message = refusal(*words, code=code)
    for part in parts:
        assert part in message
    assert "hunter22" not in message
    assert not Path("sweeps").exists()


@pytest.mark.parametrize(
    "words", [("--trials", "0"), ("--hours", "soon"), ("--parallel", "0"), ("--workers", "-1")]
)
def test_numbers_out_of_range(words: Words) -> None:
    assert words[0] in error_of("launch", "tested.yaml", *words, code=2)


@pytest.mark.parametrize("space", ["quickstrt", "none.yaml", "."])
def test_unknown_spaces(space: str) -> None:
    assert space in refusal(space=space)


@cache
def builtin_extractors(metrics: tuple[str, ...]) -> Any:
    """The identities of the built-in model's networks for these metrics of scenes."""
    entry = find_entry("builtin")
    captions = read_captions(source="scenes", count=96, seed=1)
    return Extractors.load(
        entry.folder,
        image_size=IMAGE_SIZE,
        captions=[caption.text for caption in captions],
        device=torch.device("meta"),
        weights=entry.metrics,
        metrics=metrics or None,
    ).identities


def write_store(**changes: Any) -> Storage:
    """The store of a sweep that started as tested.yaml, with one trial."""
    storage = Storage("sweeps/tested")
    captions = read_captions(source="scenes", count=96, seed=1)
    sweep = SweepConfig.read("tested.yaml")
    facts = {
        "captions": {"count": 96, "hash": captions_hash(captions), "source": "scenes"},
        "models": find_entry("builtin").hashes,
        "extractors": builtin_extractors(tuple(sorted(sweep.requested_metrics))),
        **changes,
    }
    write_identity(storage, identity("tested", **facts))
    write_sweep_text(storage, sweep.to_yaml())
    write_trial(storage, TrialRecord(0, "vanilla", "failed", DecodingConfig(), cause="no"))
    return storage


def test_an_existing_sweep_is_named_before_anything_else_is_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Models and captions take seconds."""
    write_store()
    monkeypatch.setitem(sys.modules, "orchestrator.launch.checks", None)  # cannot be imported
    assert "a sweep exists here" in refusal()


def overwrite(name: str, data: bytes) -> Callable[[], None]:
    return lambda: write_store().write(name, data)


def write_file_in_place() -> None:
    Path("sweeps").mkdir()
    Path("sweeps/tested").write_text("x")


def remove_identity() -> None:
    write_store().remove("identity.json")


def remove_space() -> None:
    write_store().remove("sweep.yaml")


def write_foreign_study() -> None:
    optuna.create_study(
        study_name="tested", storage="sqlite:///study.db", directions=["minimize", "minimize"]
    )


@pytest.mark.parametrize(
    ("prepare", "words", "parts"),
    [
        (write_store, (), ("sweeps/tested", "--resume", "--name")),
        (remove_space, (), ("sweeps/tested", "--resume", "--name")),
        (write_store, ("--resume", "--sampler", "tpe"), ("search", "--name")),
        (write_store, ("--resume", "--seed", "3"), ("seed was 0, is 3", "budget", "--name")),
        (
            write_store,
            ("--resume", "--set", "space.tree.length.high=8"),
            ("space.tree.length.high was 6, is 8", "--name"),
        ),
        (write_store, ("--resume", "--set", "metrics=[fid]"), ("metrics", "--name")),
        (
            lambda: write_store(captions={"count": 96, "hash": "0", "source": "scenes"}),
            ("--resume",),
            ("captions: scenes has changed", "--name"),
        ),
        (
            lambda: write_store(format=2),
            ("--resume",),
            ("another version of specfrontier", "of format 2", "--name"),
        ),
        (
            overwrite("identity.json", b'{"name": '),
            ("--resume",),
            ("identity.json: damaged", "--name"),
        ),
        (overwrite("identity.json", b"[]"), ("--resume",), ("identity.json: damaged",)),
        (
            overwrite("sweep.yaml", dump_yaml("name: [\n")),
            ("--resume",),
            ("tested/sweep.yaml", "not valid YAML"),
        ),
        (
            overwrite(
                "sweep.yaml",
                dump_yaml("".join(line for line in SPACE.splitlines(True) if "cfg" not in line)),
            ),
            ("--resume",),
            ("sampling", "--name"),
        ),
        (
            overwrite("trials/00000.json", b'{"number": 0'),
            ("--resume",),
            ("00000.json", "remove it"),
        ),
        (write_file_in_place, (), ("sweeps/tested: ", "--out")),
        (
            remove_identity,
            ("--resume",),
            ("trials/00000.json", "identity.json", "--name", "--out"),
        ),
        (
            write_foreign_study,
            ("--study", "sqlite:///study.db"),
            ("--study: sqlite:///study.db", "'tested'"),
        ),
        (write_store, ("--resume", "--study", "tested.yaml"), ("--study: tested.yaml", "line 1")),
        (
            write_store,
            ("--resume", "--study", "sqlite:///x.db", "--tracking-uri", "sqlite:///./x.db"),
            ("--study sqlite:///x.db", "--tracking-uri sqlite:///./x.db"),
        ),
    ],
)
def test_stores(prepare: Callable[[], Any], words: Words, parts: Words) -> None:
    prepare()
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    message = refusal(*words)
    for part in parts:
        assert part in message
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert before == after, "nothing is written"


def test_a_folder_without_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**options: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr("orchestrator.outputs.tempfile.mkdtemp", refuse)  # root may write anywhere
    assert "cannot be written (Permission denied)" in refusal("--out", "there")


def test_a_sweep_resumes_with_a_larger_budget() -> None:
    write_store()
    assert_starts("--resume", "--trials", "9")


@pytest.mark.parametrize(
    ("words", "trials", "note"),
    [
        ((), 9, "9 trials instead of 3 trials (--trials to change it)"),
        (("--trials", "5"), 5, ""),
        (("--set", "budget.trials=4"), 4, ""),
        (("--set", "budget={trials: 4}"), 4, ""),
    ],
)
def test_a_resumed_sweep_keeps_its_larger_budget(
    words: Words, trials: int, note: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an option gave when it was launched. An option of the resumed launch decides."""
    stored = SweepConfig.read("tested.yaml", {"budget.trials": 9, "budget.hours": 2})
    write_sweep_text(write_store(), stored.to_yaml())
    launched: list[LaunchRequest] = []

    def launch(request: LaunchRequest, *_: object, **__: object) -> None:
        launched.append(request)
        raise ValueError("ends here")

    monkeypatch.setattr("orchestrator.launch.supervise.launch", launch)
    result = specfrontier("launch", "tested.yaml", "--no-mlflow", "--resume", *words)
    assert "ends here" in result.err
    (request,) = launched
    assert (request.sweep.budget.trials, request.sweep.budget.hours) == (trials, None)
    assert ("stored budget" in result.err) == bool(note)
    assert note in result.err
    checked = specfrontier("launch", "tested.yaml", "--check", *words)
    assert f"budget      {trials} trials" in checked.out


def test_a_resumed_sweep_takes_a_larger_budget_of_its_file() -> None:
    write_store()
    write(budget={"trials": 7})
    result = specfrontier("launch", "tested.yaml", "--check")
    assert "budget      7 trials" in result.out
    assert "stored budget" not in result.err


def test_a_resumed_sweep_keeps_its_larger_limits_of_images_and_hours() -> None:
    write(budget={"trials": 3, "images": 500, "hours": 1})
    changes = {"budget.images": 900, "budget.hours": 1.5}
    stored = SweepConfig.read("tested.yaml", changes)
    write_sweep_text(write_store(), stored.to_yaml())
    result = specfrontier("launch", "tested.yaml", "--check", "--hours", "1.2")
    assert "budget      3 trials, 900 images, 1.2 hours" in result.out
    assert "stored budget of 900 images instead of 500 images (--images to change it)" in result.err


def test_a_sweep_resumes_without_its_file() -> None:
    remove_space()
    assert_starts("--resume")


def test_a_sweep_resumes_after_its_models_file_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The workers compare the weights' hashes. Another entry is another sweep."""
    monkeypatch.setattr("orchestrator.launch.checks.check", lambda found: None)
    monkeypatch.setattr("orchestrator.launch.launch.worker_spec", lambda *arguments: {})
    write(models={"name": "classes"})
    stored = SweepConfig.read("tested.yaml", {"models.file": "elsewhere/models.yaml"})
    write_sweep_text(Storage("sweeps/tested"), stored.resolve(Sampling()).to_yaml())
    assert_starts("--models", "mine/models.yaml", "--resume")
    assert "models" in refusal("--models", "mine/models.yaml#captions", "--resume")


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["complete"], False),
        (["complete", "complete"], False),
        (["complete", "failed", "complete"], False),
        (["complete", "failed", "failed"], True),
    ],
)
def test_a_sweep_in_which_only_vanilla_ran_is_a_failure(states: list[Any], expected: bool) -> None:
    records = [
        TrialRecord(number, "", state, None, cause=None) for number, state in enumerate(states)
    ]
    assert _only_vanilla_ran(records) == expected


@pytest.mark.parametrize(
    ("error", "code"),
    [(None, 0), (KeyboardInterrupt(), 130), (ValueError("no"), 2), (RuntimeError("no"), 1)],
)
def test_the_live_view_ends_before_the_report_is_written(
    error: BaseException | None, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    @contextmanager
    def view(*arguments: object, **options: object) -> Iterator[Callable[[Any], None]]:
        try:
            yield lambda event: None
        finally:
            seen.append("view ended")

    def launch(request: object, views: object, emit: Callable[[Any], None], **rest: object) -> Any:
        emit(events.Identified(()))
        if error is not None:
            raise error
        return mock.Mock(records=[], lost=[], stopped_by="trials", untimed="")

    monkeypatch.setattr("orchestrator.run.progress.choose_view", view)
    monkeypatch.setattr("orchestrator.launch.supervise.launch", launch)
    monkeypatch.setattr(
        "orchestrator.launch.supervise._finish", lambda views, ending, say: seen.append(ending)
    )
    monkeypatch.setattr("orchestrator.cli.launch._summary", lambda *arguments: "done")
    result = specfrontier("launch", "tested.yaml", "--no-mlflow")
    assert result.code == code, result.err
    assert seen == ["view ended", {0: "finished", 130: "interrupted"}.get(code, "failed")]


@pytest.mark.parametrize(
    ("ending", "decodes"), [("finished", True), ("interrupted", False), ("failed", False)]
)
def test_mlflow_is_told_of_the_end_whatever_becomes_of_the_report(
    ending: Ending,
    decodes: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """After a signal there is no time to decode images for the report."""
    page = mock.Mock(side_effect=MemoryError("out of memory"))
    monkeypatch.setattr("orchestrator.report.page.write_report", page)
    write_store()
    storage, ended = (
        Storage("sweeps/tested"),
        mock.Mock(spec=MlflowView, notes=[], interval_s=0, cost_factor=0),
    )
    ended.poll_s, ended.end_timeout_s, ended.short_timeout_s = None, HANG_S, HANG_S
    ended.is_abandoned = False
    views = Views(storage, [*_sweep_views(SweepConfig.read("tested.yaml"), storage, None), ended])
    views.start(identity("tested"))
    _finish(views, ending, say)
    assert page.call_args == mock.call(storage, decode=decodes)
    assert ended.end.call_args.args[1] == ending
    said = capsys.readouterr().err
    assert "out of memory" in said
    assert ("writing tables, plot and report" in said) == (ending == "finished"), "also in a log"


def test_a_launch_that_another_one_has_replaced_writes_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its views would mark the other one's MLflow run as failed, and have trials twice in the
    study.
    """
    lock, closed = Lock(True, None), threading.Event()
    view = mock.Mock(
        spec=View, notes=[], interval_s=0, cost_factor=0, poll_s=None, is_abandoned=False
    )
    view.end_timeout_s, view.short_timeout_s, view.close = HANG_S, HANG_S, closed.set

    def launch(request: object, views: Views, emit: Callable[[Any], None], **rest: object) -> None:
        write_store()
        emit(events.Identified(()))
        views.start(identity("tested"))
        lock.is_lost = True
        emit(events.Phase("generating"))

    monkeypatch.setattr(
        "orchestrator.store.locks.driver_lock", lambda *arguments: nullcontext(lock)
    )
    monkeypatch.setattr("orchestrator.launch.supervise._sweep_views", lambda *arguments: [view])
    monkeypatch.setattr("orchestrator.launch.supervise.launch", launch)
    message = error_of("launch", "tested.yaml", "--no-mlflow", code=1)
    assert "another launch has taken over" in message
    assert closed.wait(HANG_S)
    assert not view.end.called


def test_the_printed_command_resumes_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*arguments: object, **options: object) -> None:
        write_store()
        raise KeyboardInterrupt

    space = "tested, twice.yaml"
    Path(space).write_text(SPACE)
    monkeypatch.setattr("orchestrator.launch.supervise.launch", interrupt)
    message = error_of("launch", space, "--no-mlflow", code=130)
    resume = shlex.split(message.rpartition("resume with: specfrontier ")[2])
    assert resume == ["launch", space, "--no-mlflow", "--resume"]
    checked = specfrontier(*resume, "--check")
    assert checked.code == 0, checked.err
    assert checked.out.startswith("tested\n")
    assert "sweeps/tested" in checked.out


@pytest.mark.parametrize("written", [0, 1])
def test_a_store_that_becomes_unwritable_ends_a_launch_in_one_sentence(
    written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's lock is written first and last."""
    full = OSError(errno.ENOSPC, "No space left on device", "sweeps/tested/driver.lock")
    rewrite, writes = locks._rewrite, list[bytes]()

    def write(file: IO[bytes], data: bytes) -> None:
        writes.append(data)
        if len(writes) > written:
            raise full
        rewrite(file, data)

    monkeypatch.setattr(locks, "_rewrite", write)

    def launch(request: object, views: object, emit: Callable[[Any], None], **rest: object) -> None:
        write_store()
        emit(events.Identified(()))
        raise full

    monkeypatch.setattr("orchestrator.launch.supervise.launch", launch)
    message = error_of("launch", "tested.yaml", "--no-mlflow", code=1)
    assert "driver.lock: No space left on device" in message
    assert ("resume with: " in message) == bool(written)


def test_a_launch_that_failed_before_its_sweep_existed_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There is nothing to resume, and no view to write."""
    monkeypatch.setattr(
        "orchestrator.launch.supervise.launch",
        mock.Mock(side_effect=PoolError("no worker started")),
    )
    message = error_of("launch", "tested.yaml", code=1)
    assert "no worker started" in message
    for text in ("resume", "kept", "not written"):
        assert text not in message
    assert not Path("sweeps/tested/mlflow.json").exists()


HOLDER = """
import sys, time
from orchestrator.store.locks import driver_lock
from workers.data.storage import Storage
with driver_lock(Storage(sys.argv[1])):
    print("locked", flush=True)
    time.sleep(300)
"""


@pytest.fixture
def driver() -> Iterator[subprocess.Popen[str]]:
    """A process that runs the sweep of `write_store`."""
    words = [sys.executable, "-c", HOLDER, str(Path("sweeps/tested").absolute())]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield process
        process.kill()


def test_a_refused_launch_changes_nothing(driver: subprocess.Popen[str]) -> None:
    storage = write_store()
    for name in ("events.jsonl", "mlflow.json"):
        storage.write(name, b'{"at": "2026-01-02T03:04:05+00:00", "event": "launch"}\n')
    folder = Path("sweeps/tested")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    message = refusal("--resume", "--tracking-uri", "sqlite:///mlflow.db", code=1)
    assert f"another launch (process {driver.pid} on " in message
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert not Path("mlflow.db").exists()
    assert (
        f"running     process {driver.pid} on "
        in specfrontier("launch", "tested.yaml", "--check").out
    )


def test_the_lock_of_a_dead_driver_is_taken_over(
    driver: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_store()
    driver.kill()
    driver.wait()
    monkeypatch.setattr(
        "orchestrator.launch.supervise.launch", mock.Mock(side_effect=ValueError("ends here"))
    )
    for first in (True, False):
        result = specfrontier("launch", "tested.yaml", "--resume", "--no-mlflow")
        assert "ends here" in result.err
        assert (f"process {driver.pid} on " in result.err) == first


def test_check_says_what_a_resume_would_do() -> None:
    storage = write_store()
    storage.write("shards/quality-1.parquet", b"")
    for words in ((), ("--resume",)):
        result = specfrontier("launch", "tested.yaml", "--check", *words)
        assert result.code == 0, result.err
        plan = " ".join(result.out.split())
        assert (
            "resume 1 trial finished (1 failed); --resume keeps them and runs 2 more of the "
            "budget; 1 shard" in plan
        )
        assert "running" not in result.out.partition("search")[0]
    assert (
        "budget of trials is spent"
        in specfrontier("launch", "tested.yaml", "--check", "--trials", "1").out
    )
    assert "seed" in refusal("--check", "--seed", "3")


def test_a_papers_table_needs_a_models_file() -> None:
    space = "papers/lantern-pp-table2-llamagen-stage1"
    message = refusal("--check", space=space)
    assert "models.name: llamagen-xl-stage1" in message
    assert "--models models.yaml" in message
    assert "models.file: runs/mine" in refusal("--models", "runs/mine", space=space)


def test_a_papers_table_on_the_built_in_model() -> None:
    """The configs of LANTERN's table 2, all of which the built-in model serves."""
    changes = (
        "models.name=null",
        "captions={source: scenes, count: 192}",
        "reference={source: scenes}",
        "metrics=null",
        "timing.images=8",
        "quality.samples=1",
    )
    words = [word for change in changes for word in ("--set", change)]
    result = specfrontier("launch", "papers/lantern-table2", "--check", *words)
    assert result.code == 0, result.err
    assert "search      none, 2 trials in flight" in result.out
    assert "budget      8 trials" in result.out
    assert (
        "vanilla, EAGLE-2, LANTERN k=1000 delta=0.1, LANTERN k=1000 delta=0.4, vanilla T=0"
        in result.out
    )


def test_only_trials_that_racing_stopped_can_be_revived() -> None:
    storage = write_store()
    assert "racing stopped no trial" in refusal("--resume", "--revive", "0")
    stop = EarlyStop(0, 48, 1e-4)
    for number, state in ((1, "stopped"), (2, "complete"), (3, "stopped")):
        write_trial(storage, TrialRecord(number, "", state, None, stop=stop))  # type: ignore[arg-type]
    assert "1, 2, 3" in refusal("--resume", "--revive", "1,0")
    assert "1, 2, 3" in refusal("--resume", "--check", "--revive", "1,0")
    assert "one" in refusal("--resume", "--revive", "one")
    sweep = SweepConfig.read("tested.yaml")
    for given, numbers in (("3,1, 2", (1, 2, 3)), (None, ())):
        options = LaunchOptions(revive=given)
        assert LaunchRequest(options, sweep, storage).revived == numbers


def test_the_summary_says_why_the_front_was_not_timed_once_more(tmp_path: Path) -> None:
    write_sweep(tmp_path / "demo", 6, failed=())
    lines = _summary(
        Storage(tmp_path / "demo"), None, Outcome([], "trials", untimed="timings/a: out of memory")
    )
    said = " ".join(lines.split())
    assert "the front was not timed once more: timings/a: out of memory; `specfrontier time" in said
    assert "not timed" not in _summary(Storage(tmp_path / "demo"), None, Outcome([], "trials"))


def test_the_summary_has_a_command_that_chooses_a_setting(tmp_path: Path) -> None:
    write_sweep(tmp_path / "demo", 6, failed=())
    lines = _summary(Storage(tmp_path / "demo"), None, Outcome([], "trials")).splitlines()
    (line,) = (line for line in lines if line.startswith("choose "))
    words = shlex.split(line.removeprefix("choose"))
    words[words.index("--config") + 1] = str(tmp_path / "fast.yaml")
    ran = specfrontier(*words[1:])
    assert ran.code == 0, ran.err
    assert (tmp_path / "fast.yaml").exists()
