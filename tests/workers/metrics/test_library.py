"""Classes of torchmetrics as metrics of a sweep: every class, its errors, what a sweep does with
it, and bad input.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics.image
from torch import Tensor, nn
from torchmetrics.image.inception import InceptionScore
from transformers import CLIPImageProcessor, CLIPModel, CLIPProcessor

from orchestrator.front.compare import obstacles
from orchestrator.store.sweep import Sweep
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from tests.fakes import tiny_clip
from tests.fakes.command_line import specfrontier
from tests.fakes.real_sweeps import SweepRun, files
from workers.data.captions import read_captions
from workers.data.records import features_of, read_shard, tokens_of
from workers.data.reference import read_reference
from workers.data.storage import Storage
from workers.loading.models_yaml import folder_entry, load_entry
from workers.metrics import kid, library
from workers.metrics.definition import BASELINE, IMAGES
from workers.metrics.estimate import BLOCKS, Estimate, jackknife_error
from workers.metrics.features import load_features
from workers.metrics.library import classes, library_metrics, try_metric

COUNT = 48  # two images in each block
RGB = {"data_range": 1.0}
CLIP = {"model_name_or_path": "CLIP"}
#: arguments in the sweep, and those of the class itself where they differ
WORKING: Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {
    "image.ErrorRelativeGlobalDimensionlessSynthesis": ({}, {}),
    "image.FrechetInceptionDistance": ({}, {}),
    "image.InceptionScore": ({"splits": 1, "name": "inception_score_of_one_split"}, {"splits": 1}),
    "image.KernelInceptionDistance": ({"subsets": 5, "subset_size": 40}, {}),
    "image.MemorizationInformedFrechetInceptionDistance": ({"against": "vanilla"}, {}),
    "image.MultiScaleStructuralSimilarityIndexMeasure": (
        {"kernel_size": 3, "betas": [0.4, 0.6]},
        RGB | {"kernel_size": 3, "betas": (0.4, 0.6)},
    ),
    "image.PeakSignalNoiseRatio": ({}, RGB),
    "image.RelativeAverageSpectralError": ({}, {}),
    "image.RootMeanSquaredErrorUsingSlidingWindow": ({}, {}),
    "image.SpatialCorrelationCoefficient": ({}, {}),
    "image.SpectralAngleMapper": ({}, {}),
    "image.SpectralDistortionIndex": ({}, {}),
    "image.StructuralSimilarityIndexMeasure": ({"against": "vanilla"}, RGB),
    "image.TotalVariation": ({}, {"reduction": "mean"}),
    "image.UniversalImageQualityIndex": ({}, {}),
    "image.VisualInformationFidelity": ({}, {}),
    "multimodal.CLIPImageQualityAssessment": (CLIP, {}),
    "multimodal.CLIPScore": ({**CLIP, "name": "tiny_clip_score"}, {}),
}
EXCLUDED = {
    "image.ARNIQA": "torchvision",
    "image.DeepImageStructureAndTextureSimilarity": "torchvision",
    "image.LearnedPerceptualImagePatchSimilarity": "torchvision",
    "image.PeakSignalNoiseRatioWithBlockedEffect": "grayscale",
    "image.PerceptualPathLength": "does not read images",  # but a generator
    "image.QualityWithNoReference": "does not read images",  # of satellites
    "image.SpatialDistortionIndex": "does not read images",
    "multimodal.LipVertexError": "does not read images",
}
SPACE = """
name: library
models: WEIGHTS
captions: {source: scenes, count: COUNT, seed: 1}
reference: {source: scenes, count: 96, seed: 2}
quality: {batch: 24, shard: 24}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}
objectives: [step_compression, structural_similarity_index_measure]
constraints: [total_variation <= 2 * vanilla]
metrics: METRICS
budget: {trials: 2}
enqueue: [{label: chain, drafter: eagle, tree: {policy: chain, length: 3}, acceptance: {schedule: constant, budget: 2}}]
"""


def name_of(label: str) -> str:
    return next(
        iter(
            SweepConfig.from_mapping(
                sweep([{"torchmetrics": label, **WORKING[label][0]}])
            ).torchmetrics
        )
    )


def sweep(metrics: list[Any], **changes: Any) -> dict[str, Any]:
    return {
        "name": "s",
        "space": {"drafter": "eagle", "tree": {"policy": "chain", "length": 2}},
        "metrics": metrics,
        **changes,
    }


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random CLIP with the files of its processor."""
    folder, config = tmp_path_factory.mktemp("clip"), tiny_clip.config()
    tiny_clip.write_tokenizer(folder)
    text: Any = config.text_config
    text.max_position_embeddings = 160  # whole captions
    torch.manual_seed(0)
    model = CLIPModel(config)
    for weight in model.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    model.save_pretrained(folder)
    size = {"height": tiny_clip.IMAGE, "width": tiny_clip.IMAGE}
    CLIPImageProcessor(size={"shortest_edge": tiny_clip.IMAGE}, crop_size=size).save_pretrained(
        folder
    )
    (folder / "tokenizer_config.json").write_text(
        '{"tokenizer_class": "CLIPTokenizer", "model_max_length": 160}'
    )
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, clip: Path) -> SweepRun:
    """A sweep with every class that works."""
    entries = [{"torchmetrics": label, **given} for label, (given, _) in WORKING.items()]
    text = (
        SPACE.replace("COUNT", str(COUNT))
        .replace("METRICS", repr(entries))
        .replace("'CLIP'", f"'{clip}'")
    )
    run = SweepRun(tmp_path_factory.mktemp("sweep"), text)
    run.run_locally()
    return run


class Images:
    """The images of a trial as its shards have them, and what metrics compare them with."""

    def __init__(self, run: SweepRun, trial: int) -> None:
        storage = Storage(str(run.store))
        target = load_entry(folder_entry(run.folder / "weights"), torch.device("cpu")).target
        tables = [read_shard(storage, f"shards/{name}") for name in storage.names("shards")]
        captions = read_captions(source="scenes", count=COUNT, seed=1)
        self.texts = [caption.text for caption in captions]
        self.pixels, self.features = [], []
        for number in (trial, 0):
            config = run.records[number].config
            assert config is not None
            own = [table for table, about in tables if about["config"] == config.to_mapping()]
            rows = {
                key: i
                for i, key in enumerate(k for table in own for k in table["caption_id"].to_pylist())
            }
            order = torch.tensor([rows[caption.id] for caption in captions])
            self.pixels.append(target.decode(torch.cat([tokens_of(table) for table in own])[order]))
            name = next(c for c in own[0].column_names if c.startswith("features.")).removeprefix(
                "features."
            )
            self.features.append(torch.cat([features_of(table, name) for table in own])[order])
        extractor = load_features()
        self.logits = extractor.class_logits(self.features[0])
        self.real = read_reference(
            storage, "reference.parquet", extractors=(extractor,), fix=""
        ).features[0]

    def value(self, label: str, clip: Path, keep: Tensor) -> float:
        """The class itself on the images `keep`, all at once."""
        arguments = dict(WORKING[label][1])
        images, others = (pixels[keep] for pixels in self.pixels)
        needs = library_metrics({"m": {"torchmetrics": label, **self.given(label, clip)}})[
            "m"
        ].needs
        if label.startswith("multimodal"):
            arguments["model_name_or_path"] = partial(tensor_clip, clip)
        if IMAGES not in needs:
            arguments["feature"] = Identity(self.features[0].shape[1])
        metric = classes()[label](**arguments)
        texts = [self.texts[i] for i in keep.tolist()]
        if label == "multimodal.CLIPScore":
            metric.update((images * 255).round().byte(), texts)
        elif isinstance(metric, InceptionScore):
            metric.update(self.logits[keep])
        elif IMAGES not in needs:
            metric.update(self.features[1][keep] if BASELINE in needs else self.real, real=True)
            metric.update(self.features[0][keep], real=False)
        else:
            metric.update(*((images, others) if BASELINE in needs else (images,)))
        found = metric.compute()
        return float((found[0] if isinstance(found, tuple) else found).mean())

    @staticmethod
    def given(label: str, clip: Path) -> dict[str, Any]:
        given = {key: value for key, value in WORKING[label][0].items() if key != "name"}
        return given | ({"model_name_or_path": str(clip)} if "model_name_or_path" in given else {})


def kernel_distance(images: Images) -> Estimate:
    return kid.kernel_distance(images.features[0], images.real, torch.arange(COUNT) % BLOCKS)


@cache
def tensor_clip(folder: Path) -> tuple[Any, Any]:
    """A CLIP as torchmetrics expects it, with features that are tensors."""
    model: Any = CLIPModel.from_pretrained(folder)
    model.train(False)
    images, texts = model.get_image_features, model.get_text_features
    model.get_image_features = lambda *inputs: images(*inputs).pooler_output
    model.get_text_features = lambda *inputs: texts(*inputs).pooler_output
    return model, CLIPProcessor.from_pretrained(folder)


class Identity(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features = width

    def forward(self, features: Tensor) -> Tensor:
        return features


@pytest.fixture(scope="module")
def images(run: SweepRun) -> Images:
    return Images(run, 1)


def test_every_class_is_in_one_of_the_two_lists() -> None:
    assert {*WORKING, *EXCLUDED} == set(classes())
    assert not WORKING.keys() & EXCLUDED.keys()


@pytest.mark.parametrize("label", sorted(EXCLUDED))
def test_excluded_classes_are_refused_with_the_reason(label: str) -> None:
    try:
        metric = library_metrics({"m": {"torchmetrics": label}})["m"]
        problem = try_metric(metric, image_size=48, width=64, images=69, own_vanilla=False) or ""
    except ConfigError as error:
        problem = str(error)
    assert EXCLUDED[label] in problem


@pytest.mark.filterwarnings("ignore")  # torchmetrics: of its buffers
@pytest.mark.parametrize("label", sorted(WORKING))
def test_value_and_error_equal_the_class_applied_without_each_block(
    label: str, run: SweepRun, images: Images, clip: Path
) -> None:
    found = run.records[1].metrics[name_of(label)]
    rows = torch.arange(COUNT)
    assert found.n == COUNT
    assert len(found.replicates) == BLOCKS
    if label == "image.KernelInceptionDistance":  # of random subsets
        assert found.value == pytest.approx(kernel_distance(images).value, abs=4 * found.error)
        return
    assert found.value == pytest.approx(images.value(label, clip, rows), rel=2e-4, abs=1e-6)
    left_out = [images.value(label, clip, rows[rows % BLOCKS != block]) for block in range(BLOCKS)]
    assert found.replicates == pytest.approx(left_out, rel=2e-4, abs=1e-6)
    error = jackknife_error(torch.tensor(left_out, dtype=torch.float64))
    assert found.error == pytest.approx(float(error), rel=0.02, abs=1e-6)


def test_its_names_work_wherever_a_metric_does(run: SweepRun) -> None:
    metrics = Sweep.open(run.store).identity.metrics
    assert {name_of(label) for label in WORKING} <= metrics.keys()
    assert metrics["spectral_angle_mapper"].is_of_vanilla
    assert metrics["structural_similarity_index_measure"].direction == "maximize"
    options = ["--x", "visual_information_fidelity", "--y", "tiny_clip_score", "--json"]
    shown = specfrontier("pareto", str(run.store), *options)
    assert shown.code == 0
    assert {entry["metric"] for entry in json.loads(shown.out)["objectives"]} == {
        options[1],
        options[3],
    }


def test_resume_measures_nothing_again(run: SweepRun) -> None:
    before = files(run.store)
    run.run_locally("--resume")
    assert files(run.store) == before


def test_definitions_that_differ_are_not_compared(run: SweepRun) -> None:
    identity = Sweep.open(run.store).identity
    name, metrics = "spectral_angle_mapper", identity.metrics
    assert obstacles([identity, identity], name) == []
    changed = replace(
        identity, metrics={**metrics, name: replace(metrics[name], definition="another")}
    )
    assert "definition" in " ".join(obstacles([identity, changed], name))


def test_a_sweep_writes_its_entries_out(run: SweepRun) -> None:
    config = SweepConfig.read(run.store / "sweep.yaml")
    assert SweepConfig.from_mapping(config.to_mapping()) == replace(config, document=None)
    assert config.torchmetrics["tiny_clip_score"]["torchmetrics"] == "multimodal.CLIPScore"


SSIM = {"torchmetrics": "image.StructuralSimilarityIndexMeasure"}


@pytest.mark.parametrize(
    ("entry", "path", "parts"),
    [
        (
            {"torchmetrics": "image.StructuralSimilarity"},
            "torchmetrics",
            ["StructuralSimilarityIndexMeasure"],
        ),
        ({"torchmetrics": "text.BLEUScore"}, "torchmetrics", ["image."]),
        (SSIM | {"sigme": 1.0}, "sigme", ["sigma"]),
        (SSIM | {"data_range": 255}, "data_range", ["floats from 0 to 1"]),
        (SSIM | {"reduction": "sum"}, "reduction", ["mean"]),
        (SSIM | {"against": "reference"}, "against", ["vanilla"]),
        (SSIM | {"sync_on_compute": True}, "sync_on_compute", ["reduction"]),
        ({"torchmetrics": "image.TotalVariation", "against": "vanilla"}, "against", ["remove"]),
        (
            {"torchmetrics": "image.FrechetInceptionDistance", "feature": 64},
            "feature",
            ["models.yaml"],
        ),
        ({"torchmetrics": "multimodal.CLIPScore"}, "model_name_or_path", ["folder"]),
        (
            {
                "torchmetrics": "multimodal.CLIPScore",
                "model_name_or_path": "openai/clip-vit-base-patch16",
            },
            "model_name_or_path",
            ["downloaded"],
        ),
    ],
)
def test_bad_entries_are_refused_by_key(entry: dict[str, Any], path: str, parts: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        library_metrics({"m": entry})
    assert caught.value.path == ("m", path)
    assert all(part in str(caught.value) for part in parts)


@pytest.mark.parametrize(
    ("metrics", "path"),
    [
        ([{"torchmetrics": 3}], ("metrics", "[0]", "torchmetrics")),
        ([SSIM | {"name": "No Name"}], ("metrics", "[0]", "name")),
        (["fid", SSIM, SSIM | {"sigma": 2.0}], ("metrics", "[2]")),
    ],
)
def test_bad_names_are_refused_when_the_file_is_read(
    metrics: list[Any], path: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigError) as caught:
        SweepConfig.from_mapping(sweep(metrics))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("entry", "objective", "key"),
    [
        # the project's own metric
        ({"torchmetrics": "image.InceptionScore"}, "fid", "metrics[0].name"),
        # inf for vanilla
        ({"torchmetrics": "image.PeakSignalNoiseRatio"}, "peak_signal_noise_ratio", "metrics[0]"),
        # of 160 pixels
        (
            {"torchmetrics": "image.MultiScaleStructuralSimilarityIndexMeasure"},
            "fid",
            "metrics[0]",
        ),
        (SSIM | {"sigma": -1.0}, "fid", "metrics[0]"),
    ],
)
def test_launch_refuses_what_has_no_number_before_any_work(
    entry: dict[str, Any], objective: str, key: str, tmp_path: Path
) -> None:
    text = SPACE.replace("COUNT", str(COUNT)).replace("METRICS", repr([entry]))
    text = text.replace("structural_similarity_index_measure", objective).replace(
        "total_variation", "fid"
    )
    run = SweepRun(tmp_path, text)
    result = specfrontier(*run.arguments("--check"))
    assert result.code == 2
    assert f" {key}: " in result.err
    assert not run.store.exists()


def test_nothing_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Pretrained(torchmetrics.image.TotalVariation):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            torch.hub.load_state_dict_from_url("https://127.0.0.1:9/network-1234.pth")

    monkeypatch.setattr(library, "classes", lambda: {"image.Pretrained": Pretrained})
    metric = library_metrics({"m": {"torchmetrics": "image.Pretrained"}})["m"]
    problem = try_metric(metric, image_size=48, width=4, images=40, own_vanilla=False) or ""
    assert "https://127.0.0.1:9/network-1234.pth" in problem
    assert str(Path(torch.hub.get_dir()) / "checkpoints" / "network-1234.pth") in problem
