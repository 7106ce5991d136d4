"""Models, captions, reference, metrics, timing and search are checked before any worker starts."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import save_file

from orchestrator.errors import explain
from orchestrator.launch import checks, inspection
from orchestrator.launch.checks import check
from orchestrator.launch.inspection import Inspection
from orchestrator.launch.options import LaunchOptions
from orchestrator.launch.read import LaunchRequest
from orchestrator.launch.start import worker_spec
from orchestrator.store.identity import IdentityError
from search_spaces.params import ConfigError
from search_spaces.sweep import SweepConfig
from tests.fakes.png_files import broken_chunk_type
from tests.fakes.synthetic_sweeps import identity
from tests.fakes.tiny_llamagen import VQ, write_models, write_vq
from workers.data.records import float_lists, write_shard
from workers.data.reference import FILE as REFERENCE
from workers.data.storage import Storage
from workers.loading.models_yaml import Entry
from workers.metrics.extractors import Extractors
from workers.models.checkpoint_files import is_shapes_only, load_tensors, safetensors_metadata
from workers.models.families.scenes import BUILTIN
from workers.runtime.specification import WorkerSpec

SPACE = """\
name: tested
captions: {source: scenes, count: 96, seed: 1}
reference: {source: scenes, count: 128, seed: 2}
timing: {batch: 1, images: 2, repetitions: 1}
sampling: {temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.5}
objectives: [speedup, fid]
search: {sampler: random, parallel: 2}
budget: {trials: 3}
enqueue: [vanilla, {label: exact chain, drafter: eagle, tree: {policy: chain, length: 3}}]
space: {drafter: eagle, tree: {policy: chain, length: {low: 2, high: 6}}}
"""
CHAIN = {"drafter": "eagle", "tree": {"policy": "chain", "length": 3}}
UNTIMED: dict[str, Any] = {"objectives": ["step_compression", "target_passes"]}
GOOD = "a large red circle on a smooth grey background"
Words = tuple[str, ...]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def assert_passes(changes: dict[str, Any] | None = None, **sections: Any) -> None:
    """The checks accept SPACE with sections replaced, and dotted keys changed."""
    text = yaml.safe_dump(yaml.safe_load(SPACE) | sections, sort_keys=False)
    run_checks(SweepConfig.parse(text, "tested.yaml", changes))


def run_checks(
    sweep: SweepConfig, store: str = "sweeps/tested", address: str | None = None
) -> None:
    options = LaunchOptions(address=address, mlflow=False)
    check(Inspection(LaunchRequest(options, sweep, Storage(store))))


def problem(changes: dict[str, Any] | None = None, **sections: Any) -> str:
    """The one-line message of a sweep that is refused."""
    with pytest.raises((ValueError, OSError)) as caught:
        assert_passes(changes, **sections)
    assert not Path("sweeps").exists()
    assert isinstance(caught.value, Exception)
    message = explain(caught.value)
    assert "\n" not in message
    return message


def assert_contains(message: str, parts: Words) -> None:
    for part in parts:
        assert part in message


def test_an_objective_against_vanilla_is_one_on_purpose() -> None:
    assert_passes(objectives=["speedup", {"metric": "drift", "against": "vanilla"}])


def test_own_captions_against_the_built_in_scenes_have_a_note() -> None:
    Path("own.txt").write_text("\n".join([GOOD] * 96))
    plain = yaml.safe_load(SPACE) | {"captions": {"source": "own.txt", "count": 96}}

    def notes(**sections: Any) -> list[str]:
        sweep = SweepConfig.parse(yaml.safe_dump(plain | sections), "tested.yaml")
        found = Inspection(LaunchRequest(LaunchOptions(mlflow=False), sweep, Storage("s")))
        check(found)
        return [note for note in found.notes if "own.txt" in note]

    (note,) = notes()
    assert_contains(note, ("fid", "built-in scenes", "reference.source", "reference: none"))
    assert notes(reference="none", **UNTIMED) == []
    assert notes(captions={"source": "scenes", "count": 96}) == []


def test_a_resumed_sweep_with_other_files_is_refused_before_workers_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers would say so only when they have loaded the models."""
    found: list[Mapping[str, Any]] = []
    captions = {"hash": "of these captions", "count": 4, "source": "scenes"}
    stored = identity("tested", captions=captions)
    monkeypatch.setattr(inspection, "read_identity", lambda _: stored)
    monkeypatch.setattr(checks, "captions_hash", lambda _: "of these captions")
    with monkeypatch.context() as patched:
        patched.setattr(
            checks,
            "check_unchanged",
            lambda _storage, _stored, now, _keys: found.append(now),
        )
        assert_passes()
    (now,) = found
    stored = dataclasses.replace(stored, models=now["models"], extractors=now["extractors"])
    assert_passes()
    other = {**now["models"], "drafters.eagle": "0" * 16}
    for changed, key in (
        (dataclasses.replace(stored, models=other), "models.drafters"),
        (dataclasses.replace(stored, extractors={}), "extr"),
    ):
        stored = changed
        with pytest.raises(IdentityError, match=f"changed since this sweep started: {key}"):
            assert_passes()
        stored = dataclasses.replace(stored, models=now["models"], extractors=now["extractors"])


def test_a_valid_sweep_passes() -> None:
    assert_passes()
    for other in ("mean_accepted_length", {"metric": "drift", "against": "vanilla"}):
        assert_passes(reference={"source": "none"}, objectives=["speedup", other])
    assert_passes(timing={"batch": 4, "images": 4, "repetitions": 2})
    assert_passes(search={"sampler": "replay", "options": {"pool": 20}})
    assert_passes(racing={"rungs": [72]}, objectives=["speedup", "fid"])
    assert_passes(racing={"rungs": [24, 48], "stop": "dominated"}, objectives=["speedup", "fid"])
    untimed: dict[str, Any] = {
        "timing": {"images": 8},
        "metrics": ["target_passes"],
        **UNTIMED,
    }  # without metrics: all, also timings
    assert_passes(captions={"source": "scenes", "count": 4}, **untimed)


@pytest.mark.parametrize(
    ("sections", "parts"),
    [
        ({"objectives": ["speedup", "fed"]}, ("tested.yaml:", "objectives[1]: ", "fed", "fid")),
        ({"constraints": ["clip_scor >= 0.9"]}, ("constraints[0]: ", "clip_scor")),
        ({"metrics": ["fid", "drfit"]}, ("metrics[1]: ", "drfit", "drift")),
        (
            {"search": {"sampler": "tpe", "options": {"startup": 5}}},
            ("search.options", "tpe", "startup"),
        ),
        (
            {"timing": {"batch": 50, "images": 51}},
            ("timing: ", "100 captions", "there are 96", "timing.batch"),
        ),
        (
            {"captions": {"source": "scenes", "count": 66}},
            ("objectives[1]: fid needs more images", "63"),
        ),
        (
            {
                "captions": {"source": "scenes", "count": 8},
                "constraints": ["drift <= 2"],
                **UNTIMED,
            },
            ("constraints[0]: drift needs more images",),
        ),
        (
            {"objectives": ["speedup", "drift"]},
            ("objectives[1]:", "drift compares images with vanilla's", "against: vanilla"),
        ),
        (
            {"reference": {"source": "none"}, "objectives": ["speedup", "drift"]},
            ("objectives[1]:", "give a reference", "against: vanilla"),
        ),
        (
            {"objectives": ["speedup", {"metric": "fid", "against": "vanilla"}]},
            ("objectives[1].against:", "fid does not compare images with vanilla's"),
        ),
        (
            {"constraints": ["drift <= 1.1 * vanilla"]},
            ("constraints[0]:", "vanilla's drift is 0", "drift <= vanilla + X"),
        ),
        ({"racing": {"rungs": [24, 72]}}, ("racing.rungs[0]: fid", "24 captions", "at least 72")),
        ({"racing": {"rungs": [90]}}, ("racing.rungs[0]: 90", "multiples of 24")),
        (
            {
                "racing": {"rungs": [24], "stop": "dominated"},
                "objectives": ["speedup", "fid_debiased"],
            },
            ("racing.rungs[0]: fid_debiased", "24 captions", "at least 72"),
        ),
        (
            {"reference": {"source": "none"}},
            ("objectives[1]: fid is not available", "reference.source: none"),
        ),
        ({"reference": {"source": "scenes", "count": 64}}, ("reference: ", "more than 64")),
        ({"enqueue": [{"label": "vanilla", **CHAIN}]}, ("vanilla", "label")),
        (
            {
                "enqueue": [
                    {
                        "label": "wide",
                        **CHAIN,
                        "acceptance": {"neighbourhood": "additive", "k": 2000, "delta": 0.1},
                    }
                ]
            },
            ("enqueue.wide", "2000", "1024 codes"),
        ),
        (
            {
                "search": {"sampler": "replay", "options": {"pool": 20}},
                "sampling": {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 1.5},
            },
            ("space: replay", "sampling.temperature"),
        ),
        (
            {"space": CHAIN | {"tree": {"policy": "chain", "length": {"low": 2, "high": 200}}}},
            ("space", "200", "144"),
        ),
        (
            {
                "space": {
                    "drafter": "medusa",
                    "tree": {"policy": "chain", "length": {"low": 50, "high": 60}},
                }
            },
            ("space", "50 levels", "medusa drafter"),
        ),
    ],
)
def test_sections(sections: dict[str, Any], parts: Words) -> None:
    assert_contains(problem(**sections), parts)


@pytest.mark.parametrize(
    ("text", "count", "parts"),
    [
        (None, 1, ("mine.txt: no such file",)),
        (f"{GOOD}\n", 5, ("mine.txt: count is 5", "it has 1")),
        (f"{GOOD}\na cat\n{GOOD}\na dog\na cow\n", 5, ("mine.txt, line 2: ", "a cat", "2 more")),
    ],
)
def test_captions(text: str | None, count: int, parts: Words) -> None:
    if text is not None:
        Path("mine.txt").write_text(text)
    assert_contains(
        problem(captions={"source": "mine.txt", "count": count}), ("captions: ", *parts)
    )


def test_a_working_folder_whose_name_is_not_utf8(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers are given absolute paths, wherever the results are."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    monkeypatch.chdir(folder)
    with pytest.raises(ValueError, match=r"caf\\udce9': not UTF-8; rename it"):
        run_checks(SweepConfig.parse(SPACE, "tested.yaml"), "mock:///sweeps/tested")


LINES: dict[str, Any] = {  # values by the key that is refused
    "captions": {"source": "mine.txt"},
    "reference": {"source": "photos"},
    "timing": {"batch": 50, "images": 51},
    "objectives[1]": ["speedup", "fed"],
    "models.file": "mine",
    "enqueue": [{"label": "deep", **CHAIN, "tree": {"policy": "chain", "length": 200}}],
}


@pytest.mark.parametrize("key", LINES)
def test_every_refusal_names_the_line(key: str) -> None:
    """The line of the sweep's file, or that the value was an override."""
    section, _, index = key.removesuffix("]").partition("[")
    section, _, inner = section.partition(".")
    changed = {section: {inner: LINES[key]} if inner else LINES[key]}
    lines = yaml.safe_dump(yaml.safe_load(SPACE) | changed, sort_keys=False).splitlines()
    line = lines.index(f"{section}:") + 1 + (int(index) + 1 if index else len(inner) > 0)
    with pytest.raises(ConfigError, match=rf"^tested\.yaml:{line}: {re.escape(key)}"):
        assert_passes(**changed)
    with pytest.raises(ConfigError, match=rf"^--set: {re.escape(key)}"):
        assert_passes(changed)


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"captions.source": "mine.txt"}, "--set: captions: mine.txt: no such file"),
        ({"captions.source": "./mine.txt"}, "--set: captions: mine.txt: no such file"),
        ({"reference.source": "photos"}, "--set: reference: photos: no such folder"),
        ({"reference.count": 64}, "--set: reference: "),
        ({"timing.batch": 50}, "--set: timing: "),
        ({"seed": 2}, ""),
        ({"captions.count": 48}, ""),
    ],
)
def test_a_value_given_by_set_is_located_there(changes: dict[str, Any], location: str) -> None:
    """Though its section is the file's. An error about what is the file's has the file's line."""
    sections: dict[str, Any] = {"timing": {"batch": 1, "images": 51}}
    if not location:
        sections["reference"] = {"source": "theirs", "count": 66}
    message = problem(changes, **sections)
    assert message.startswith(location or "tested.yaml:6: reference: theirs: no such folder")


def write_photos(count: int) -> None:
    Path("photos").mkdir()
    for number in range(count):
        Image.new("RGB", (8, 8), (number, 0, 0)).save(f"photos/{number}.png")


def write_broken_photo() -> None:
    write_photos(80)
    broken_chunk_type(Path("photos/7.png"))


def write_reference() -> None:
    facts = {
        "kind": "reference",
        "identity": "inception@0",
        "source": "coco",
        "resize": "none",
        "count": 200,
    }
    write_shard(
        Storage("."),
        "theirs.parquet",
        pa.table({"features": float_lists(torch.randn(200, 64))}),
        facts,
    )


@pytest.mark.parametrize(
    ("prepare", "source", "parts"),
    [
        (lambda: None, "photos", ("photos: no such folder",)),
        (lambda: write_photos(64), "photos", ("fid", "64 of photos", "more than 64", "kid")),
        (
            write_broken_photo,
            "photos",
            ("photos/7.png: not a readable image", "correct or remove it"),
        ),
        (write_reference, "theirs.parquet", ("theirs.parquet", "inception@0", "scenes-features")),
    ],
)
def test_references(prepare: Callable[[], None], source: str, parts: Words) -> None:
    prepare()
    assert_contains(problem(reference={"source": source}), ("reference: ", *parts))


def test_few_real_images_serve_metrics_without_a_covariance() -> None:
    write_photos(40)
    few = {"source": "photos"}
    assert_passes(reference=few, objectives=["speedup", "kid"], metrics=["precision", "fid"])


def test_images_whose_features_are_stored_are_not_read_again() -> None:
    write_broken_photo()
    assert_contains(
        problem(reference={"source": "photos"}), ("photos/7.png: not a readable image",)
    )
    Storage("sweeps/tested").write(REFERENCE, b"the features")  # workers check them
    assert_passes(reference={"source": "photos"})
    Path("photos").rename("elsewhere")
    with pytest.raises(ValueError, match="photos: no such folder"):
        assert_passes(reference={"source": "photos"})


def copy_model(drop: str | None = None, cut: str | None = None) -> None:
    shutil.copytree(BUILTIN, "mine")
    if drop:
        Path("mine", drop).unlink()
    if cut:
        path = Path("mine", cut)
        path.write_bytes(path.read_bytes()[:-1000])


@pytest.mark.parametrize(
    ("prepare", "parts"),
    [
        (lambda: None, ("models.file: mine: no such file or folder",)),
        (
            lambda: copy_model(drop="target.safetensors"),
            ("models: ", "no such file", "target (", "target.safetensors"),
        ),
        (lambda: copy_model(cut="eagle.safetensors"), ("eagle.safetensors", "truncated")),
        (lambda: copy_model(cut="features.safetensors"), ("features.safetensors", "truncated")),
        (lambda: copy_model(drop="eagle.safetensors"), ("enqueue.exact chain", "'eagle' drafter")),
    ],
)
def test_weights(prepare: Callable[[], None], parts: Words) -> None:
    prepare()
    assert_contains(problem({"models.file": "mine"}), parts)


def test_a_score_that_cannot_read_the_captions() -> None:
    """A target of other words, which the CLIP of scenes cannot encode."""
    copy_model()
    path = Path("mine/target.safetensors")
    header, tensors = safetensors_metadata(path), dict(load_tensors(path))
    config = json.loads(header["config"]) | {
        "conditioner": {"kind": "words", "words": ["dog"], "length": 1}
    }
    values, nothing = (tensors[f"conditioner.{name}"] for name in ("values.weight", "nothing"))
    tensors |= {"conditioner.values.weight": values[:2]}
    tensors |= {f"conditioner.{name}": nothing[:1].clone() for name in ("nothing", "places")}
    save_file(tensors, path, metadata={**header, "config": json.dumps(config)})
    Path("dogs.txt").write_text("dog\n" * 3)
    sections = {
        "captions": {"source": "dogs.txt", "count": 3},
        "objectives": ["speedup", "clip_score"],
    }
    assert_contains(
        problem({"models.file": "mine"}, **sections),
        ("objectives[1]: clip_score", "captions of scenes"),
    )


def test_scorers_are_built_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    load, calls = Extractors.load, []

    def observed(*arguments: Any, **options: Any) -> Extractors:
        calls.append((is_shapes_only(), options["device"].type))
        return load(*arguments, **options)

    monkeypatch.setattr(Extractors, "load", observed)
    assert_passes(objectives=["step_compression", "clip_score"])
    assert calls == [(True, "meta")]


def test_files_on_a_ray_clients_cluster_are_not_checked_here() -> None:
    """They lie on the cluster; the unreachable address is the only problem."""
    text = SPACE.replace("source: scenes, count: 96", "source: /on/the/cluster.txt, count: 96")
    with pytest.raises(RuntimeError, match="no response"):
        run_checks(SweepConfig.parse(text, "tested.yaml"), address="ray://127.0.0.1:1")


ENTRY: dict[str, Any] = {
    "models": {"name": "classes"},
    "captions": {"source": "classes.txt", "count": 3},
    "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.0},
    **UNTIMED,
}


@pytest.fixture(scope="module")
def models_yaml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A models.yaml with the entries `classes` and `captions`, and their tiny checkpoints."""
    return write_models(tmp_path_factory.mktemp("models"))


def copy_checkpoints(models_yaml: Path) -> Path:
    """Copies them and the captions into the working folder."""
    shutil.copytree(models_yaml.parent, "mine")
    Path("classes.txt").write_text("0\n7\n999\n")
    return Path("mine/ckpt")


def replace_in_models_yaml(old: str, new: str) -> None:
    path = Path("mine/models.yaml")
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))


def truncate_second_shard(folder: Path) -> None:
    tensors = torch.load(folder / "c2i.pt")["model"]
    shards = {"one.safetensors": sorted(tensors)[:6], "two.safetensors": sorted(tensors)[6:]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    files = {name: file for file, names in shards.items() for name in names}
    (folder / "c.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "two.safetensors").write_bytes((folder / "two.safetensors").read_bytes()[:-9])
    replace_in_models_yaml("ckpt/c2i.pt", "ckpt/c.safetensors.index.json")


WITH_FILE = {"models.file": "mine/models.yaml"}


def test_a_sweep_of_an_entry_passes(models_yaml: Path) -> None:
    copy_checkpoints(models_yaml)
    assert_passes(WITH_FILE, **ENTRY)
    Path("words.txt").write_text("a red ball\na cat\nsmall\n")
    assert_passes(
        {**WITH_FILE, "models.name": "captions"},
        **{**ENTRY, "captions": {"source": "words.txt", "count": 3}},
    )


@pytest.mark.parametrize(
    ("damage", "changes", "parts"),
    [
        (lambda folder: None, {}, ("models.name: classes", "--models models.yaml")),
        (lambda folder: None, {"models.file": "none.yaml"}, ("none.yaml", "no such file")),
        (lambda folder: None, {**WITH_FILE, "models.name": "clases"}, ("'clases'", "'classes'")),
        (
            lambda folder: replace_in_models_yaml("image_size", "image_sise"),
            WITH_FILE,
            ("mine/models.yaml:4: classes.image_sise", "image_size"),
        ),
        (
            lambda folder: (folder / "c2i.pt").unlink(),
            WITH_FILE,
            ("mine/models.yaml:1: classes: ", "c2i.pt"),
        ),
        (truncate_second_shard, WITH_FILE, ("two.safetensors", "truncated")),
        (
            lambda folder: write_vq(folder / "vq.pt", dataclasses.replace(VQ, codebook_size=64)),
            WITH_FILE,
            ("vq.pt: this codec has 64 codes, the target needs 1024", "give `vq`"),
        ),
        (
            lambda folder: replace_in_models_yaml("ckpt/eagle-c2i", "ckpt/eagle-t2i"),
            WITH_FILE,
            ("eagle drafter", "another target"),
        ),
        (
            lambda folder: Path("classes.txt").write_text("0\n1000\n7\n"),
            WITH_FILE,
            ("captions: classes.txt, line 2: ", "'1000'"),
        ),
        (lambda folder: None, {**WITH_FILE, "space.tree.length.high": 20}, ("space", "9 tokens")),
    ],
)
def test_entries(
    damage: Callable[[Path], Any], changes: dict[str, Any], parts: Words, models_yaml: Path
) -> None:
    damage(copy_checkpoints(models_yaml))
    assert_contains(problem(changes, **ENTRY), parts)


def test_all_missing_files_are_listed(models_yaml: Path) -> None:
    folder = copy_checkpoints(models_yaml)
    with Path("mine/models.yaml").open("a") as file:
        file.write("  metrics: {inception: ckpt/inception.pth, aesthetic: ckpt/aesthetic.pth}\n")
    for name in ("t2i.pt", "eagle-t2i.safetensors"):
        (folder / name).unlink()
    message = problem(
        {**WITH_FILE, "models.name": "captions"}, **{**ENTRY, "metrics": ["aesthetic"]}
    )
    for part in (
        "models.yaml:9: captions: no such file",
        "transformer (",
        "drafters.eagle (",
        "metrics.aesthetic (",
    ):
        assert part in message


def test_workers_get_the_entry_with_absolute_paths(models_yaml: Path) -> None:
    copy_checkpoints(models_yaml)
    with Path("mine/models.yaml").open("a") as file:
        file.write("  metrics: {clip: ckpt/vq.pt}\n")
    text = yaml.safe_dump(yaml.safe_load(SPACE) | ENTRY, sort_keys=False)
    sweep = SweepConfig.parse(text, "tested.yaml", {**WITH_FILE, "models.name": "captions"})
    spec = WorkerSpec(**json.loads(json.dumps(worker_spec(sweep, Storage("sweeps/tested")))))
    assert spec.models is not None
    assert Entry.from_mapping(spec.models).files["transformer"] == str(
        Path("mine/ckpt/t2i.pt").absolute()
    )
    assert Entry.from_mapping(spec.models).metrics == {
        "clip": str(Path("mine/ckpt/vq.pt").absolute())
    }
    assert spec.what == "captions (mine/models.yaml:9)"
