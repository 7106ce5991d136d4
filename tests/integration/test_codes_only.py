"""GLM-Image without its pixel decoder, through the commands: a sweep is of tokens and speed, and
what needs images is refused, by the key and the fix, before anything is generated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_foreign import glm_image
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_entry, read_entry
from workers.models.checkpoint_files import collect_notes
from workers.models.families import glm_image as family

pytestmark = pytest.mark.slow(seconds=10)
COUNT = 6
TEXTS = ["a red ball", "a blue ball", "a cat", "a red cat", "ball", "a blue cat"]
MODELS = """
glm: {family: glm_image, checkpoint: ckpt, processor: ckpt/processor, width: 64, height: 64,
      prompt_tokens: 24}
"""
SWEEP = f"""\
name: codes
models: {{name: glm}}
captions: {{source: captions.txt, count: {COUNT}}}
quality: {{batch: {COUNT}, shard: {COUNT}}}
timing: {{batch: 1, images: 2, repetitions: 1}}
objectives: [speedup, {{metric: token_drift, against: vanilla}}]
search: {{sampler: random, parallel: 2}}
budget: {{trials: 2}}
enqueue: [vanilla, {{label: loose, drafter: jacobi, tree: {{policy: chain, length: 3}},
                    acceptance: {{neighbourhood: additive, k: 20, delta: 0.4}}}}]
space: {{drafter: jacobi, tree: {{policy: chain, length: {{low: 2, high: 4}}}}}}
"""


@pytest.fixture(scope="module")
def codes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SweepRun]:
    """A finished sweep of two trials, in its folder; previews have 3 x 3 codes."""
    folder = tmp_path_factory.mktemp("codes")
    torch.manual_seed(0)
    glm_image(folder / "ckpt")
    (folder / "models.yaml").write_text(MODELS)
    (folder / "captions.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    run = SweepRun(folder, SWEEP)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(family, "_PREVIEW_SIDE", 3)
        run.run_locally("--models", "models.yaml", "--no-mlflow")
        with chdir(folder):
            yield run


def test_trials_have_tokens_speed_and_no_pictures(codes: SweepRun) -> None:
    vanilla, loose = codes.records
    assert [record.state for record in (vanilla, loose)] == ["complete"] * 2
    assert (vanilla.metrics["token_drift"].value, vanilla.metrics["token_agreement"].value) == (
        0,
        1,
    )
    assert loose.metrics["mean_accepted_length"].value > 1
    assert 0 < loose.metrics["token_agreement"].value < 1
    assert "speedup" in loose.metrics
    identity = json.loads((codes.store / "identity.json").read_text())
    assert (identity["grid"], identity["image_size"]) == ([2, 2, 3, 3], 64)
    assert (identity["extractors"], identity["reference"]) == ({}, None)
    assert not (codes.store / "pictures").exists()
    assert len(list((codes.store / "heatmaps").iterdir())) == 2


def test_readers_of_a_sweep_show_what_there_is(codes: SweepRun) -> None:
    for command in (["status", "codes"], ["pareto", "codes"], ["show", "codes", "1"]):
        result = specfrontier(*command)
        assert result.code == 0, result.err
    result = specfrontier("report", "codes", "--out", "page.html")
    assert result.code == 0, result.err
    page = Path("page.html").read_text()
    assert "2 × 2 tokens after a preview of 3 × 3" in page


def test_what_needs_images_is_refused_by_its_key(codes: SweepRun) -> None:
    other = SWEEP.replace("name: codes", "name: other")
    Path("other.yaml").write_text(other)
    words = ("launch", "other.yaml", "--models", "models.yaml", "--check", "--no-mlflow")
    checked = specfrontier(*words)
    assert checked.code == 0, checked.err
    assert "there are no images" in checked.out + checked.err
    Path("other.yaml").write_text(other.replace("[speedup,", "[speedup, fid,"))
    found = error_of(*words, code=2)
    assert "objectives[1]" in found
    assert "give `decoder`" in found
    found = error_of("generate", "a cat", "--models", "models.yaml#glm", "--out", "drawn", code=2)
    assert "give `decoder`" in found
    assert not Path("drawn").exists()


def test_the_doctor_says_that_there_are_codes_only(codes: SweepRun) -> None:
    result = specfrontier("doctor", "--models", "models.yaml")
    assert result.code == 0, result.err
    assert "there are no images" in result.out
    assert "after a preview of 3 x 3" in result.out


def test_an_export_takes_its_weights_along(codes: SweepRun) -> None:
    result = specfrontier("export", "codes", "--trial", "1", "--out", "away", "--with-weights")
    assert result.code == 0, result.err
    entry = read_entry("away/models.yaml")
    assert entry.family.to_mapping()["width"] == 64
    with collect_notes():
        models = load_entry(entry, torch.device("cpu"))
    assert models.target.grid.tokens == 13


def test_a_trained_drafter_drafts_for_both_grids(codes: SweepRun) -> None:
    words = "--captions captions.txt --models models.yaml#glm --out trained --batch 2 --steps 2"
    result = specfrontier("train", "eagle", *words.split(), "--no-mlflow", "--device", "cpu")
    assert result.code == 0, result.err
    trained = replace(
        read_entry("models.yaml", "glm"), drafters={"eagle": "trained/eagle.safetensors"}
    )
    with collect_notes():
        models = load_entry(trained, torch.device("cpu"))
    tree = {"policy": "dynamic", "depth": 3, "width": 2, "nodes": 5}
    setting = DecodingConfig.from_mapping(
        {
            "drafter": "eagle",
            "tree": tree,
            "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 1.0},
        }
    )
    drawn = []
    for config, drafter in (
        (setting, models.drafters["eagle"]),
        (DecodingConfig(sampling=setting.sampling), None),
    ):
        engine = Engine(models.target, config, drafter, batch_size=2)
        results = engine.run([Request(number, text) for number, text in enumerate(TEXTS[:2])])
        drawn.append({result.request: result.tokens.tolist() for result in results})
    assert drawn[0] == drawn[1]
    found = error_of("train", "vertical", *words.split(), "--no-mlflow", code=2)
    assert "one grid" in found
