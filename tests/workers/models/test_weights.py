"""Weights: all or nothing by name table; every broken file says what it is and how to mend it."""

from __future__ import annotations

import argparse
import json
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors, shapes_only
from workers.models.own_files import read_config, save
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.weights import KeyMapping, interleave_rotary, load_weights, skip_init

TENSORS = {
    "a.weight": torch.arange(12.0).view(4, 3),
    "a.bias": torch.ones(4),
    "b.weight": torch.ones(2, 4),
}
SAME = [KeyMapping("{...}", "{...}")]


class Toy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2, bias=False)


class RunsCode:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ("echo this must never run",)


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(
        torch.equal(left[name], right[name]) for name in left
    )


# files


def write_shards(folder: Path) -> None:
    folder.mkdir()
    shards = {"m-1.safetensors": ["a.weight"], "m-2.safetensors": ["a.bias", "b.weight"]}
    for file, names in shards.items():
        save_file({name: TENSORS[name] for name in names}, folder / file)
    weight_map = {name: file for file, names in shards.items() for name in names}
    (folder / "m.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )


@pytest.mark.parametrize("wrapper", [None, "model", "module", "state_dict"])
@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_files_in_every_wrapping(tmp_path: Path, wrapper: str | None, zipped: bool) -> None:
    content = (
        {wrapper: TENSORS, "steps": 7, "args": argparse.Namespace(lr=1e-4)} if wrapper else TENSORS
    )
    torch.save(content, tmp_path / "x.pt", _use_new_zipfile_serialization=zipped)
    assert same(dict(load_tensors(tmp_path / "x.pt")), TENSORS)


def test_safetensors_file_folder_and_shards(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    save_file(TENSORS, tmp_path / "one" / "x.safetensors")
    write_shards(tmp_path / "many")
    index = tmp_path / "many" / "m.safetensors.index.json"
    for path in (tmp_path / "one" / "x.safetensors", tmp_path / "one", tmp_path / "many", index):
        assert same(dict(load_tensors(path)), TENSORS)


def broken(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, write: Callable[[Path], object], keep: Callable[[int], int]) -> Path:
    write(path)
    content = path.read_bytes()
    return broken(path, content[: keep(len(content))])


def write_safetensors(path: Path) -> None:
    save_file(TENSORS, path)


def write_program(path: Path) -> None:
    torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2)).save(str(path))  # type: ignore[no-untyped-call]


def written(path: Path, write: Callable[[Path], None]) -> Path:
    write(path)
    return path


def write_pt(path: Path) -> None:
    torch.save({"model": TENSORS}, path)


BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda d: d / "x.safetensors", "no such file"),
    "empty": (lambda d: broken(d / "x.safetensors", b""), "is empty"),
    "empty pt": (lambda d: broken(d / "x.pt", b""), "is empty"),
    "truncated data": (
        lambda d: cut(d / "x.safetensors", write_safetensors, lambda n: n - 8),
        "truncated.*not fully",
    ),
    "truncated header": (
        lambda d: cut(d / "x.safetensors", write_safetensors, lambda _: 40),
        "truncated.*header",
    ),
    "five bytes": (
        lambda d: cut(d / "x.safetensors", write_safetensors, lambda _: 5),
        "truncated.*header",
    ),
    "text": (
        lambda d: broken(d / "x.safetensors", b"hello, I am a text file\n" * 9),
        "not a safetensors file",
    ),
    "git-lfs": (
        lambda d: broken(d / "x.pt", b"version https://git-lfs.github.com/spec/v1\noid"),
        "git lfs pull",
    ),
    "web page": (lambda d: broken(d / "x.pt", b"<!doctype html><html>404</html>"), "web page"),
    "bad header": (
        lambda d: broken(d / "x.safetensors", (4).to_bytes(8, "little") + b'{"a"   '),
        "damaged.*header",
    ),
    "truncated pt": (lambda d: cut(d / "x.pt", write_pt, lambda n: n // 2), "truncated"),
    "pt without its end": (lambda d: cut(d / "x.pt", write_pt, lambda n: n - 60), "truncated"),
    "a program": (
        lambda d: written(d / "x.pt", write_program),
        "a TorchScript archive, which is a program",
    ),
    "text pt": (lambda d: broken(d / "x.pt", b"hello\n"), "not a readable PyTorch"),
    "other ending": (lambda d: broken(d / "x.gguf", b"GGUF"), r"'\.gguf'.*convert"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit")
@pytest.mark.parametrize("case", BROKEN)
def test_broken_files_are_told_by_what_they_are(tmp_path: Path, case: str) -> None:
    make, words = BROKEN[case]
    path = make(tmp_path)
    with pytest.raises(WeightsError, match=words) as caught:
        load_tensors(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pickle_with_code_is_refused_and_not_run(
    tmp_path: Path, wrapped: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.pt"
    if wrapped:
        torch.save({"model": RunsCode()}, path)
    else:
        path.write_bytes(pickle.dumps(RunsCode(), protocol=2))
    with pytest.raises(WeightsError, match=r"would run code \(\w+\.system\).*refused") as caught:
        load_tensors(path)
    assert caught.value.__cause__ is not None
    assert "never run" not in capfd.readouterr().out


def test_what_holds_no_tensors_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save([torch.ones(2)], path)
    with pytest.raises(WeightsError, match="contains a list, not named tensors"):
        load_tensors(path)
    torch.save({"optimizer": {"lr": 1}, "a": torch.ones(2)}, path)
    with pytest.raises(WeightsError, match="optimizer: not a tensor"):
        load_tensors(path)


def test_broken_shards(tmp_path: Path) -> None:
    write_shards(tmp_path / "m")
    index = tmp_path / "m" / "m.safetensors.index.json"
    good = index.read_text()
    index.write_text(good.replace('"m-2.safetensors"', '"../m-2.safetensors"'))
    with pytest.raises(WeightsError, match="in the folder of the index"):
        load_tensors(tmp_path / "m")
    index.write_text(good.replace('"a.bias"', '"a.bias2"'))
    with pytest.raises(WeightsError, match=r"lack a\.bias2"):
        load_tensors(tmp_path / "m")
    index.write_text("{}")
    with pytest.raises(WeightsError, match="not an index"):
        load_tensors(tmp_path / "m")
    index.write_text(good)
    (tmp_path / "m" / "m-2.safetensors").unlink()
    with pytest.raises(WeightsError, match=r"1 of 2 shards missing: m-2"):
        load_tensors(tmp_path / "m")
    index.unlink()
    (tmp_path / "m" / "m-3.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match="found"):
        load_tensors(tmp_path / "m")


# tables


def test_rows_rename_merge_transform_and_ignore() -> None:
    table = [
        KeyMapping(("{...}.up", "{...}.down"), "{...}.weight"),
        KeyMapping("{layer}.flat", "{layer}.weight", lambda parts: parts[0].view(2, 4)),
        KeyMapping("a.shift", "a.bias"),
        KeyMapping("counter", None),
    ]
    source = {
        "a.down": torch.full((2, 3), 2.0),
        "a.up": torch.full((2, 3), 1.0),
        "a.shift": torch.zeros(4),
    }
    toy = skip_init(Toy)
    load_weights(
        toy, {**source, "b.flat": torch.arange(8.0), "counter": torch.ones(9)}, table, where="x.pt"
    )
    assert toy.a.weight[:, 0].tolist() == [1, 1, 2, 2]  # in the order of the row, not of the file
    assert toy.b.weight[1].tolist() == [4, 5, 6, 7]
    assert not any(value.is_meta for value in toy.state_dict().values())


def test_the_first_row_that_matches_counts_and_dots_are_literal() -> None:
    toy = skip_init(Toy)
    table = [KeyMapping("a{x}bias", "nowhere"), KeyMapping("a.bias", "a.bias"), *SAME]
    # {x} matches no dot, so the first row does not apply
    load_weights(toy, TENSORS, table, where="x.pt")
    assert toy.a.bias.tolist() == [1, 1, 1, 1]


def test_dtypes() -> None:
    half = {name: value.half() for name, value in TENSORS.items()}
    toy = Toy()
    load_weights(toy, half, SAME, where="x")
    assert toy.a.weight.dtype == torch.float32  # what exists keeps its own
    new = skip_init(Toy)
    load_weights(new, TENSORS, SAME, where="x", dtype=torch.bfloat16)
    assert {value.dtype for value in new.state_dict().values()} == {torch.bfloat16}
    assert isinstance(new.a.weight, nn.Parameter)


@pytest.mark.parametrize(
    ("value", "kind", "fix"),
    [
        (torch.tensor([1e5]), torch.float16, "use dtype bfloat16 or float32"),
        (
            torch.tensor([1e300], dtype=torch.float64),
            torch.float32,
            "give weights within its range",
        ),
        (
            torch.tensor([1e300], dtype=torch.float64),
            torch.bfloat16,
            "give weights within its range",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:.*float64")
def test_values_that_overflow_are_refused(value: Tensor, kind: torch.dtype, fix: str) -> None:
    module = nn.ParameterDict({"w": torch.zeros(1)}).to("meta")
    with pytest.raises(
        WeightsError, match=f"x: w overflows in {str(kind).removeprefix('torch.')}; {fix}"
    ):
        load_weights(module, {"w": value}, [KeyMapping("w", "w")], where="x", dtype=kind)


FAULTS: dict[str, tuple[dict[str, Tensor | None], str]] = {
    "missing": ({"b.weight": None}, r"x\.pt: missing weights \(1\): b\.weight"),
    "unknown": ({"c.weight": torch.ones(1)}, r"tensors unknown to this model \(1\): c\.weight"),
    "both": (
        {"a.bias": None, "a.b": torch.ones(1)},
        r"missing.*: a\.bias; tensors unknown.*: a\.b",
    ),
    "shape": (
        {"b.weight": torch.ones(3, 4)},
        r"b\.weight has shape \[3, 4\], b\.weight needs \[2, 4\].*another size",
    ),
    "nan": ({"a.bias": torch.tensor([0, 1, torch.nan, 2])}, r"a\.bias holds NaN"),
    "family": (
        {"a.bias": None, "encoder.conv_blocks.0.x": torch.ones(1)},
        r"file is a VQ tokenizer.*\. Give a file",
    ),
    "many": ({f"z.{i}": torch.ones(1) for i in range(9)}, r"\(9\).* and 5 more"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_checkpoint_that_does_not_fit_is_refused_in_words(fault: str) -> None:
    change, words = FAULTS[fault]
    changed: dict[str, Tensor | None] = {**TENSORS, **change}
    tensors = {name: value for name, value in changed.items() if value is not None}
    with pytest.raises(WeightsError, match=words):
        load_weights(skip_init(Toy), tensors, SAME, where="x.pt")


def test_half_a_merge_and_two_claims_are_refused() -> None:
    table = [KeyMapping(("{...}.up", "{...}.down"), "{...}.weight"), *SAME]
    tensors = {**TENSORS, "a.up": TENSORS["a.weight"]}
    del tensors["a.weight"]
    with pytest.raises(WeightsError, match=r"missing.*: a\.down"):
        load_weights(skip_init(Toy), tensors, table, where="x")
    both = [KeyMapping("other", "a.bias"), *SAME]
    with pytest.raises(WeightsError, match=r"unknown to this model.*a\.bias"):
        load_weights(skip_init(Toy), {"other": torch.ones(4), **TENSORS}, both, where="x")


def test_forgetting_to_load_is_loud() -> None:
    toy = skip_init(Toy)
    assert toy.a.weight.is_meta
    with pytest.raises((RuntimeError, NotImplementedError)):
        toy.a(torch.ones(1, 3)).sum().item()


def test_unfilled_keeps_computed_buffers() -> None:
    config = TransformerConfig(
        dim=16, n_layers=1, n_heads=2, ffn_dim=24, vocab_size=5, rows=2, cols=2
    )
    model = skip_init(lambda: Transformer(config))
    assert torch.equal(model.rotations, Transformer(config).rotations)
    assert model.layers[0].feed_forward.w2.weight.is_meta  # type: ignore[union-attr]


# the one transformer as LLaMA


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_the_transformer_is_llama_after_interleaving(kv_heads: int) -> None:
    torch.manual_seed(0)
    heads, channels, layers = 4, 8, 2
    reference = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=37,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            rms_norm_eps=1e-5,
            max_position_embeddings=64,
            tie_word_embeddings=False,
        )
    )
    nn.Module.eval(reference)
    for name, value in reference.named_parameters():
        if "norm" in name:
            nn.init.uniform_(value, 0.5, 1.5)
        else:
            nn.init.normal_(value, std=0.3)

    def wqkv(parts: Sequence[Tensor]) -> Tensor:
        q, k, v = parts
        return torch.cat([interleave_rotary(q, channels), interleave_rotary(k, channels), v])

    attention, mlp = "model.layers.{l}.self_attn", "model.layers.{l}.mlp"
    table = [
        KeyMapping("model.embed_tokens.weight", "embed.weight"),
        KeyMapping("lm_head.weight", "head.weight"),
        KeyMapping("model.norm.weight", "norm.weight"),
        KeyMapping(
            tuple(f"{attention}.{p}_proj.weight" for p in "qkv"),
            "layers.{l}.attention.wqkv.weight",
            wqkv,
        ),
        KeyMapping(f"{attention}.o_proj.weight", "layers.{l}.attention.wo.weight"),
        KeyMapping(
            (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
            "layers.{l}.feed_forward.w13.weight",
        ),
        KeyMapping(f"{mlp}.down_proj.weight", "layers.{l}.feed_forward.w2.weight"),
        KeyMapping("model.layers.{l}.input_layernorm.weight", "layers.{l}.attention_norm.weight"),
        KeyMapping(
            "model.layers.{l}.post_attention_layernorm.weight", "layers.{l}.ffn_norm.weight"
        ),
    ]
    config = TransformerConfig(
        dim=32,
        n_layers=layers,
        n_heads=heads,
        n_kv_heads=kv_heads,
        ffn_dim=48,
        vocab_size=37,
        rope="line",
        prompt_len=1,
        rows=4,
        cols=4,
    )
    ours = skip_init(lambda: Transformer(config))
    load_weights(ours, reference.state_dict(), table, where="llama")
    assert ours.embed is not None
    assert ours.head is not None
    tokens = torch.randint(37, (3, 13))
    with torch.no_grad():
        logits = ours.head(ours(ours.embed(tokens), torch.arange(13).expand(3, -1)))
        torch.testing.assert_close(logits, reference(tokens).logits, atol=1e-4, rtol=1e-4)
        # and the permutation is what makes it so
        plain = skip_init(lambda: Transformer(config))
        load_weights(
            plain,
            reference.state_dict(),
            [row._replace(merge=None) for row in table],
            where="llama",
        )
        assert plain.embed is not None
        assert plain.head is not None
        wrong = plain.head(plain(plain.embed(tokens), torch.arange(13).expand(3, -1)))
    assert (wrong - reference(tokens).logits).abs().max() > 1e-2


# our own files


def test_save_and_read_back(tmp_path: Path) -> None:
    toy, path = Toy(), tmp_path / "toy.safetensors"
    save(path, toy, {"dim": 3, "what": "toy"})
    assert read_config(path) == {"dim": 3, "what": "toy"}
    assert {value.dtype for value in load_tensors(path).values()} == {torch.float16}
    assert [file.name for file in tmp_path.iterdir()] == ["toy.safetensors"]
    back = skip_init(Toy)
    load_weights(back, load_tensors(path), SAME, where=path)
    torch.testing.assert_close(back.state_dict(), toy.state_dict(), atol=1e-3, rtol=1e-3)
    save(
        path,
        {"n": torch.arange(3), "tied": toy.a.weight, "twice": toy.a.weight},
        {},
        dtype=torch.float32,
    )
    kept = load_tensors(path)
    assert kept["n"].dtype == torch.int64
    assert torch.equal(kept["tied"], kept["twice"])


def test_what_cannot_be_kept_is_not_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    for value in (70000.0, torch.nan):
        with pytest.raises(WeightsError, match="w is not finite"):
            save(path, {"w": torch.tensor([value])}, {})
    assert not list(tmp_path.iterdir())


def test_config_errors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file(TENSORS, path)
    with pytest.raises(WeightsError, match="no config in its header"):
        read_config(path)
    save_file(TENSORS, path, metadata={"config": "{not json"})
    with pytest.raises(WeightsError, match="not JSON"):
        read_config(path)
    with pytest.raises(WeightsError, match="no such file"):
        read_config(tmp_path / "none.safetensors")


def test_content_hash(tmp_path: Path) -> None:
    one, two = tmp_path / "d" / "one", tmp_path / "two"
    one.parent.mkdir()
    one.write_bytes(b"abc")
    two.write_bytes(b"abc")
    assert content_hash(one) == content_hash(two) == "ba7816bf8f01cfea"
    folder = content_hash(one.parent)
    two.write_bytes(b"abcd")
    assert content_hash(two) != content_hash(one)
    one.rename(one.with_name("other"))
    assert content_hash(one.parent) != folder
    with pytest.raises(WeightsError, match="no such file"):
        content_hash(tmp_path / "none")
    (one.parent / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    with pytest.raises(ValueError, match=r"caf\\udce9\.txt': not UTF-8; rename it"):
        content_hash(one.parent)


def test_a_folder_is_hashed_with_what_its_links_lead_to(tmp_path: Path) -> None:
    folder, shared = tmp_path / "model", tmp_path / "shared"
    for path in (folder, shared):
        path.mkdir()
    (folder / "config.json").write_text("{}")
    (shared / "tokenizer.json").write_text("1")
    (folder / "text").symlink_to(shared)
    before = content_hash(folder)
    (shared / "tokenizer.json").write_text("22")
    after = content_hash(folder)
    assert after != before, "a model reads through the link"
    (shared / "again").symlink_to(folder)  # a loop
    assert content_hash(folder) == after
    (folder / "model.safetensors").symlink_to("blobs/none")
    with pytest.raises(
        WeightsError, match=r"model\.safetensors: a link to blobs/none, which does not exist"
    ):
        content_hash(folder)


@pytest.mark.parametrize("shapes", [True, False])
def test_quantised_tensors_are_named(tmp_path: Path, shapes: bool) -> None:
    path = tmp_path / "mlx.safetensors"
    save_file({**TENSORS, "b.weight": torch.zeros(2, 2, dtype=torch.uint32)}, path)
    with (
        shapes_only() if shapes else nullcontext(),
        pytest.raises(
            WeightsError, match=r"mlx\.safetensors: b\.weight has the quantised type torch\.uint32"
        ),
    ):
        load_weights(skip_init(Toy), load_tensors(path), SAME, where=path)
