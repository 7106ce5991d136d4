"""Training an EAGLE drafter for any target: it helps, it resumes on the same curve, and a job
states its inputs.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from search_spaces.drafters import Eagle, Independent, Medusa, Vertical
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig, Sampling
from tests.fakes.tiny_models import captions_file, tiny_folder
from tests.fakes.toys import BASE, toy_target
from tests.oracles.drafter_rounds import CAPTIONS
from workers.data.captions import Caption, read_captions
from workers.decoding.build import load_drafter
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.drafters.eagle import EagleDrafter
from workers.loading.models_yaml import folder_entry, load_folder
from workers.models.checkpoint_files import load_tensors
from workers.models.own_files import read_config, save
from workers.training import job as job_module
from workers.training.drafters import evaluate_drafter, new_eagle
from workers.training.examples import Examples, sample_images
from workers.training.job import IMAGES, DrafterJob, DrafterRecipe, train_by_recipe

WEIGHTS, CHECKPOINT, JOURNAL = "eagle.safetensors", "eagle.checkpoint.pt", "eagle.journal.jsonl"
FACTS = "eagle.job.json"
QUICK = DrafterRecipe(batch=4, steps=24, rate=2e-3, save_every=8)
SETTING = DecodingConfig(Eagle(), Chain(2))


def quiet(_: str) -> None: ...


def lines(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_training_helps_and_keeps_the_best(tmp_path: Path) -> None:
    target, recipe = toy_target(), replace(QUICK, steps=120, save_every=20, batch=8)
    captions = [Caption(i, "abcdefgh"[i % 8 :]) for i in range(40)]
    tokens = sample_images(target, captions, tmp_path / "images", identity="toy", log=quiet)
    data = Examples([c.text for c in captions], tokens)
    before = evaluate_drafter(target, new_eagle(target, 0), data.split(2)[1], scales=(1.0,))
    path = train_by_recipe(target, "eagle", data, tmp_path, recipe, log=quiet)
    curve = lines(tmp_path / JOURNAL)
    losses = [entry["loss"] for entry in curve if "loss" in entry]
    held_out = [entry["top-3"] for entry in curve if "top-3" in entry]
    assert len(losses) == 120
    assert len(held_out) == 6
    assert sum(losses[-10:]) < 0.7 * sum(losses[:10])
    header = read_config(path)
    assert header["held_out"]["top-3"] == max(held_out) > before["top-3"] + 0.1
    drafter = load_drafter(target, "eagle", path)
    requests = [Request(i, caption) for i, caption in enumerate(CAPTIONS)]
    emitted = [
        r.statistics.mean_accepted_length
        for r in Engine(target, SETTING, drafter, batch_size=3).run(requests)
    ]
    untrained = EagleDrafter(target, new_eagle(target, 0)).eval().requires_grad_(False)
    random = [
        r.statistics.mean_accepted_length
        for r in Engine(target, SETTING, untrained, batch_size=3).run(requests)
    ]
    assert sum(emitted) > sum(random)


def test_a_resumed_run_equals_an_undisturbed_one(tmp_path: Path) -> None:
    target = toy_target()
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.vocab_size, (12, target.grid.tokens), generator=generator)
    data = Examples([CAPTIONS[i % len(CAPTIONS)] for i in range(12)], tokens)
    train_by_recipe(target, "eagle", data, tmp_path / "whole", QUICK, log=quiet)

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "step 16/24" in line:  # between two checkpoints: those eight steps are done again
            raise Killed

    with pytest.raises(Killed):
        train_by_recipe(target, "eagle", data, tmp_path / "broken", QUICK, log=kill)
    train_by_recipe(target, "eagle", data, tmp_path / "broken", QUICK, resume=True, log=quiet)
    whole, broken = ((tmp_path / name) for name in ("whole", "broken"))
    assert (whole / JOURNAL).read_bytes() == (broken / JOURNAL).read_bytes()
    assert (whole / WEIGHTS).read_bytes() == (broken / WEIGHTS).read_bytes()
    states = [
        torch.load(folder / CHECKPOINT, weights_only=True)["model"] for folder in (whole, broken)
    ]
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])


# the job


def job(tmp_path: Path, recipe: DrafterRecipe = QUICK, captions: int = 70) -> DrafterJob:
    weights = tiny_folder(tmp_path / "weights")
    found = read_captions(captions_file(tmp_path / "captions.txt", captions))
    return DrafterJob(
        entry=folder_entry(weights), captions=tuple(found), out=tmp_path / "out", recipe=recipe
    )


def test_a_job_draws_once_and_says_what_it_was_begun_with(tmp_path: Path) -> None:
    wanted, said = job(tmp_path), list[str]()
    cpu = torch.device("cpu")
    path = wanted.run(cpu, log=said.append)
    drawn = {file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / IMAGES).iterdir()}
    assert len(drawn) == 2, "70 images, 64 of them in a file"
    assert said[0].startswith("generated images: 1 of 2 files")
    first, said = path.read_bytes(), []
    assert wanted.run(cpu, log=said.append).read_bytes() == first
    assert not any(line.startswith("generated") for line in said)
    assert {
        file.name: file.stat().st_mtime_ns for file in (tmp_path / "out" / IMAGES).iterdir()
    } == drawn
    other = replace(wanted, recipe=replace(QUICK, rate=1e-3))
    with pytest.raises(ValueError, match=r"eagle.job.json: .* another rate \(0.002, now 0.001\)"):
        other.run(cpu, resume=True, log=quiet)
    fewer = replace(wanted, captions=wanted.captions[:9])
    with pytest.raises(ValueError, match="another captions"):
        fewer.run(cpu, resume=True, log=quiet)


def test_models_that_cannot_be_loaded_leave_an_earlier_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, files = job(tmp_path, captions=4), (CHECKPOINT, JOURNAL, FACTS)
    made.out.mkdir()
    for name in files:
        (made.out / name).write_text(name)

    def fail(*arguments: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(job_module, "load_entry", fail)
    with pytest.raises(torch.OutOfMemoryError):
        made.run(torch.device("cpu"), log=quiet)
    assert [(made.out / name).read_text() for name in files] == list(files)


def test_a_restarted_group_resumes_and_another_one_starts_again(tmp_path: Path) -> None:
    recipe = DrafterRecipe(batch=2, steps=3, save_every=1)
    first, said = replace(job(tmp_path, recipe, 4), launch="one"), list[str]()

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "step 2/3" in line:
            raise Killed

    cpu = torch.device("cpu")
    with pytest.raises(Killed):
        first.run(cpu, log=kill)
    first.run(cpu, log=said.append)
    assert [line.split(" loss")[0] for line in said if " loss" in line] == [
        "eagle step 2/3",
        "eagle step 3/3",
    ]
    (first.out / WEIGHTS).unlink()
    first.run(cpu, log=quiet)
    assert (first.out / WEIGHTS).exists(), "a finished training is exported again"
    said.clear()
    replace(first, launch="two").run(cpu, log=said.append)
    assert sum(" loss" in line for line in said) == 3


def test_worse_weights_do_not_replace_better_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held-out figures rise to the second save and fall at the third."""
    figures = iter([0.5, 0.9, 0.7])
    monkeypatch.setattr(job_module, "evaluate_drafter", lambda *_, **__: {"top-3": next(figures)})
    made = job(tmp_path, DrafterRecipe(batch=2, steps=3, save_every=1), 4)
    path = made.run(torch.device("cpu"), log=quiet)
    assert next(figures, None) is None
    assert read_config(path)["held_out"]["top-3"] == 0.9


def test_weights_without_figures_are_replaced(tmp_path: Path) -> None:
    made = job(tmp_path, DrafterRecipe(batch=2, steps=2, save_every=1), 4)

    class Killed(Exception): ...

    def kill(line: str) -> None:
        if "step 2/2" in line:
            raise Killed

    cpu, path = torch.device("cpu"), made.out / WEIGHTS
    with pytest.raises(Killed):
        made.run(cpu, log=kill)
    save(path, load_tensors(path), {})
    made.run(cpu, resume=True, log=quiet)
    assert read_config(path)["held_out"]["top-3"] >= 0


@pytest.mark.parametrize(
    "drafter", [Eagle(), Medusa(), Independent()], ids=lambda drafter: drafter.kind
)
def test_the_drafter_of_a_job_loads_into_its_target(
    drafter: Eagle | Medusa | Independent, tmp_path: Path
) -> None:
    done = replace(job(tmp_path, captions=12), kind=drafter.kind).run(
        torch.device("cpu"), log=quiet
    )
    assert read_config(done)["held_out"]["top-3"] > 0
    done.replace(tmp_path / "weights" / done.name)
    models, setting = load_folder(tmp_path / "weights"), DecodingConfig(drafter, Chain(2))
    (result,) = Engine(models.target, setting, models.drafters[drafter.kind]).run(
        [Request(0, "red small star")]
    )
    assert result.statistics.mean_accepted_length >= 1


def test_a_vertical_branch_trains_on_images_without_guidance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[Sampling | None]()

    def noted(*arguments: Any, sampling: Sampling | None, **options: Any) -> torch.Tensor:
        seen.append(sampling)
        return sample_images(*arguments, sampling=sampling, **options)

    monkeypatch.setattr(job_module, "sample_images", noted)
    made = replace(job(tmp_path, DrafterRecipe(batch=2, steps=2, save_every=2), 4), kind="vertical")
    done = made.run(torch.device("cpu"), log=quiet)
    assert seen == [Sampling()]
    done.replace(tmp_path / "weights" / done.name)
    models, setting = load_folder(tmp_path / "weights"), DecodingConfig(Vertical())
    engine = Engine(models.target, setting, models.drafters["vertical"])
    (result,) = engine.run([Request(0, "red small star")])
    assert result.statistics.passes + 1 == 4 + 4 - 1
    with pytest.raises(ValueError, match="toy: its images have one row"):
        made.check(toy_target(config=replace(BASE, rows=1)))


def test_two_captions_are_the_least(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="1 captions are too few"):
        QUICK.split(1)
    assert (QUICK.split(2), QUICK.split(1000)) == (1, 50)


def test_the_schedule_is_the_published_one() -> None:
    config = DrafterRecipe().schedule(95_000)
    assert (config.steps, config.batch, config.warmup) == (118_750, 16, 2000)
    assert (config.rate, config.clip_value, config.clip) == (1e-4, 0.5, 0.0)
