"""`specfrontier launch` refuses bad input before any worker starts: one sentence with file or key, and the mend."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import ray
import torch
import yaml
from PIL import Image

from orchestrator.cli.app import main
from orchestrator.cli.launch import only_vanilla_ran
from orchestrator.cli.launch_plan import describe_plan
from orchestrator.results.store import write_identity, write_trial
from orchestrator.results.trials import TrialRecord
from orchestrator.run.launch import worker_spec
from orchestrator.run.resolve import resolve_sweep
from search_spaces.sweep import SweepConfig
from search_spaces.trial import DecodingConfig
from tests.fakes.synthetic_sweeps import identity
from tests.fakes.tiny_llamagen import VQ, write_models, write_vq
from workers.data.captions import captions_hash, read_captions
from workers.data.records import float_lists, write_shard
from workers.data.storage import Storage
from workers.loading.manifest import Entry
from workers.metrics.extractors import Extractors
from workers.metrics.features import load_features
from workers.models.checkpoint_files import reading_shapes
from workers.models.families.llamagen import CLASS_SAMPLING
from workers.models.families.scenes import BUILTIN
from workers.runtime.specification import WorkerSpec

SPACE = """\
name: tried
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
Prepare = Callable[[Path], Any]


class Started(BaseException):
    """Ray was about to start."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, in which no Ray may start."""

    def start(*arguments: object, **options: object) -> None:
        raise Started

    monkeypatch.setattr(ray, "init", start)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return tmp_path


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """The command on tried.yaml; returns its exit code and what it said on standard error."""

    def run(*words: str, space: str = "tried.yaml") -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["specfrontier", "launch", space, *words])
        with pytest.raises(SystemExit) as ended:
            main()
        code = ended.value.code
        return (code if isinstance(code, int) else 0), capsys.readouterr().err

    return run


def refused(said: tuple[int, str], code: int, *parts: str) -> str:
    """The one sentence, if it is one, ends with that code, and holds the parts."""
    assert said[0] == code, said[1]
    assert said[1].startswith("Error: ")
    assert said[1].count("\n") == 1, said[1]
    for part in parts:
        assert part in said[1]
    return said[1]


def write(text: str = SPACE, **sections: Any) -> None:
    """tried.yaml, with sections replaced."""
    if sections:
        text = yaml.safe_dump(yaml.safe_load(text) | sections, sort_keys=False)
    Path("tried.yaml").write_text(text)


def test_a_sound_sweep_passes_and_its_plan_is_shown(
    launch: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write()
    monkeypatch.setattr(sys, "argv", ["specfrontier", "launch", "tried.yaml", "--check"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert "3 trials" in out
    assert "96 captions x 1, batch 8: 96 images a trial, at most 288 in all" in out
    for line in ("reference   at most", "    tree.length 2 to 6", "objectives  ", "seed        "):
        assert line in out
    assert sorted(path.name for path in Path().iterdir()) == ["tried.yaml"], "--check leaves nothing behind"
    with pytest.raises(Started):
        launch("--no-mlflow")


#: What is put for a line of the space, and what is said of it.
SPACES: dict[str, tuple[str, str, Words]] = {
    "broken YAML": ("budget: {trials: 3}", "budget: {trials: 3", ("tried.yaml:10", "not valid YAML")),
    "unknown section": ("budget:", "budgets:", ("tried.yaml:9: budgets: unknown key", "budget")),
    "unknown key": ("trials: 3", "trial: 3", ("tried.yaml:9: budget.trial: unknown key", "trials")),
    "key twice": ("seed: 1}", "seed: 1, seed: 2}", ("tried.yaml:2: captions.seed: given twice",)),
    "bounds the wrong way round": ("{low: 2, high: 6}", "{low: 6, high: 2}", ("tried.yaml:11: space.tree.length",)),
    "bound beyond the vocabulary": ("low: 2, high: 6", "low: 0, high: 6", ("tried.yaml:11: space.tree.length",)),
    "bound beyond the model": ("low: 2, high: 6", "low: 2, high: 500", ("space.tree", "500 levels", "144 tokens")),
    "no number": ("high: 6", "high: six", ("tried.yaml:11: space.tree.length", "six")),
    "unknown policy": ("policy: chain, length: {", "policy: chian, length: {", ("tried.yaml:11: space.tree", "chain")),
    "unknown preset": ("[vanilla,", "[vanila,", ("tried.yaml:10: enqueue[0]", "vanilla")),
    "unknown sampler": ("sampler: random", "sampler: cmaes", ("tried.yaml:8: search.sampler", "tpe")),
    "no trials": ("trials: 3", "trials: 0", ("tried.yaml:9: budget.trials: must be at least 1",)),
    "no hours": ("trials: 3", "hours: 0", ("tried.yaml:9: budget.hours",)),
    "no images": ("trials: 3", "images: 0", ("tried.yaml:9: budget.images",)),
    "empty shards": ("shard: 48", "shard: 0", ("tried.yaml:4: quality.shard: must be at least 1",)),
    "samples in words": ("shard: 48", "samples: many", ("tried.yaml:4: quality.samples",)),
    "no folder's name": ("name: tried", "name: ../tried", ("tried.yaml:1: name", "cannot be a folder")),
    "constraint that is none": ("objectives:", "constraints: [fid]\nobjectives:", ("tried.yaml:7: constraints[0]",)),
    "vanilla is taken": ("label: exact chain", "label: vanilla", ("vanilla",)),
}


@pytest.mark.parametrize("name", SPACES)
def test_spaces(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    old, new, parts = SPACES[name]
    assert SPACE.count(old) == 1
    write(SPACE.replace(old, new))
    refused(launch(), 2, *parts)
    assert not Path("sweeps").exists()


#: Sections that are replaced, and what is said.
SECTIONS: dict[str, tuple[dict[str, Any], Words]] = {
    "unknown objective": ({"objectives": ["speedup", "fed"]}, ("objectives: ", "fed", "fid")),
    "unknown metric in a constraint": ({"constraints": ["clip_scor >= 0.9"]}, ("constraints: ", "clip_scor")),
    "unknown metric": ({"metrics": ["fid", "drfit"]}, ("metrics: ", "drfit", "drift")),
    "unknown option": (
        {"search": {"sampler": "tpe", "options": {"startup": 5}}},
        ("search.options", "tpe", "startup"),
    ),
    "option of a sampler without": (
        {"search": {"sampler": "random", "options": {"n_startup_trials": 5}}},
        ("search.options", "random", "n_startup_trials"),
    ),
    "timing takes more than there is": (
        {"timing": {"batch": 50, "images": 51}},
        ("timing: ", "100 captions", "there are 96", "timing.batch"),
    ),
    "grid without end": (
        {
            "search": {"sampler": "grid"},
            "space": {
                "drafter": "eagle",
                "tree": {"policy": "chain", "length": 3},
                "acceptance": {"neighbourhood": "additive", "k": 5, "delta": {"low": 0.1, "high": 0.2}},
            },
        },
        ("tried.yaml", "space.acceptance.delta", "grid", "values"),
    ),
    "more neighbours than codes": (
        {"enqueue": [{"label": "wide", "drafter": "eagle", "tree": {"policy": "chain", "length": 3},
                      "acceptance": {"neighbourhood": "additive", "k": 2000, "delta": 0.1}}]},
        ("enqueue.wide", "2000", "1024 codes"),
    ),
    "branch deeper than the heads": (
        {"space": {"drafter": "medusa", "tree": {"policy": "chain", "length": {"low": 50, "high": 60}}}},
        ("space", "50 levels", "Medusa heads"),
    ),
    "too few captions for fid": (
        {"captions": {"source": "scenes", "count": 66}}, ("objectives: fid needs more images", "63", "captions.count"),
    ),
    "too few captions for a constraint": (
        {"captions": {"source": "scenes", "count": 8}, "objectives": ["speedup", "step_compression"],
         "constraints": ["drift <= 2"]},
        ("constraints: drift needs more images",),
    ),
    "a single batch is timed": (
        {"timing": {"batch": 4, "images": 4, "repetitions": 9}}, ("timing: a single batch", "raise timing.images"),
    ),
    "too few real images": ({"reference": {"source": "scenes", "count": 64}}, ("reference: ", "give more than 64")),
}  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_sections(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    sections, parts = SECTIONS[name]
    write(**sections)
    refused(launch(), 2, *parts)
    assert not Path("sweeps").exists()


GOOD = "a large red circle on a smooth grey background"
#: A file of captions, its bytes (None: no file), what the section says beside it, and what is said of it.
CAPTIONS: dict[str, tuple[str, bytes | None, dict[str, Any], Words]] = {
    "missing": ("mine.txt", None, {}, ("mine.txt: no such file",)),
    "empty": ("mine.txt", b"", {}, ("mine.txt: no captions in it",)),
    "blank row": ("mine.txt", f"{GOOD}\n\n{GOOD}\n".encode(), {}, ("mine.txt, line 2: blank caption", "fill it in")),
    "no UTF-8": ("mine.txt", b"caf\xe9\n", {}, ("mine.txt, line 1: not UTF-8",)),
    "unknown ending": ("mine.xls", b"x", {}, ("mine.xls", ".txt")),
    "wrong column": ("mine.csv", f"text\n{GOOD}\n".encode(), {"column": "prompt"}, ("mine.csv: no column 'prompt'",)),
    "too few": ("mine.txt", f"{GOOD}\n".encode(), {"count": 5}, ("mine.txt: 5 captions", "it has 1", "lower the")),
    "unreadable for this target": (
        "mine.txt",
        f"{GOOD}\n{GOOD}\na dog\n".encode(),
        {"count": 3},
        ("mine.txt, line 3: ", "a dog", "unknown word 'dog'"),
    ),
    "several unreadable": (
        "mine.txt",
        f"{GOOD}\na cat\n{GOOD}\na dog\na cow\n".encode(),
        {"count": 5},
        ("mine.txt, line 2: ", "a cat", "(2 more captions are wrong)"),
    ),
    "broken Parquet": ("mine.parquet", b"PAR1 no", {}, ("mine.parquet: not a readable Parquet file",)),
    "broken COCO": ("mine.json", b"{", {}, ("mine.json: broken JSON",)),
}


@pytest.mark.parametrize("name", CAPTIONS)
def test_captions(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    file, data, section, parts = CAPTIONS[name]
    if data is not None:
        Path(file).write_bytes(data)
    write(captions={"source": file, "count": 1, **section}, timing={"images": 1})
    refused(launch(), 2, "captions: ", *parts)
    assert not Path("sweeps").exists()


def photos(count: int, *broken: str) -> None:
    Path("photos").mkdir()
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(f"photos/{number}.png")
    for name in broken:
        Path("photos", name).write_text("not an image")


def foreign_reference() -> None:
    features = torch.randn(200, 64)
    facts = {"kind": "reference", "identity": "inception@0", "source": "coco", "resize": "none", "count": 200}
    write_shard(Storage("."), "theirs.parquet", pa.table({"features": float_lists(features)}), facts)


def small_reference() -> None:
    facts = {"identity": load_features().identity, "source": "coco", "resize": "none", "count": 9, "kind": "reference"}
    write_shard(Storage("."), "small.parquet", pa.table({"features": float_lists(torch.randn(9, 64))}), facts)


#: What is prepared, the source, and what is said.
REFERENCES: dict[str, tuple[Callable[[], Any], str, Words]] = {
    "no folder": (lambda: None, "photos", ("photos: no such folder of images",)),
    "empty folder": (lambda: photos(0), "photos", ("photos: no images",)),
    "too few images": (lambda: photos(64), "photos", ("photos: 64 images", "give more than 64")),
    "a broken image": (lambda: photos(65, "b.png"), "photos", ("b.png: not a readable image", "mend or remove it")),
    "broken images": (lambda: photos(65, "b.png", "a.png"), "photos", ("a.png: not a", "(1 more image is wrong)")),
    "no file": (lambda: None, "mine.parquet", ("mine.parquet: no such file", "specfrontier reference")),
    "another extractor's": (foreign_reference, "theirs.parquet", ("theirs.parquet", "inception@0", "scenes-features")),
    "too few features": (small_reference, "small.parquet", ("9 images", "give more than 64")),
    "no reference at all": (
        lambda: Path("odd.parquet").write_text("x"), "odd.parquet", ("odd.parquet", "specfrontier reference"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFERENCES)
def test_references(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    prepare, source, parts = REFERENCES[name]
    prepare()
    write(reference={"source": source})
    refused(launch(), 2, "reference: ", *parts)
    assert not Path("sweeps").exists()


def model(drop: str | None = None, cut: str | None = None, swap: tuple[str, str] | None = None) -> None:
    shutil.copytree(BUILTIN, "mine")
    if drop:
        Path("mine", drop).unlink()
    if cut:
        path = Path("mine", cut)
        path.write_bytes(path.read_bytes()[:-1000])
    if swap:
        shutil.copy(Path("mine", swap[0]), Path("mine", swap[1]))


WEIGHTS: dict[str, tuple[Callable[[], Any], Words]] = {
    "no folder": (lambda: None, ("models.weights: mine: no such folder of weights", "specfrontier train")),
    "no target": (lambda: model(drop="target.safetensors"), ("models.weights: ", "target.safetensors: no such file")),
    "a truncated target": (lambda: model(cut="target.safetensors"), ("target.safetensors", "truncated", "again")),
    "a truncated drafter": (lambda: model(cut="eagle.safetensors"), ("eagle.safetensors", "truncated")),
    "a truncated feature net": (lambda: model(cut="features.safetensors"), ("features.safetensors", "truncated")),
    "another piece's file": (
        lambda: model(swap=("eagle.safetensors", "target.safetensors")), ("target.safetensors", "does not describe"),
    ),
    "no such drafter": (lambda: model(drop="eagle.safetensors"), ("enqueue.exact chain", "no 'eagle' drafter")),
}  # fmt: skip


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    prepare, parts = WEIGHTS[name]
    prepare()
    write()
    refused(launch("--weights", "mine"), 2, *parts)
    assert not Path("sweeps").exists()


def test_a_metric_that_these_captions_do_not_give(launch: Callable[..., tuple[int, str]]) -> None:
    """A model of words, whose captions the CLIP of scenes cannot read."""
    from workers.models.checkpoint_files import load_tensors, safetensors_metadata

    model()
    path = Path("mine/target.safetensors")
    header, tensors = safetensors_metadata(path), dict(load_tensors(path))
    config = json.loads(header["config"])
    config["conditioner"] = {"kind": "classes", "names": ["dog"]}
    from safetensors.torch import save_file

    save_file(tensors, path, metadata={**header, "config": json.dumps(config)})
    Path("dogs.txt").write_text("dog\n" * 3)
    write(captions={"source": "dogs.txt", "count": 3}, objectives=["speedup", "clip_score"])
    refused(launch("--weights", "mine"), 2, "objectives: clip_score cannot be had here", "captions of scenes only")


#: Words on the command line, and what is said.
OPTIONS: dict[str, tuple[Words, int, Words]] = {
    "no sign": (("--set", "quality.batch"), 2, ("--set quality.batch: write KEY=VALUE",)),
    "no YAML": (("--set", "quality.batch={"), 2, ("--set quality.batch={: the value is not YAML",)),
    "unknown key": (("--set", "quality.count=5"), 2, ("quality.count", "unknown key")),
    "below a number": (("--set", "seed.deep=5"), 2, ("seed",)),
    "name of no folder": (("--name", "a/b"), 2, ("name", "cannot be a folder")),
    "sampler": (("--sampler", "best"), 2, ("search.sampler", "best", "tpe")),
    "seed": (("--seed", "-1"), 2, ("seed: must be", "got -1")),
    "study in no folder": (("--study", "none/study.log"), 2, ("--study: none/study.log", "cannot be opened", "folder")),
    "study that is a folder": (("--study", "."), 2, ("--study: .", "cannot be opened")),
    "study of no database": (("--study", "nosuch://user:hunter22@h/d"), 2, ("--study: nosuch://***@h/d", "database")),
    "MLflow nowhere": (("--tracking-uri", "nonsense"), 2, ("--tracking-uri nonsense", "http://HOST:PORT")),
    "MLflow of no kind": (("--tracking-uri", "ftp://me:hunter22@h/"), 2, ("ftp://***@h/", "sqlite:///FILE")),
    "MLflow without a place": (("--tracking-uri", "http://"), 2, ("--tracking-uri http://",)),
    "storage of no kind": (("--out", "nope://me:hunter22@h/s"), 2, ("nope://h", "cannot be used as storage")),
    "cluster that is down": (("--address", "127.0.0.1:1"), 1, ("127.0.0.1:1", "nobody answers", "ray status")),
    "client that is down": (("--address", "ray://127.0.0.1:1"), 1, ("ray://127.0.0.1:1", "nobody answers")),
    "cluster of no port": (("--address", "127.0.0.1:99999999"), 1, ("nobody answers",)),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    words, code, parts = OPTIONS[name]
    write()
    begin = time.perf_counter()
    said = refused(launch(*words), code, *parts)
    assert time.perf_counter() - begin < 20, "Ray itself would knock for minutes"
    assert "hunter22" not in said
    assert not Path("sweeps").exists()


@pytest.mark.parametrize("words", [("--trials", "0"), ("--hours", "soon"), ("--parallel", "0"), ("--workers", "-1")])
def test_numbers_that_are_none(words: Words, launch: Callable[..., tuple[int, str]]) -> None:
    write()
    code, said = launch(*words)
    assert code == 2
    assert said.count("Error: ") == 1
    assert words[0] in said


@pytest.mark.parametrize("space", ["quickstrt", "none.yaml", "."])
def test_a_space_that_is_not_there(space: str, launch: Callable[..., tuple[int, str]]) -> None:
    refused(launch(space=space), 2, space)


def store(**changes: Any) -> Storage:
    """The folder of a sweep that began as tried.yaml says, with a trial."""
    write()
    begun, storage = SweepConfig.read("tried.yaml"), Storage("sweeps/tried")
    captions = read_captions(source="scenes", count=96, seed=1)
    facts = {"captions": {"count": 96, "hash": captions_hash(captions), "source": "scenes"}, **changes}
    write_identity(storage, identity("tried", **facts))
    storage.write("sweep.yaml", begun.to_yaml().encode())
    write_trial(storage, TrialRecord(0, "vanilla", "failed", DecodingConfig(), cause="no"))
    return storage


def damage(name: str, data: bytes) -> Callable[[], None]:
    return lambda: store().write(name, data)


def file_in_place() -> None:
    write()
    Path("sweeps").mkdir()
    Path("sweeps/tried").write_text("x")


def file_above() -> None:
    write()
    Path("sweeps").write_text("x")


#: What the store is, words on the command line, and what is said.
STORES: dict[str, tuple[Callable[[], Any], Words, Words]] = {
    "a sweep is there": (store, (), ("sweeps/tried", "--resume", "--name")),
    "another search": (store, ("--resume", "--sampler", "tpe"), ("another search", "--name")),
    "another seed": (store, ("--resume", "--seed", "3"), ("another seed", "--name")),
    "metrics that were not named": (store, ("--resume", "--set", "metrics=[fid]"), ("another metrics", "--name")),
    "other captions of that name": (
        lambda: store(captions={"hash": "0"}), ("--resume",), ("captions: scenes has changed", "--name"),
    ),
    "a broken identity": (damage("identity.json", b'{"name": '), ("--resume",), ("identity.json: damaged", "--name")),
    "an identity that is a list": (damage("identity.json", b"[]"), ("--resume",), ("identity.json: damaged",)),
    "a broken sweep": (damage("sweep.yaml", b"name: [\n"), ("--resume",), ("tried/sweep.yaml", "not valid YAML")),
    "a sweep with an unknown key": (damage("sweep.yaml", b"nam: x\n"), ("--resume",), ("sweep.yaml:1", "nam")),
    "a sweep that someone wrote in": (
        damage("sweep.yaml", "".join(line for line in SPACE.splitlines(True) if "cfg" not in line).encode()),
        ("--resume",), ("another", "sampling"),
    ),
    "half a trial": (damage("trials/00000.json", b'{"number": 0'), ("--resume",), ("00000.json", "remove it")),
    "a trial of other fields": (damage("trials/00001.json", b"{}"), ("--resume",), ("00001.json", "not the record")),
    "a file in its place": (file_in_place, (), ("sweeps/tried: is a file", "--out")),
    "a file above it": (file_above, (), ("sweeps: is a file", "--out")),
}  # fmt: skip


@pytest.mark.parametrize("name", STORES)
def test_stores(name: str, launch: Callable[..., tuple[int, str]]) -> None:
    prepare, words, parts = STORES[name]
    prepare()
    before = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    refused(launch(*words), 2, *parts)
    after = {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}
    assert before == after, "what is there stays as it is"


def test_a_folder_without_permission(launch: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be allowed everything, so the system's answer is put in its mouth."""
    write()
    monkeypatch.setattr("orchestrator.run.preflight.os.access", lambda path, mode: False)
    refused(launch("--out", "there"), 2, "no permission to write there", "--out")


def test_a_sound_store_goes_on(launch: Callable[..., tuple[int, str]]) -> None:
    store()
    with pytest.raises(Started):
        launch("--resume", "--no-mlflow", "--trials", "9")


def test_over_ray_client_files_are_the_clusters(launch: Callable[..., tuple[int, str]]) -> None:
    """Folders named in the sweep are on the cluster then, and not looked for here."""
    write(captions={"source": "/on/the/cluster.txt", "count": 5})
    refused(launch("--address", "ray://127.0.0.1:1"), 1, "nobody answers")


def test_there_are_enough_of_them() -> None:
    tables: list[dict[str, Any]] = [SPACES, SECTIONS, CAPTIONS, REFERENCES, WEIGHTS, OPTIONS, STORES]
    assert sum(len(table) for table in tables) >= 60


@pytest.mark.parametrize(
    ("states", "nothing"),
    [
        (["complete"], False),
        (["complete", "complete"], False),
        (["complete", "failed", "complete"], False),
        (["complete", "failed", "failed"], True),
    ],
)
def test_a_sweep_in_which_only_vanilla_ran_is_a_failure(states: list[Any], nothing: bool) -> None:
    records = [TrialRecord(number, "", state, None, cause=None) for number, state in enumerate(states)]
    assert only_vanilla_ran(records) == nothing


BUILTIN_PAPER = (
    "models.name=null", "captions={source: scenes, count: 192}", "reference={source: scenes}", "metrics=null",
    "timing.images=8", "quality.samples=1",
)  # fmt: skip


def test_a_papers_table_wants_to_know_where_checkpoints_lie(launch: Callable[..., tuple[int, str]]) -> None:
    said = launch("--check", space="papers/lantern-pp-table2-llamagen-stage1")
    refused(said, 2, "models.name: llamagen-xl-stage1", "--models models.yaml")
    said = launch("--weights", "runs/mine", space="papers/lantern-pp-table2-llamagen-stage1")
    refused(said, 2, "models.weights: given beside the entry", "leave it out, or the name")


def test_a_papers_table_on_the_built_in_model(
    launch: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings of LANTERN's table 2 as they are, but for what hangs on the model: every one is served."""
    sets = [word for entry in BUILTIN_PAPER for word in ("--set", entry)]
    monkeypatch.setattr(sys, "argv", ["specfrontier", "launch", "papers/lantern-table2", "--check", *sets])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr()
    assert ended.value.code == 0, said.err
    assert "search      none, 2 trials in flight" in said.out
    assert "budget      8 trials" in said.out
    assert "first       vanilla, EAGLE-2, LANTERN k=1000 delta=0.1, LANTERN k=1000 delta=0.4, vanilla T=0" in said.out


def test_a_sweep_may_have_no_reference(launch: Callable[..., tuple[int, str]]) -> None:
    write(reference={"source": "none"})
    why = "fid cannot be had here: the sweep has no reference images (reference.source: none)"
    refused(launch("--check"), 2, f"objectives: {why}")
    write(reference={"source": "none"}, objectives=["speedup", "mean_accepted_length"])
    with pytest.raises(Started):
        launch("--no-mlflow")


def test_a_sweep_without_metrics_of_speed_is_not_timed(launch: Callable[..., tuple[int, str]]) -> None:
    """Nor is it refused for a section that nothing is done with: 8 captions to time, of 4."""
    untimed: dict[str, Any] = {"captions": {"source": "scenes", "count": 4}, "timing": {"images": 8}}
    write(**untimed, objectives=["step_compression", "mean_accepted_length"], metrics=["target_passes"])
    assert launch("--check") == (0, "")
    plan = describe_plan(SweepConfig.read("tried.yaml"), Storage("sweeps/tried"))
    assert "timing      none: no metric of the sweep needs it" in plan
    write(**untimed, objectives=["step_compression", "latency"], metrics=["target_passes"])
    refused(launch("--check"), 2, "timing: ", "8 captions")


def test_nets_of_scores_are_made_without_their_numbers(
    launch: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A driver may lack the memory, and needs none of it."""
    load, made = Extractors.load, []

    def watched(*given: Any, **named: Any) -> Extractors:
        made.append((reading_shapes(), named["device"].type))
        return load(*given, **named)

    monkeypatch.setattr(Extractors, "load", watched)
    write(objectives=["step_compression", "clip_score"])
    assert launch("--check") == (0, "")
    assert made == [(True, "meta")]


ENTRY: dict[str, Any] = {
    "models": {"name": "classes"},
    "captions": {"source": "classes.txt", "count": 3},
    "sampling": None,
    "timing": {"images": 2},
    "objectives": ["step_compression", "target_passes"],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models.yaml with the entries `classes` and `captions`, and their tiny checkpoints."""
    return write_models(tmp_path_factory.mktemp("made"))


def checkpoints(made: Path) -> Path:
    """A copy of them in the working folder, and the captions."""
    shutil.copytree(made.parent, "mine")
    Path("classes.txt").write_text("0\n7\n999\n")
    return Path("mine/ckpt")


def test_a_sweep_of_an_entry_passes(
    made: Path, launch: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints(made)
    write(**ENTRY)
    with pytest.raises(Started):
        launch("--models", "mine/models.yaml", "--no-mlflow")
    write(**{**ENTRY, "models": {}})
    with pytest.raises(Started):
        launch("--models", "mine/models.yaml#classes", "--no-mlflow", "--name", "other")
    Path("words.txt").write_text("a red ball\na cat\nsmall\n")
    write(**{**ENTRY, "captions": {"source": "words.txt", "count": 3}})
    with pytest.raises(Started):
        launch("--models", "mine/models.yaml", "--set", "models.name=captions", "--no-mlflow", "--name", "third")


def second_shard(ckpt: Path) -> None:
    """The transformer as an index whose second shard breaks off."""
    from safetensors.torch import save_file

    tensors = torch.load(ckpt / "c2i.pt")["model"]
    shards = {"one.safetensors": sorted(tensors)[:6], "two.safetensors": sorted(tensors)[6:]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, ckpt / file)
    map_ = {name: file for file, names in shards.items() for name in names}
    (ckpt / "c.safetensors.index.json").write_text(json.dumps({"weight_map": map_}))
    (ckpt / "two.safetensors").write_bytes((ckpt / "two.safetensors").read_bytes()[:-9])
    replaced("ckpt/c2i.pt", "ckpt/c.safetensors.index.json")


def replaced(old: str, new: str) -> None:
    path = Path("mine/models.yaml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


#: How the checkpoints are spoilt, words on the command line, and what is said before any worker starts.
ENTRIES: dict[str, tuple[Callable[[Path], Any], Words, Words]] = {
    "no file is named": (lambda c: None, (), ("models.name: classes", "--models models.yaml")),
    "weights as well": (
        lambda c: None, ("--models", "mine/models.yaml", "--weights", "mine"),
        ("models.weights: given beside the entry 'classes'", "leave it out"),
    ),
    "no such models.yaml": (lambda c: None, ("--models", "none.yaml"), ("none.yaml", "No such file")),
    "no such entry": (
        lambda c: None, ("--models", "mine/models.yaml#clases"), ("no entry 'clases'", "did you mean 'classes'?"),
    ),
    "a mistake in models.yaml": (
        lambda c: replaced("image_size", "image_sise"), ("--models", "mine/models.yaml"),
        ("mine/models.yaml:4: classes.image_sise: unknown key", "image_size"),
    ),
    "no checkpoint": (
        lambda c: (c / "c2i.pt").unlink(), ("--models", "mine/models.yaml"),
        ("mine/models.yaml:1: classes: ", "c2i.pt: no such file"),
    ),
    "another family's file": (
        lambda c: replaced("ckpt/c2i.pt", "ckpt/t5/model.safetensors"), ("--models", "mine/models.yaml"),
        ("no LlamaGen transformer",),
    ),
    "a truncated shard": (second_shard, ("--models", "mine/models.yaml"), ("two.safetensors", "truncated")),
    "another codebook": (
        lambda c: write_vq(c / "vq.pt", dataclasses.replace(VQ, codebook_size=64)), ("--models", "mine/models.yaml"),
        ("1024 codes", "vq.pt has 64"),
    ),
    "another target's drafter": (
        lambda c: replaced("ckpt/eagle-c2i", "ckpt/eagle-t2i"), ("--models", "mine/models.yaml"),
        ("eagle drafter", "made for another target"),
    ),
    "a drafter that is not there": (
        lambda c: replaced("  drafters:\n    eagle: ckpt/eagle-c2i.safetensors\n", ""),
        ("--models", "mine/models.yaml"),
        ("enqueue.exact chain", "no 'eagle' drafter"),
    ),
    "a class that is none": (
        lambda c: Path("classes.txt").write_text("0\n1000\n7\n"), ("--models", "mine/models.yaml"),
        ("captions: classes.txt, line 2: ", "'1000' is no class"),
    ),
    "more levels than tokens": (
        lambda c: None, ("--models", "mine/models.yaml", "--set", "space.tree.length.high=20"), ("space", "9 tokens"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ENTRIES)
def test_entries(name: str, made: Path, launch: Callable[..., tuple[int, str]]) -> None:
    spoil, words, parts = ENTRIES[name]
    spoil(checkpoints(made))
    write(**ENTRY)
    refused(launch(*words), 2, *parts)
    assert not Path("sweeps").exists()


def test_a_file_without_an_entry(made: Path, launch: Callable[..., tuple[int, str]]) -> None:
    checkpoints(made)
    write(**{**ENTRY, "models": {}})
    refused(launch("--models", "mine/models.yaml"), 2, "models.name: missing; say which entry of mine/models.yaml")


def test_workers_are_told_the_entry(made: Path) -> None:
    """As plain data with absolute paths, which a worker of another folder reads back."""
    checkpoints(made)
    Path("mine/models.yaml").write_text(Path("mine/models.yaml").read_text() + "  metrics: {clip: ckpt/vq.pt}\n")
    write(**ENTRY)
    changes = {"models.file": "mine/models.yaml", "models.name": "captions"}
    spec = worker_spec(SweepConfig.read("tried.yaml", changes), Storage("sweeps/tried"), 1)
    told = WorkerSpec.from_mapping(json.loads(json.dumps(spec)))
    assert told.models is not None
    entry = Entry.from_mapping(told.models)
    assert entry.files["transformer"] == str(Path("mine/ckpt/t2i.pt").absolute())
    assert told.metric_weights == {"clip": str(Path("mine/ckpt/vq.pt").absolute())}
    assert told.what == "captions (mine/models.yaml:9)"


def test_a_sweep_goes_on_though_its_models_file_moved(made: Path, launch: Callable[..., tuple[int, str]]) -> None:
    """What counts is what the weights are, which the workers look at; another entry is another sweep."""
    checkpoints(made)
    write(**ENTRY)
    begun = SweepConfig.read("tried.yaml", {"models.file": "elsewhere/models.yaml"})
    storage = Storage("sweeps/tried")
    storage.write("sweep.yaml", resolve_sweep(begun, CLASS_SAMPLING).to_yaml().encode())
    with pytest.raises(Started):
        launch("--models", "mine/models.yaml", "--resume", "--no-mlflow")
    code, said = launch("--models", "mine/models.yaml#captions", "--resume")
    assert code == 2
    assert "begun with another models; --name" in said
