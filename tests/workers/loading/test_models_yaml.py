"""models.yaml: entries read in words, targets loaded from tiny checkpoints in the official layout,
mistakes refused.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
import torch
import yaml
from safetensors.torch import save_file

from search_spaces.params import ConfigError
from tests.fakes.tiny_llamagen import PROMPT, Size, official, write_models, write_vq
from workers.loading.models_yaml import (
    Entry,
    load_entry,
    load_on_meta,
    published_entries,
    read_entry,
    read_models_yaml,
)
from workers.models.checkpoint_files import WeightsError, collect_notes, content_hash, shapes_only
from workers.models.families.catalogue import FAMILIES, Family
from workers.models.families.llamagen import SIZES, LlamaGen
from workers.models.families.llamagen_prompts import FlanT5XLShapes
from workers.models.families.lumina import Lumina
from workers.models.families.scenes import BUILTIN
from workers.models.target import Target
from workers.models.vq import VQConfig

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    write_models(folder)
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of the checkpoints and the models.yaml, to be spoilt."""
    return Path(shutil.copytree(made, tmp_path / "mine"))


def change(folder: Path, **keys: Any) -> Path:
    """models.yaml with keys of both entries replaced (None: removed)."""
    path = folder / "models.yaml"
    entries = yaml.safe_load(path.read_text())
    for entry in entries.values():
        entry.update(keys)
    path.write_text(yaml.safe_dump(entries, sort_keys=False))
    return path


def test_every_family_is_found() -> None:
    assert {"llamagen", "scenes"} <= set(FAMILIES.all())
    assert all(name == family.kind for name, family in FAMILIES.all().items())


def test_paths_are_relative_to_the_file(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(made.parent)
    entry = read_entry(f"{made.name}/models.yaml", "captions")
    assert entry.files == {
        "transformer": str(made / "ckpt/t2i.pt"),
        "vq": str(made / "ckpt/vq.pt"),
        "text": str(made / "ckpt/t5"),
        "drafters.eagle": str(made / "ckpt/eagle-t2i.safetensors"),
    }
    assert entry.where == f"{made.name}/models.yaml:9"
    again = Entry.from_mapping(json.loads(json.dumps(entry.to_mapping())))
    assert again == entry


def test_dtype_follows_the_device(made: Path) -> None:
    entry = read_entry(made / "models.yaml", "classes")
    assert entry.dtype_on(CPU) == torch.float32
    assert entry.dtype_on(torch.device("cuda")) == torch.bfloat16
    half = Entry.from_mapping(entry.to_mapping() | {"dtype": "float16"})
    assert half.dtype_on(CPU) == torch.float16


@pytest.mark.parametrize("name", ["classes", "captions"])
def test_an_entry_is_the_model_of_its_files(made: Path, name: str) -> None:
    """The same logits as when the official files are loaded by hand; its drafter beside it; every
    file's hash.
    """
    entry = read_entry(made / "models.yaml", name)
    models = load_entry(entry, CPU)
    kind, text = ("c2i", None) if name == "classes" else ("t2i", made / "ckpt/t5")
    keys = {"transformer": made / f"ckpt/{kind}.pt", "vq": made / "ckpt/vq.pt", "text": text}
    files = {key: str(path) for key, path in keys.items() if path is not None}
    by_hand = LlamaGen.from_mapping({**files, "image_size": 48, "heads": 2}).load(
        CPU, torch.float32
    )
    caption = "7" if kind == "c2i" else "a red ball"
    prompts = [target.encode([caption], guided=True) for target in (models.target, by_hand)]
    torch.testing.assert_close(prompts[0].embeds, prompts[1].embeds)
    order = torch.arange(models.target.prompt_len)
    outputs = [
        target.head(target.transformer(prompt.embeds, order))
        for target, prompt in zip((models.target, by_hand), prompts, strict=True)
    ]
    assert torch.equal(*outputs)
    assert outputs[0].std() > 0.1
    tokens = torch.arange(9)[None]
    assert torch.equal(models.target.decode(tokens), by_hand.decode(tokens))
    assert models.drafters["eagle"].kind == "eagle"
    assert models.hashes == entry.hashes
    assert models.hashes["transformer"] == content_hash(made / f"ckpt/{kind}.pt")


def test_drafters_have_the_targets_type(made: Path) -> None:
    entry = Entry.from_mapping(
        read_entry(made / "models.yaml", "classes").to_mapping() | {"dtype": "bfloat16"}
    )
    models = load_entry(entry, CPU)
    types = {parameter.dtype for parameter in models.drafters["eagle"].parameters()}
    assert types == {torch.bfloat16} == {models.target.head.weight.dtype}
    assert next(models.target.codec.parameters()).dtype == torch.float32  # type: ignore[union-attr]


def test_a_sketch_has_the_shapes_and_no_numbers(made: Path) -> None:
    for name in ("classes", "captions"):
        entry = read_entry(made / "models.yaml", name)
        sketch, models = load_on_meta(entry), load_entry(entry, CPU)
        shapes = {key: value.shape for key, value in sketch.target.state_dict().items()}
        assert shapes == {key: value.shape for key, value in models.target.state_dict().items()}
        assert all(value.is_meta for value in sketch.target.state_dict().values())
        assert all(value.is_meta for value in sketch.drafters["eagle"].state_dict().values())
        assert sketch.target.decode(torch.zeros(1, 9, dtype=torch.int64, device="meta")).shape == (
            1,
            3,
            48,
            48,
        )
    with pytest.raises(ValueError, match="caption 1 is empty"):
        sketch.target.encode(["a", ""], guided=False)
    assert sketch.target.encode(["a", "ball"], guided=True).embeds.shape == (4, PROMPT, 32)
    weigh = [int(cast("Any", part.target.conditioner).encoder_bytes) for part in (sketch, models)]
    assert weigh[0] == weigh[1] > 0


def test_the_scenes_family_brings_its_drafters(tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(f"own:\n  family: scenes\n  folder: {BUILTIN}\n  dtype: bfloat16\n")
    entry = read_entry(path)
    assert entry.folder == BUILTIN
    models = load_entry(entry, CPU)
    assert set(models.drafters) == {"eagle", "eagle3", "medusa", "independent", "vertical"}
    assert models.target.head.weight.dtype == torch.bfloat16
    assert {"target", "tokenizer", "drafters.eagle"} <= set(models.hashes)


def test_a_plugins_family_may_bring_drafters(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Painting(Family):
        kind: ClassVar[str] = "painting"

        def load(self, device: torch.device, dtype: torch.dtype) -> Target:
            raise NotImplementedError

        def drafter_file(self, kind: str) -> Path:
            return tmp_path / f"my_{kind}.safetensors"

    monkeypatch.setitem(FAMILIES._entries, Painting.kind, Painting)
    (tmp_path / "my_eagle.safetensors").touch()
    (tmp_path / "models.yaml").write_text("own: {family: painting}\n")
    assert read_entry(tmp_path / "models.yaml").drafters == {
        "eagle": str(tmp_path / "my_eagle.safetensors")
    }


#: models.yaml, and what is said of it: line, key and mend.
FILES: dict[str, tuple[str, tuple[str, ...]]] = {
    "empty": ("", ("models.yaml:1", "at least one entry")),
    "no entries": ("{}", ("models.yaml:1", "no entries")),
    "a list": ("- a\n", ("models.yaml:1", "must be a mapping")),
    "broken": ("a: {b\n", ("models.yaml:2", "not valid YAML")),
    "no family": ("a:\n  vq: x\n", ("models.yaml:1: a.family: missing", "llamagen")),
    "unknown family": (
        "a:\n  family: lamagen\n",
        ("models.yaml:2: a.family", "did you mean 'llamagen'?"),
    ),
    "unknown key": (
        "a:\n  family: scenes\n  foldr: x\n",
        ("models.yaml:3: a.foldr: unknown key", "did you mean 'folder'?"),
    ),
    "missing key": (
        "a:\n  family: llamagen\n  vq: x\n",
        ("models.yaml:1: a.transformer: missing",),
    ),
    "another family's key": (
        "a:\n  family: scenes\n  folder: x\n  vq: y\n",
        ("models.yaml:4: a.vq: unknown key",),
    ),
    "dtype": (
        "a:\n  family: scenes\n  folder: x\n  dtype: fp8\n",
        ("models.yaml:4: a.dtype", "bfloat16"),
    ),
    "size": (
        "a:\n  family: llamagen\n  transformer: x\n  vq: y\n  image_size: 256\n  size: XM\n",
        ("models.yaml:6: a.size", "must be one of", "XL"),
    ),
    "size twice": (
        (
            "a:\n  family: llamagen\n  transformer: x\n  vq: y\n  image_size: 256\n  size: XL\n  "
            "heads: 2\n"
        ),
        ("models.yaml:7: a.heads", "remove one"),
    ),
    "no number": (
        "a:\n  family: llamagen\n  transformer: x\n  vq: y\n  image_size: big\n",
        ("models.yaml:5: a.image_size",),
    ),
    "drafter of no kind": (
        "a:\n  family: scenes\n  folder: x\n  drafters: {eagel: y}\n",
        ("models.yaml:4: a.drafters.eagel", "did you mean 'eagle'?"),
    ),
    "drafter that is no path": (
        "a:\n  family: scenes\n  folder: x\n  drafters: {eagle: 3}\n",
        ("models.yaml:4: a.drafters.eagle", "must be the path"),
    ),
    "metric of no kind": (
        "a:\n  family: scenes\n  folder: x\n  metrics: {incepton: y}\n",
        ("a.metrics.incepton", "'inception'"),
    ),
    "key twice": (
        "a:\n  family: scenes\n  folder: x\n  folder: y\n",
        ("models.yaml:4: a.folder: given twice",),
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_mistakes_name_the_line_and_the_mend(name: str, tmp_path: Path) -> None:
    text, parts = FILES[name]
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        read_entry(path)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_an_invalid_entry_does_not_block_the_others(made: Path, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    text = (made / "models.yaml").read_text()
    path.write_text(
        "bad:\n  family: lamagen\nnothing:\n" + text + "other: {family: scenes, floder: x}\n"
    )
    found = read_models_yaml(path)
    assert list(found) == ["bad", "nothing", "classes", "captions", "other"]
    assert [isinstance(entry, ConfigError) for entry in found.values()] == [
        True,
        True,
        False,
        False,
        True,
    ]
    assert str(found["bad"]).startswith(f"{path}:2: bad.family: ")
    assert str(found["other"]).startswith(f"{path}:{len(path.read_text().splitlines())}: other.")
    assert read_entry(path, "classes").name == "classes"
    with pytest.raises(ConfigError, match="did you mean 'llamagen'"):
        read_entry(path, "bad")
    with pytest.raises(ConfigError, match="has several entries"):
        read_entry(path)


#: Keys of an entry of LlamaGen, and what its note names; empty: none.
NAMES: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    (
        {"transformer": "t2i_XL_stage2_512.pt", "image_size": 256},
        ("t2i_XL_stage2_512.pt", "512", "image_size 256"),
    ),
    (
        {"transformer": "c2i_B_384.pt", "image_size": 256, "vq": "vq_ds16_c2i.pt"},
        ("c2i_B_384.pt", "384"),
    ),
    (
        {"transformer": "t2i_XL_stage1_256.pt", "vq": "vq_ds8_t2i.pt"},
        ("vq_ds8_t2i.pt", "8 pixels", "vq_ds16_t2i.pt"),
    ),
    (
        {"transformer": "t2i_XL_stage1_256.pt", "vq": "vq_ds16_c2i.pt"},
        ("vq_ds16_c2i.pt", "give vq_ds16_t2i.pt"),
    ),
    ({"transformer": "t2i_XL_stage1_256.pt", "vq": "vq_ds16_t2i.pt"}, ()),
    ({"transformer": "mine_512.pt", "vq": "vq_ds16_t2i.pt"}, ()),
    ({"transformer": "folder/t2i_XXL_stage2_512-finetuned.safetensors", "image_size": 512}, ()),
]


@pytest.mark.parametrize(("keys", "parts"), NAMES)
def test_names_that_contradict_the_entry_are_noted(
    keys: dict[str, Any], parts: tuple[str, ...]
) -> None:
    family = LlamaGen.from_mapping({"vq": "vq.pt", "image_size": 256, **keys})
    assert len(family.name_notes) == (1 if parts else 0)
    for part in parts:
        assert part in family.name_notes[0]


def test_published_entries_contradict_no_name() -> None:
    assert [
        text for entry in published_entries().values() for text in entry.family.name_notes
    ] == []
    (note,) = Lumina.from_mapping({"transformer": "x/Lumina-mGPT-7B-512"}).name_notes
    assert "512" in note
    assert "width 768" in note
    wide = Lumina.from_mapping(
        {"transformer": "x/Lumina-mGPT-7B-768", "width": 1024, "height": 576}
    )
    assert wide.name_notes == []


def test_a_name_is_noted_when_the_models_load(folder: Path) -> None:
    path = change(folder)
    (folder / "ckpt/c2i.pt").rename(folder / "ckpt/c2i_B_256.pt")
    path.write_text(path.read_text().replace("ckpt/c2i.pt", "ckpt/c2i_B_256.pt"))
    for load in (load_on_meta, partial(load_entry, device=CPU)):
        with collect_notes() as notes:
            load(read_entry(path, "classes"))
        (note,) = notes
        assert note.startswith(
            f"{path}:1: classes: by its name, c2i_B_256.pt makes images of 256 pixels"
        )


@pytest.mark.parametrize("name", ["classes", "captions"])
def test_endings_in_upper_case_are_read(folder: Path, name: str) -> None:
    expected = load_entry(read_entry(folder / "models.yaml", name), CPU).target.state_dict()
    path = folder / "models.yaml"
    text = path.read_text().replace(".pt", ".PT").replace(".safetensors", ".SAFETENSORS")
    path.write_text(text)
    for file in [*folder.rglob("*.pt"), *folder.rglob("*.safetensors")]:
        file.rename(file.with_suffix(file.suffix.upper()))
    entry = read_entry(path, name)
    load_on_meta(entry)
    found = load_entry(entry, CPU).target.state_dict()
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_an_entry_must_be_named(made: Path) -> None:
    with pytest.raises(ConfigError, match=r"models\.yaml: has several entries.*classes, captions"):
        read_entry(made / "models.yaml")
    with pytest.raises(ConfigError, match=r"no entry 'clases'.*did you mean 'classes'"):
        read_entry(made / "models.yaml", "clases")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-500])


def shard(folder: Path, *, lose: str = "", truncate: str = "") -> None:
    """The transformer as two safetensors with an index, and what is wrong with them."""
    tensors = official("c2i", Size())
    names = sorted(tensors)
    map_: dict[str, str] = {}
    for number, part in enumerate((names[:5], names[5:]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / "ckpt" / file)
        map_ |= dict.fromkeys(part, file)
    if lose == "entry":
        del map_[names[0]]
    if lose == "shard":
        (folder / "ckpt/model-00002-of-00002.safetensors").unlink()
    (folder / "ckpt/model.safetensors.index.json").write_text(json.dumps({"weight_map": map_}))
    if truncate:
        cut(folder / "ckpt" / truncate)
    change(folder, transformer="ckpt/model.safetensors.index.json")


#: How a folder of good files is spoilt, and what is said. All but the last are seen without reading
#: the numbers.
FAULTS: dict[str, tuple[Callable[[Path], Any], tuple[str, ...]]] = {
    "no file": (
        lambda f: (f / "ckpt/c2i.pt").unlink(),
        ("no such file", "transformer (", "c2i.pt"),
    ),
    "no files": (
        lambda f: (f / "ckpt").rename(f / "elsewhere"),
        ("transformer (", "c2i.pt", "drafters.eagle (", "eagle-c2i.safetensors"),
    ),
    "the codec's file": (
        lambda f: change(f, transformer="ckpt/vq.pt"),
        ("vq.pt: not a LlamaGen", "a VQ tokenizer"),
    ),
    "a truncated pickle": (lambda f: cut(f / "ckpt/c2i.pt"), ("c2i.pt", "truncated")),
    "a truncated shard": (
        lambda f: shard(f, truncate="model-00002-of-00002.safetensors"),
        ("model-00002-of-00002", "truncated"),
    ),
    "a missing shard": (
        lambda f: shard(f, lose="shard"),
        ("1 of 2 shards missing", "model-00002"),
    ),
    "a missing index entry": (
        lambda f: shard(f, lose="entry"),
        ("index.json: lacks cls_embedding.embedding_table.weight", "the shards hold"),
    ),
    "another family": (
        lambda f: torch.save(
            {"model.layers.0.self_attn.q_proj.weight": torch.ones(2)}, f / "ckpt/c2i.pt"
        ),
        ("c2i.pt: not a LlamaGen transformer",),
    ),
    "another codebook": (
        lambda f: write_vq(
            f / "ckpt/vq.pt",
            VQConfig(codebook_size=50, channels=32, z_channels=32, multipliers=(1, 1, 1, 1, 1)),
        ),
        ("vq.pt: this codec has 50 codes, the target needs 1024", "give `vq`"),
    ),
    "heads that do not divide": (lambda f: change(f, heads=5), ("width 32", "heads 5")),
    "an unpublished size": (lambda f: change(f, heads=None), ("not a published LlamaGen size",)),
    "another size": (lambda f: change(f, heads=None, size="XL"), ("are not size XL",)),
    "an odd image": (lambda f: change(f, image_size=50), ("image_size 50", "multiple of 16")),
    "no drafter": (
        lambda f: (f / "ckpt/eagle-c2i.safetensors").unlink(),
        ("no such file", "drafters.eagle (", "eagle-c2i.safe"),
    ),
    "a drafter of another target": (
        lambda f: shutil.copy(f / "ckpt/eagle-t2i.safetensors", f / "ckpt/eagle-c2i.safetensors"),
        ("prompt_len is 120", "the target's 1"),
    ),
    "a drafter that is a target": (
        lambda f: shutil.copy(BUILTIN / "target.safetensors", f / "ckpt/eagle-c2i.safetensors"),
        ("eagle-c2i",),
    ),
    "class names that are no text": (
        lambda f: (
            (f / "names.txt").write_bytes(b"\xff\xfe\x00"),
            change(f, class_names="names.txt"),
        ),
        ("names.txt, line 1: not UTF-8 text",),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_broken_checkpoints_are_refused_by_their_headers(name: str, folder: Path) -> None:
    spoil, parts = FAULTS[name]
    spoil(folder)
    entry = read_entry(folder / "models.yaml", "classes")
    for look in (partial(load_on_meta, entry), partial(load_entry, entry, CPU)):
        with pytest.raises(WeightsError) as error:
            look()
        for part in ("models.yaml:1: classes: ", *parts):
            assert part in str(error.value)


def test_a_broken_text_encoder_is_refused_by_its_header(folder: Path) -> None:
    entry, t5 = read_entry(folder / "models.yaml", "captions"), folder / "ckpt/t5"
    cut(t5 / "model.safetensors")
    with pytest.raises(WeightsError, match=r"t5.*truncated"):
        load_on_meta(entry)
    config = json.loads((t5 / "config.json").read_text())
    shutil.copy(folder.parent / "mine/ckpt/eagle-t2i.safetensors", t5 / "model.safetensors")
    with pytest.raises(WeightsError, match="t5: the checkpoint lacks"):
        load_on_meta(entry)
    (t5 / "model.safetensors").unlink()
    with pytest.raises(WeightsError, match="t5: a checkpoint folder needs one"):
        load_on_meta(entry)
    (t5 / "config.json").write_text(json.dumps(config | {"d_model": 64}))
    (t5 / "tokenizer.json").unlink()
    with pytest.raises(WeightsError, match="no tokenizer that can be read"):
        load_on_meta(entry)


def test_only_loading_sees_numbers(folder: Path) -> None:
    state = official("c2i", Size())
    state["norm.weight"][3] = torch.nan
    torch.save(state, folder / "ckpt/c2i.pt")
    entry = read_entry(folder / "models.yaml", "classes")
    load_on_meta(entry)
    with pytest.raises(WeightsError, match=r"norm\.weight holds NaN"):
        load_entry(entry, CPU)


def test_shards_and_folders_are_hashed_whole(folder: Path) -> None:
    shard(folder)
    index, t5 = folder / "ckpt/model.safetensors.index.json", folder / "ckpt/t5"
    before = content_hash(index), content_hash(t5)
    assert before == (content_hash(index), content_hash(t5))
    (t5 / ".cache").mkdir()
    (t5 / ".cache/when").write_text("now")
    assert content_hash(t5) == before[1], "hidden files are nobody's weights"
    last = folder / "ckpt/model-00002-of-00002.safetensors"
    last.write_bytes(last.read_bytes()[:-1] + b"x")
    (t5 / "tokenizer.json").write_text("{}")
    assert content_hash(index) != before[0]
    assert content_hash(t5) != before[1]
    assert load_entry(read_entry(folder / "models.yaml", "classes"), CPU).hashes[
        "transformer"
    ] == content_hash(index)


def test_shapes_only_ends(made: Path) -> None:
    from workers.models.checkpoint_files import load_tensors

    with shapes_only():
        assert all(value.is_meta for value in load_tensors(made / "ckpt/c2i.pt").values())
        assert all(
            value.is_meta for value in load_tensors(made / "ckpt/eagle-c2i.safetensors").values()
        )
    assert not any(value.is_meta for value in load_tensors(made / "ckpt/c2i.pt").values())


@pytest.mark.parametrize(
    ("name", "millions", "tokens"),
    [("llamagen-b-c2i", 111, 576), ("llamagen-xl-stage1", 775, 256), ("llamagen-xl-stage2", 775, 1024),
     ("llamagen-3b-c2i", 3100, 576)],
)  # fmt: skip
def test_published_sizes_need_no_files(name: str, millions: int, tokens: int) -> None:
    """Numbers as the paper's table rounds them (its 343M and 1.4B count the same way)."""
    entry = published_entries()[name]
    target = entry.family.build_on_meta(torch.bfloat16)
    numbers = sum(
        parameter.numel()
        for part in (target.transformer, target.conditioner)
        for parameter in part.parameters()
    )
    assert numbers == pytest.approx(millions * 1e6, rel=0.01)
    assert target.grid.tokens == tokens
    assert all(parameter.is_meta for parameter in target.parameters())
    assert target.head.weight.dtype == torch.bfloat16
    assert SIZES[entry.family.size].dim == target.transformer.config.dim  # type: ignore[attr-defined]


def test_flan_t5_xl_weighs_what_transformers_says() -> None:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(
        vocab_size=32128,
        d_model=2048,
        d_kv=64,
        d_ff=5120,
        num_layers=24,
        num_heads=32,
        feed_forward_proj="gated-gelu",
    )
    with torch.device("meta"):
        numbers = sum(parameter.numel() for parameter in T5EncoderModel(config).parameters())
    assert FlanT5XLShapes(torch.bfloat16).bytes == 2 * numbers
