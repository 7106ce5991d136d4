"""A paper's table with one command: tiny files in the official layouts, captions and images in
their usual places, a launch, and the measured figures next to the published ones.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from PIL import Image
from torch import Tensor

from orchestrator.shown.papers import rows_of
from orchestrator.store.records import TrialRecord
from orchestrator.store.sweep import Sweep
from search_spaces.sweep import SweepConfig
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun
from tests.fakes.tiny_clip import config as tiny_clip_config
from tests.fakes.tiny_clip import open_clip_weights, write_clip
from tests.fakes.tiny_eagle import published, write
from tests.fakes.tiny_llamagen import Size, write_models
from workers.data.records import tokens_of
from workers.decoding.engine import Engine
from workers.decoding.state import Request
from workers.loading.models_yaml import load_entry, read_entry
from workers.metrics import hpsv2
from workers.models.families.llamagen_prompts import CaptionConditioner

pytestmark = pytest.mark.slow(seconds=20)
TABLE, NAME, ENTRY = "papers/lantern-table2", "lantern-table2", "llamagen-xl-stage1"
# captions, and how many of them twice; a Fréchet distance would need 68: too long here
COUNT, REPEATED = 12, 2
REAL = 80  # images of the reference
WORDS = ("a", "red", "small", "ball", "cat")  # which the tiny T5 knows


class Table(SweepRun):
    """The paper's ready-made sweep; `text` is its name."""

    @property
    def store(self) -> Path:
        return self.folder / "sweeps" / NAME

    def arguments(self, *options: str) -> list[str]:
        fewer = (
            f"captions.count={COUNT}",
            "timing.images=2",
            "objectives=[speedup,hpsv2]",
            "quality.lossless=measure",
        )
        sets = [word for entry in fewer for word in ("--set", entry)]
        return ["launch", self.text, "--models", "models.yaml", "--no-mlflow", *sets, *options]

    def rows(self, label: str) -> pa.Table:
        """A trial's images, in the captions' order."""
        (record,) = [record for record in self.records if record.label == label]
        shards = [pq.read_table(self.store / name) for name in record.shards if "/quality-" in name]
        return pa.concat_tables(shards).sort_by("caption_id")


def write_files(folder: Path) -> None:
    """Target, drafter and nets of the metrics with their models.yaml; captions and images of
    MS-COCO.
    """
    write_models(folder)
    ckpt = folder / "ckpt"
    write(ckpt / "eagle", published(codes=Size().codes), pickled=True)
    write_clip(ckpt / "clip")
    torch.save({"epoch": 1, "state_dict": open_clip_weights()}, ckpt / "HPS_v2.1_compressed.pt")
    entry = yaml.safe_load((folder / "models.yaml").read_text())["captions"]
    entry |= {
        "drafters": {"eagle": "ckpt/eagle"},
        "metrics": {"clip": "ckpt/clip", "hpsv2": "ckpt/HPS_v2.1_compressed.pt"},
    }
    (folder / "models.yaml").write_text(yaml.safe_dump({ENTRY: entry}))

    # in one order alone: image tokens see a prompt's places all alike
    lengths = (combinations_with_replacement(WORDS, length) for length in range(1, 5))
    every = [" ".join(words) for of_length in lengths for words in of_length]
    texts = every[:: len(every) // (COUNT - REPEATED)][: COUNT - REPEATED]
    texts += texts[-REPEATED:]
    longest = [{"id": i, "image_id": i, "caption": text} for i, text in enumerate(texts)]
    others = [
        {"id": COUNT + i, "image_id": i, "caption": text.split()[0]} for i, text in enumerate(texts)
    ]
    (folder / "captions_val2014.json").write_text(json.dumps({"annotations": others + longest}))
    (folder / "val2017").mkdir()
    generator = torch.Generator().manual_seed(7)
    for number in range(REAL):
        raw = torch.randint(256, (40, 60, 3), generator=generator, dtype=torch.uint8)
        Image.fromarray(raw.numpy()).save(folder / "val2017" / f"{number:012}.png")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Table:
    """The finished sweep of the paper's table. HPSv2 has 986 million weights: here it has a tiny
    model's.
    """
    folder = tmp_path_factory.mktemp("table")
    write_files(folder)
    run = Table(folder, TABLE)
    load = hpsv2.load_hpsv2

    def load_tiny(path: Path, tokenizer_folder: Path) -> Any:
        return load(path, tokenizer_folder, tiny_clip_config("gelu"))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hpsv2, "load_hpsv2", load_tiny)
        run.run_locally("--resume")
    return run


def test_every_row_is_measured(table: Table) -> None:
    sweep, records = SweepConfig.read(TABLE), table.records
    assert [record.label for record in records] == [entry.label for entry in sweep.enqueue]
    assert [record.config for record in records] == [entry.config for entry in sweep.enqueue], (
        "the paper's own"
    )
    assert {record.state for record in records} == {"complete"}
    assert {record.images for record in records} == {COUNT}
    for record in records:
        assert set(record.metrics) == set(sweep.metrics or ())
        for name, found in record.metrics.items():
            assert math.isfinite(found.value), (record.label, name)
            assert found.error is not None, (record.label, name)
            assert math.isfinite(found.error), (record.label, name)
        assert record.metrics["speedup"].value > 0
        assert -1 < record.metrics["clip_score"].value < 1
        assert -1 < record.metrics["hpsv2"].value < 1
    accepted = {record.label: record.metrics["mean_accepted_length"].value for record in records}
    assert accepted["vanilla"] == accepted["vanilla T=0"] == 1
    assert accepted["LANTERN k=1000 delta=0.4"] > 1, "a loose rule accepts something of any drafter"
    identity = json.loads((table.store / "identity.json").read_text())
    assert identity["extractors"]["clip_score"].startswith("clip-photo256@")
    assert identity["extractors"]["hpsv2"].startswith("hpsv2@")


def test_captions_lead_to_their_images(table: Table) -> None:
    """At temperature 0 nothing but the caption tells images apart, and exact drafting changes none
    of them.
    """
    rows = table.rows("vanilla T=0")
    assert rows["caption_id"].to_pylist() == list(range(COUNT)), (
        "of each image's captions the longest"
    )
    images = dict(
        zip(rows["caption"].to_pylist(), map(tuple, tokens_of(rows).tolist()), strict=True)
    )
    assert len(images) == COUNT - REPEATED
    assert len(set(images.values())) > 0.9 * len(images), "other captions, other images"
    assert [images[caption] for caption in rows["caption"].to_pylist()] == list(
        map(tuple, tokens_of(rows).tolist())
    )
    assert torch.equal(tokens_of(table.rows("EAGLE-2 T=0")), tokens_of(rows))
    for score in ("score.clip_score", "score.hpsv2"):
        assert len(set(rows[score].to_pylist())) > COUNT / 2


def test_the_null_caption_matters(table: Table) -> None:
    """The images are those of the entry's own files, by guidance against the null caption in
    them.
    """
    models = load_entry(read_entry(table.folder / "models.yaml", ENTRY), torch.device("cpu"))
    (record,) = [
        record for record in table.records if record.label == "LANTERN k=1000 delta=0.2 T=0"
    ]
    rows = table.rows(record.label).slice(4, 8)  # of two words to four
    setting = record.config
    assert setting is not None
    sampling = setting.sampling
    assert sampling is not None
    assert sampling.cfg == 7.5
    requests = [
        Request(*pair)
        for pair in zip(rows["caption_id"].to_pylist(), rows["caption"].to_pylist(), strict=True)
    ]

    def drawn(cfg: float = 7.5) -> Tensor:
        config = setting.with_sampling(replace(sampling, cfg=cfg))
        engine = Engine(models.target, config, models.drafters["eagle"], seed=0, batch_size=8)
        found = {result.request.caption_id: result.tokens for result in engine.run(requests)}
        return torch.stack([found[request.caption_id] for request in requests])

    guided, alone = drawn(), drawn(cfg=1.0)
    assert torch.equal(guided, tokens_of(rows))
    assert changed(guided, alone) > 4
    conditioner = models.target.conditioner
    assert isinstance(conditioner, CaptionConditioner)
    conditioner.uncond_embedding.neg_()
    assert changed(guided, drawn()) > 4
    assert changed(alone, drawn(cfg=1.0)) == 0, "without guidance nobody looks at it"


def changed(one: Tensor, other: Tensor) -> int:
    """How many images are not the same."""
    return int((one != other).any(1).sum())


def test_published_figures_are_compared_with_measured_ones(table: Table) -> None:
    compared = specfrontier("compare", str(table.store), "--published")
    assert compared.code == 0, compared.err
    output = compared.out
    assert f"{NAME} next to {TABLE}" in output
    assert f"measured: llamagen-t2i-32x2-48, {COUNT} captions of " in output
    assert "published: LlamaGen-XL Stage I, MS-COCO val captions, RTX 3090" in output
    assert f"recall: {COUNT} images measured, 30,000 published" in output
    assert "clip_score measured by clip-photo256@" in output
    assert "hpsv2 measured by hpsv2@" in output
    assert f"fid: {COUNT} images measured, 30,000 published" in output
    assert "not compared: not measured" not in output
    assert "not compared: no error" not in output
    assert "run with" not in output, "no setting is another than the paper's"
    (found,) = specfrontier("compare", str(table.store), "--published", "--json").json
    records = {record.label: record for record in Sweep.open(table.store).records}
    assert [row["label"] for row in found["rows"]] == [row.label for row in rows_of(TABLE)]
    for row, paper in zip(found["rows"], rows_of(TABLE), strict=True):
        record: TrialRecord = records[row["label"]]
        assert row["label"] in output
        assert row["trial"] == record.number
        assert row["differences"] == []
        for figure in row["figures"]:
            assert figure["printed"] == paper.metrics[figure["metric"]].printed
            assert figure["printed"] in output
            assert figure["measured"]["value"] == record.metrics[figure["metric"]].value
            assert figure["verdict"] in ("agrees", "differs")
