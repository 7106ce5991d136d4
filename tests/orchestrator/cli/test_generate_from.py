"""`generate --from SWEEP` and config files of trials: the sweep's sampling, models and batch, and
what was promised.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import specfrontier as api
from orchestrator.store.config_file import MeasuredSpeed
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.metric_inputs import write_session
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.tiny_models import tiny_scored
from workers.data.storage import Storage
from workers.runtime.device import this_device

CAPTIONS = ("a large red circle", "a small blue star")
SPACE = """
name: small
models: WEIGHTS
captions: {count: 6}
reference: {source: none}
quality: {batch: 6, shard: 6}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 0.9, top_k: 0, top_p: 1.0, cfg: 1.0}
metrics: [speedup, caption_accuracy]
objectives: [speedup, caption_accuracy]
enqueue: [vanilla, {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
budget: {trials: 2}
space: {drafter: eagle, tree: {policy: chain, length: 2}}
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep of a small model with the built-in metrics, with a sampling that is not the target's
    default.
    """
    run = SweepRun(tmp_path_factory.mktemp("sweep"), SPACE, models=tiny_scored)
    run.run_locally("--no-mlflow")
    return Sweep.open(run.store)


def place(sweep: Sweep) -> str:
    return sweep.storage.display_name


def test_a_trial_is_generated_as_the_sweep_did(sweep: Sweep, tmp_path: Path) -> None:
    """Vanilla too: a preset has the target's sampling, here another one."""
    for number in (0, 1):
        words = ("--from", place(sweep), "--trial", str(number), "--out", str(tmp_path), "--json")
        printed = specfrontier("generate", *CAPTIONS, *words).json
        config = sweep.records[number].config
        assert config is not None
        assert printed["config"] == config.to_mapping()
        assert (printed["batch"], printed["weights"]) == (1, sweep.identity.models)
        assert printed["measured"]["differences"] == []
        assert printed["default_sampling"] == []
    preset = specfrontier("generate", CAPTIONS[0], "--preset", "vanilla", "--out", str(tmp_path))
    assert "guidance (cfg) 1.5, temperature 1" in preset.out
    assert "--from" in preset.out
    shown = specfrontier(
        "generate", CAPTIONS[0], "--from", place(sweep), "--trial", "0", "--out", str(tmp_path)
    ).out
    assert "guidance (cfg) 1, temperature 0.9" in shown
    assert "trial 0 of small" in shown


def test_against_vanilla_measures_the_ratio_on_the_same_captions(
    sweep: Sweep, tmp_path: Path
) -> None:
    words = ("--from", place(sweep), "--best", "caption_accuracy >= 0", "--against", "vanilla")
    ran = specfrontier("generate", *CAPTIONS, *words, "--out", str(tmp_path), "--json")
    assert ran.code == 0, ran.err
    own, against = ran.json, ran.json["against"]
    other = json.loads((tmp_path / "vanilla" / "statistics.json").read_text())
    baseline = sweep.identity.baseline
    assert baseline is not None
    assert other["config"] == baseline.to_mapping()
    assert (
        [row["caption"] for row in other["images"]]
        == [row["caption"] for row in own["images"]]
        == list(CAPTIONS)
    )
    assert other["overall"]["mean_accepted_length"] == 1
    # by the same clock
    seconds = [sum(row["latency"] for row in images["images"]) for images in (other, own)]
    assert against["speedup"] == pytest.approx(seconds[0] / seconds[1], rel=0.1)
    assert against["error"] > 0
    alone = tmp_path / "alone"
    words = ("--from", place(sweep), "--trial", "0", "--out", str(alone))
    assert specfrontier("generate", *CAPTIONS, *words).code == 0
    for row in other["images"]:
        assert (alone / row["file"]).read_bytes() == (
            tmp_path / "vanilla" / row["file"]
        ).read_bytes()
    assert specfrontier("generate", CAPTIONS[0], "--out", str(tmp_path)).code == 0
    assert not (tmp_path / "vanilla").exists(), "a folder holds one run"


def test_without_a_sweep_vanilla_has_the_configs_own_sampling(sweep: Sweep, tmp_path: Path) -> None:
    words = (
        "--preset",
        "eagle1",
        "--set",
        "sampling.cfg=2",
        "--against",
        "vanilla",
        "--out",
        str(tmp_path),
    )
    ran = specfrontier("generate", CAPTIONS[0], *words, "--models", str(sweep.models))
    assert ran.code == 0, ran.err
    other = json.loads((tmp_path / "vanilla" / "statistics.json").read_text())
    assert (other["config"]["drafter"]["kind"], other["config"]["sampling"]["cfg"]) == ("none", 2.0)
    assert (
        other["lossless"]
        is json.loads((tmp_path / "statistics.json").read_text())["lossless"]
        is True
    )
    assert "speed-up against vanilla in this run: " in ran.out
    assert "±" not in ran.out.split("in this run: ")[1], "a single batch has no error"


def test_a_run_says_whether_it_is_lossless(sweep: Sweep, tmp_path: Path) -> None:
    """The rule decides: vanilla has the sampling of the run."""
    drafts = ("--preset", "eagle1", "--models", str(sweep.models))
    trial = ("--from", place(sweep), "--trial", "0")
    for words, expected in (
        (drafts, True),
        ((*drafts, "--set", "acceptance=uniform"), False),
        ((*drafts, "--set", "sampling.cfg=2"), True),
        (trial, True),
    ):
        ran = specfrontier("generate", CAPTIONS[0], *words, "--out", str(tmp_path))
        assert ran.code == 0, ran.err
        assert json.loads((tmp_path / "statistics.json").read_text())["lossless"] is expected
        assert ("not lossless" in ran.out) is not expected


def test_a_saved_config_says_what_was_measured_at_which_batch(sweep: Sweep, tmp_path: Path) -> None:
    file = tmp_path / "chain.yaml"
    assert specfrontier("pareto", place(sweep), "--trial", "1", "--config", str(file)).code == 0
    speed = MeasuredSpeed.read(file.read_text())
    assert speed == MeasuredSpeed.of(sweep.identity, sweep.records[1])
    assert speed is not None
    assert (speed.sweep, speed.trial, speed.batch) == ("small", 1, 1)
    head = [line for line in file.read_text().splitlines() if line.startswith("#")]
    words = ("--config", str(file), "--out", str(tmp_path / "again"))
    assert specfrontier("generate", CAPTIONS[0], *words).code == 0
    again = (tmp_path / "again" / "config.yaml").read_text()
    assert [line for line in again.splitlines() if line.startswith("#")] == head, (
        "the folder's config keeps them"
    )
    assert (
        specfrontier("generate", CAPTIONS[0], *words, "--set", "sampling.temperature=0.7").code == 0
    )
    assert not (tmp_path / "again" / "config.yaml").read_text().startswith("#"), (
        "they are of another config"
    )
    assert any(
        line.startswith("# caption_accuracy ") and line.endswith("vanilla's (lossless)")
        for line in head
    )

    def differences(*words: str, captions: tuple[str, ...] = CAPTIONS) -> str:
        options = ("--config", str(file), "--out", str(tmp_path / "out"), *words)
        printed = specfrontier(
            "generate", *captions, "--models", str(sweep.models), *options, "--json"
        ).json
        assert speed.speedup in printed["measured"]["text"]
        return " ".join(printed["measured"]["differences"])

    assert differences("--batch", "1") == ""
    assert differences(captions=CAPTIONS[:1]) == "", "one image is a batch of 1"
    assert differences() == "its batch is 2"
    assert "config" in differences("--batch", "1", "--set", "tree.length=2")


def test_a_config_that_was_priced_on_a_device_says_on_which(sweep: Sweep, tmp_path: Path) -> None:
    """And `generate` says whether this run is on that one, with as many threads, at that batch."""
    shutil.copytree(place(sweep), tmp_path / "copy")
    copy, file = Sweep.open(tmp_path / "copy"), tmp_path / "chain.yaml"
    costs = {record.config: [0.01, 0.011] for record in copy.records if record.config}
    write_session(copy.storage, costs, batch=2, is_later=True)
    here = str(this_device(torch.device("cpu")))

    def differences(*words: str, device: tuple[str, ...] = ()) -> list[str]:
        assert (
            specfrontier(
                "pareto", str(tmp_path / "copy"), "--trial", "1", "--config", str(file), *device
            ).code
            == 0
        )
        options = (
            "--config",
            str(file),
            "--models",
            str(copy.models),
            "--out",
            str(tmp_path / "out"),
            *words,
        )
        printed = specfrontier("generate", *CAPTIONS, *options, "--json").json["measured"]
        assert printed["text"].startswith(
            f"speed-up in small, trial 1: {speed(file.read_text()).speedup} at batch "
        )
        found: list[str] = printed["differences"]
        return found

    assert here.endswith(", 1 thread"), "as the sweep's worker"
    assert differences() == ["its batch is 2"]
    assert differences("--batch", "1", "--threads", "2") == [
        f"its device is {here.replace('1 thread', '2 threads')}"
    ]
    torch.set_num_threads(1)
    assert differences(device=("--device", "a processor")) == [f"its device is {here}"]
    assert (speed(file.read_text()).device, speed(file.read_text()).batch) == (
        "a processor, 1 thread",
        2,
    )
    there = Sweep.open(tmp_path / "copy", device="a processor").records[1].metrics["speedup"]
    assert speed(file.read_text()).speedup == str(there)


def speed(text: str) -> MeasuredSpeed:
    found = MeasuredSpeed.read(text)
    assert found is not None
    return found


def test_other_weights_than_the_sweeps_are_said(sweep: Sweep, tmp_path: Path) -> None:
    models = tmp_path / "models"
    shutil.copytree(sweep.models, models)
    with safe_open(models / "eagle.safetensors", "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(models / "eagle.safetensors")
    tensors = {name: tensor + torch.full_like(tensor, 1e-3) for name, tensor in tensors.items()}
    save_file(tensors, models / "eagle.safetensors", metadata)
    words = (
        "--from",
        place(sweep),
        "--trial",
        "1",
        "--models",
        str(models),
        "--out",
        str(tmp_path / "out"),
    )
    (difference,) = specfrontier("generate", CAPTIONS[0], *words, "--json").json["measured"][
        "differences"
    ]
    assert difference == "drafters.eagle differs from the sweep's"


def test_python_has_the_same_trials(sweep: Sweep, tmp_path: Path) -> None:
    opened = api.Sweep.open(sweep.storage)
    vanilla = opened.vanilla
    assert (vanilla.number, vanilla.config) == (0, sweep.identity.baseline)
    engine = api.load_engine(vanilla, device="cpu")
    assert (engine.config, engine.decoder.batch_size) == (vanilla.config, 1)
    assert vanilla.models == sweep.models
    saved = vanilla.save(tmp_path / "vanilla.yaml")
    assert MeasuredSpeed.read(saved.read_text()) == MeasuredSpeed.of(
        sweep.identity, sweep.records[0]
    )
    assert (
        specfrontier(
            "generate", CAPTIONS[0], "--config", str(saved), "--out", str(tmp_path / "o")
        ).code
        == 0
    )
    best = opened.best("speedup >= 0")
    (note,) = best.notes
    assert "caption_accuracy" in note
    assert note in repr(best)
    assert escape(note) in best._repr_html_()
    assert "against vanilla" in repr(best) or best.number == 0
    assert opened.best("caption_accuracy >= 0").notes == ()


def test_any_trial_has_a_config(tmp_path: Path) -> None:
    """One that failed, stopped early, repeats another, or lacks an objective."""
    records = write_sweep(tmp_path / "sweep", trials=12, failed=(7,), stopped={9: 2})
    write_trial(Storage(tmp_path / "sweep"), replace(records[3], metrics={}))
    write_trial(Storage(tmp_path / "sweep"), replace(records[4], duplicate_of=2))
    opened, store = api.Sweep.open(tmp_path / "sweep"), str(tmp_path / "sweep")
    for number in (0, 3, 4, 7, 9):
        file = tmp_path / "config.yaml"
        ran = specfrontier("pareto", store, "--trial", str(number), "--config", str(file))
        assert ran.code == 0, ran.err
        assert f"trial {number}, " in ran.out
        assert yaml.safe_load(file.read_text()) == opened.trial(number).config.to_mapping()
        assert repr(opened.trial(number)).startswith(f"Trial {number}, ")
        assert f"<b>Trial {number}</b>" in opened.trial(number)._repr_html_()
    write_trial(Storage(tmp_path / "sweep"), replace(records[7], config=None))
    assert "trial 7 has no config" in error_of("pareto", store, "--trial", "7", code=1)
    assert "no finished trial 99" in error_of(
        "generate", "a ring", "--from", store, "--trial", "99", code=1
    )


@pytest.mark.parametrize("command", [("pareto",), ("generate", "a ring", "--from")])
@pytest.mark.parametrize(
    "words",
    [
        ("--trial", "1", "--best", "fid <= 5"),
        ("--trial", "1", "--lossless"),
        ("--knee", "--lossless"),
        ("--trial", "1", "--knee"),
    ],
)
def test_options_that_mean_different_trials_are_refused(
    tmp_path: Path, command: tuple[str, ...], words: tuple[str, ...]
) -> None:
    write_sweep(tmp_path, trials=4)
    config = ("--config", str(tmp_path / "a.yaml")) if command == ("pareto",) else ()
    message = error_of(*command, str(tmp_path), *words, *config, code=2)
    assert all(word in message for word in words if word.startswith("--"))
    assert not (tmp_path / "a.yaml").exists()


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("--from", "x", "--preset", "lantern"), ("--preset", "--from")),
        (("--from", "x", "--config", "a.yaml"), ("--config", "--from")),
        (("--trial", "1"), ("--trial", "--from")),
        (("--lossless",), ("--lossless", "--from")),
        (("--from", "no-such-sweep"), ("no sweep here",)),
        (("--against", "exact"), ("--against", "vanilla")),
    ],
)
def test_wrong_usage(words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    message = error_of("generate", "a ring", *words, code=2)
    assert all(part in message for part in parts)
