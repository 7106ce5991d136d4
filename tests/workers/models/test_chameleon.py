"""Chameleon's architecture and Anole on tiny official checkpoints, against transformers' own
Chameleon; the VQGAN's decoder, which transformers lacks, against the documented layers written out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import ChameleonForConditionalGeneration

from search_spaces.trial import Sampling
from tests.fakes.tiny_chameleon import (
    SIZE,
    VQ,
    WORD_IDS,
    State,
    checkpoint,
    decoder_state,
    encoder_state,
    guided_logits,
    image_logits,
    language_state,
    reference_model,
    write_sharded,
    write_tokenizer,
)
from tests.fakes.watched import Replay, draw
from workers.models.checkpoint_files import WeightsError
from workers.models.families.chameleon import ANOLE, Anole, ImageFormat, load_tokenizer
from workers.models.target import Target
from workers.models.vq import VQModel

SIDE, ROOM, CPU = 4, 12, torch.device("cpu")
CAPTIONS = ["a red ball", "a blue cat : a ball"]
GREEDY = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 3.0}


@pytest.fixture(scope="module")
def reference() -> ChameleonForConditionalGeneration:
    return reference_model()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(tmp_path_factory.mktemp("anole"))


@pytest.fixture(scope="module")
def language(reference: ChameleonForConditionalGeneration) -> State:
    return language_state(reference)


@pytest.fixture(scope="module")
def target(folder: Path) -> Target:
    return load_anole(folder)


class SmallAnole(Anole):
    """Anole for images of fewer codes."""

    side: ClassVar[int] = SIDE

    @property
    def image(self) -> ImageFormat:
        return replace(ANOLE, rows=self.side, cols=self.side)


class SquareAnole(SmallAnole):
    side = 32


def load_anole(
    path: Path, vq: Path | None = None, tokenizer: Path | None = None, **options: Any
) -> Target:
    dtype, kind = options.pop("dtype", torch.float32), options.pop("kind", SmallAnole)
    files = {
        "vq": None if vq is None else str(vq),
        "tokenizer": None if tokenizer is None else str(tokenizer),
    }
    target: Target = kind(str(path), **files, **{"prompt_tokens": ROOM, **options}).load(CPU, dtype)
    return target


def read(text: str) -> list[int]:
    return [WORD_IDS[word] for word in text.split()]


def padded(rows: list[list[int]]) -> Tensor:
    return torch.tensor([[1] * (ROOM - len(row)) + row for row in rows])


def write_codec(folder: Path, state: State) -> Path:
    torch.save({"state_dict": state}, folder / "vqgan.ckpt")
    return folder / "vqgan.ckpt"


@pytest.fixture(scope="module")
def attempt(
    tmp_path_factory: pytest.TempPathFactory, reference: ChameleonForConditionalGeneration
) -> Callable[..., Target]:
    """Load a checkpoint with another file's codec and tokenizer."""
    files = tmp_path_factory.mktemp("parts")
    vq, tokenizer = write_codec(files, vqgan(reference)), write_tokenizer(files)
    return lambda path, **options: load_anole(path, vq, tokenizer, **options)


# loading


def test_official_names(language: State, reference: ChameleonForConditionalGeneration) -> None:
    """The tiny files have exactly the documented tensors, so that loading them is loading the
    layout.
    """
    layer = [f"self_attn.{part}_proj.weight" for part in "qkvo"]
    layer += [f"self_attn.{part}_norm.{kind}" for part in "qk" for kind in ("weight", "bias")]
    layer += [f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")]
    layer += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    names = {f"model.layers.{number}.{name}" for number in range(2) for name in layer}
    assert set(language) == names | {
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    }
    assert language["model.layers.1.self_attn.q_norm.weight"].shape == (4, 8)
    assert language["model.layers.1.self_attn.k_norm.bias"].shape == (2, 8)
    vq = set(encoder_state(reference))
    assert {
        "encoder.down.0.downsample.conv.weight",
        "encoder.mid.block_1.norm1.bias",
        "quant_conv.bias",
    } < vq
    assert {
        "encoder.mid.attn_1.proj_out.weight",
        "encoder.down.1.block.0.nin_shortcut.weight",
    } < vq
    assert {"quantize.embedding.weight", "post_quant_conv.weight", "encoder.conv_out.weight"} < vq


def test_shards_one_file_and_pickles_give_the_same_model(
    folder: Path, language: State, tmp_path: Path, attempt: Callable[..., Target]
) -> None:
    whole = load_anole(folder).state_dict()
    save_file(language, tmp_path / "one.safetensors")
    torch.save(language, tmp_path / "one.pt")
    torch.save({"state_dict": language, "epoch": 3}, tmp_path / "wrapped.bin")
    for name in ("one.safetensors", "one.pt", "wrapped.bin"):
        other = attempt(tmp_path / name).state_dict()
        assert other.keys() == whole.keys()
        assert all(torch.equal(value, whole[name]) for name, value in other.items())


def test_every_weight_is_used(language: State, target: Target) -> None:
    """What the model holds is what the file holds: the whole embedding, the head's image rows, and
    in every other matrix the same numbers (queries and keys in another order).
    """
    state = target.state_dict()
    assert torch.equal(state["conditioner.words.weight"], language["model.embed_tokens.weight"])
    assert torch.equal(
        state["transformer.embed.weight"], language["model.embed_tokens.weight"][4:8196]
    )
    assert torch.equal(state["transformer.head.weight"], language["lm_head.weight"][4:8196])

    def sums(tensors: State, part: str) -> float:
        return float(
            sum(value.double().square().sum() for name, value in tensors.items() if part in name)
        )

    assert sums(state, "transformer.layers.") == pytest.approx(
        sums(language, "model.layers."), rel=1e-6
    )
    assert target.name == f"anole-{SIZE}"
    assert (target.vocab_size, target.grid.tokens, target.prompt_len) == (8192, SIDE * SIDE, ROOM)
    assert target.sampling == Sampling(temperature=1.0, top_k=2000, top_p=1.0, cfg=3.0)
    assert target.row_end is None
    assert not any(parameter.requires_grad for parameter in target.parameters())


# prompts


def test_prompts(target: Target) -> None:
    """[0] text [8710, 8197], padded on the left with 1; the unconditional stream is [0, 8197]; cond
    rows first.
    """
    texts = [[0, *read(caption), 8710, 8197] for caption in CAPTIONS]
    assert target.conditioner.token_ids(CAPTIONS) == texts  # type: ignore[operator]
    ids = padded(texts)
    prompt = target.encode(CAPTIONS, guided=True)
    words = target.state_dict()["conditioner.words.weight"]
    expected = torch.cat([ids, torch.tensor([[1] * (ROOM - 2) + [0, 8197]] * 2)])
    assert torch.equal(prompt.valid, expected != 1)
    assert torch.equal(prompt.embeds, words[expected])
    assert torch.equal(target.encode(CAPTIONS, guided=False).embeds, prompt.embeds[:2])
    with pytest.raises(ValueError, match="caption 1 is empty"):
        target.encode(["a", " "], guided=True)
    with pytest.raises(
        ValueError, match=r"'a a a.*needs a prompt of 13 tokens, the limit is 12.*prompt_tokens"
    ):
        target.encode(["a " * 10], guided=True)


def test_streams_are_transformers_with_the_documented_positions(
    target: Target, reference: ChameleonForConditionalGeneration
) -> None:
    """Both streams over prompt and image, where transformers counts the unconditional one from its
    own first token (prompt positions 0 and 1, then the conditional position less T - 2) and pads
    the shorter caption on its left.
    """
    prompt = target.encode(CAPTIONS, guided=True)
    codes = torch.randint(8192, (2, SIDE * SIDE), generator=torch.Generator().manual_seed(1))
    x = torch.cat([prompt.embeds, target.embed(codes).repeat(2, 1, 1)], dim=1)
    length = x.shape[1]
    seen = torch.ones(length, length).tril().bool().repeat(4, 1, 1)
    seen[:, :, :ROOM] &= prompt.valid[:, None]
    mask = (seen | torch.eye(length).bool())[:, None]
    with torch.no_grad():
        logits = target.head(target.transformer(x, torch.arange(length), mask=mask))
    ids = torch.cat([padded(target.conditioner.token_ids(CAPTIONS)), codes + 4], dim=1)  # type: ignore[operator]
    streams = torch.cat(
        [ids, torch.cat([torch.tensor([[1] * (ROOM - 2) + [0, 8197]] * 2), codes + 4], dim=1)]
    )
    real = streams != 1
    positions = (real.cumsum(1) - 1).clamp(min=0)
    assert positions[2, ROOM - 2 : ROOM + 1].tolist() == [0, 1, 2]
    with torch.no_grad():
        hidden = reference.model(
            input_ids=streams, attention_mask=real.long(), position_ids=positions
        ).last_hidden_state
        expected = hidden @ reference.lm_head.weight[4:8196].T
    assert expected[:, ROOM:].std() > 1
    torch.testing.assert_close(logits[:, ROOM - 1 :], expected[:, ROOM - 1 :], atol=1e-4, rtol=1e-4)


def test_tree_passes_are_path_by_path_passes(
    target: Target, reference: ChameleonForConditionalGeneration
) -> None:
    """Every node of every tree, the rejected ones too, under guidance: transformers over that
    node's own path. Greedy tokens are vanilla's.
    """
    caption = CAPTIONS[1]
    plain, _ = draw(target, {"sampling": GREEDY}, None, [caption])
    known = {caption: plain[caption].tokens}
    tree = {"policy": "dynamic", "depth": 4, "width": 3, "nodes": 10}
    setting = {"drafter": "medusa", "tree": tree, "sampling": GREEDY}
    results, engine = draw(target, setting, Replay(known, 8192, errors=3), [caption])
    assert torch.equal(results[caption].tokens, known[caption])
    paths, logits = zip(*engine.paths(), strict=True)
    assert len(paths) > 25
    prompts = [0, *read(caption), 8710, 8197], [0, 8197]
    expected = guided_logits(reference, prompts, paths)
    torch.testing.assert_close(torch.stack(logits), expected, atol=2e-4, rtol=1e-4)
    conditional = image_logits(
        reference, [[*prompts[0], *(code + 4 for code in path)] for path in paths]
    )
    assert (expected - conditional).abs().max() > 1  # guidance does something here


# the VQGAN


class Plain:
    """taming's decoder as plain functions of the state dict."""

    def __init__(self, state: State) -> None:
        self.state = {name.removeprefix("decoder."): value for name, value in state.items()}

    def conv(self, x: Tensor, name: str, pad: int = 0) -> Tensor:
        return F.conv2d(x, self.state[f"{name}.weight"], self.state[f"{name}.bias"], padding=pad)

    def norm(self, x: Tensor, name: str) -> Tensor:
        grouped = x.reshape(len(x), 32, -1)
        mean, spread = grouped.mean(2, keepdim=True), grouped.var(2, unbiased=False, keepdim=True)
        flat = ((grouped - mean) / (spread + 1e-6).sqrt()).view(x.shape)
        out: Tensor = (
            flat * self.state[f"{name}.weight"][:, None, None]
            + self.state[f"{name}.bias"][:, None, None]
        )
        return out

    def block(self, x: Tensor, name: str) -> Tensor:
        h = x
        for number in ("1", "2"):
            h = self.norm(h, f"{name}.norm{number}")
            h = self.conv(h * torch.sigmoid(h), f"{name}.conv{number}", pad=1)
        return h + (
            self.conv(x, f"{name}.nin_shortcut")
            if f"{name}.nin_shortcut.weight" in self.state
            else x
        )

    def attend(self, x: Tensor, name: str) -> Tensor:
        h = self.norm(x, f"{name}.norm")
        q, k, v = (self.conv(h, f"{name}.{part}").flatten(2) for part in "qkv")
        weights = torch.softmax(torch.einsum("bci,bcj->bij", q, k) / x.shape[1] ** 0.5, dim=2)
        return x + self.conv(
            torch.einsum("bij,bcj->bci", weights, v).reshape(x.shape), f"{name}.proj_out"
        )

    def __call__(self, z: Tensor) -> Tensor:
        x = self.block(self.conv(z, "conv_in", pad=1), "mid.block_1")
        x = self.block(self.attend(x, "mid.attn_1"), "mid.block_2")
        for level in reversed(range(len(VQ.multipliers))):
            for number in range(3):
                x = self.block(x, f"up.{level}.block.{number}")
            if level:
                doubled = x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)
                x = self.conv(doubled, f"up.{level}.upsample.conv", pad=1)
        x = self.norm(x, "norm_out")
        return self.conv(x * torch.sigmoid(x), "conv_out", pad=1)


def vqgan(reference: ChameleonForConditionalGeneration) -> State:
    return encoder_state(reference) | decoder_state()


def test_codec(
    folder: Path, target: Target, reference: ChameleonForConditionalGeneration, tmp_path: Path
) -> None:
    """Its own file and the model's give the same codec; it encodes as transformers' and decodes as
    the plain layers.
    """
    trained = {**vqgan(reference), "loss.discriminator.main.0.bias": torch.ones(2)}
    codec = load_anole(folder, write_codec(tmp_path, trained)).codec
    assert isinstance(codec, VQModel)
    assert target.codec is not None
    own = target.codec.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in codec.state_dict().items())
    assert torch.equal(target.codebook, encoder_state(reference)["quantize.embedding.weight"])
    codes = torch.randint(8192, (2, SIDE, SIDE), generator=torch.Generator().manual_seed(2))
    state = vqgan(reference)
    with torch.no_grad():
        z = state["quantize.embedding.weight"][codes].permute(0, 3, 1, 2)
        z = F.conv2d(z, state["post_quant_conv.weight"], state["post_quant_conv.bias"])
        expected = Plain(decoder_state())(z)
        assert expected.std() > 0.1
        torch.testing.assert_close(
            codec.decode_latents(codec.codebook[codes]), expected, atol=2e-4, rtol=1e-4
        )
        images = torch.rand(2, 3, 32, 48, generator=torch.Generator().manual_seed(3)) * 2 - 1
        theirs = reference.model.vqmodel.encode(images).image_tokens
        assert torch.equal(codec.encode(images).flatten(), theirs.flatten())
    pixels = target.decode(codes.flatten(1))
    torch.testing.assert_close(pixels, (expected.clamp(-1, 1) + 1) / 2, atol=2e-4, rtol=1e-4)


def test_codecs_that_do_not_fit(
    folder: Path, language: State, reference: ChameleonForConditionalGeneration, tmp_path: Path
) -> None:
    def refuse(state: State, match: str, checkpoint: Path = folder) -> None:
        with pytest.raises(WeightsError, match=match):
            load_anole(checkpoint, write_codec(tmp_path, state), folder / "tokenizer.json")

    state = vqgan(reference)
    codebook = state["quantize.embedding.weight"]
    small = {**state, "quantize.embedding.weight": codebook[:1024]}
    refuse(small, r"vqgan\.ckpt: this codec has 1024 codes, the target needs 8192; give `vq`")
    refuse(
        {**state, "quantize.embedding.weight": torch.randn(8192, 256)},
        "its codebook differs from the one in",
    )
    alone = tmp_path / "alone.pt"  # without a codebook of its own
    torch.save(language, alone)
    narrow = {
        **state,
        "quantize.embedding.weight": codebook[:, :8],
        "quant_conv.weight": state["quant_conv.weight"][:8],
        "quant_conv.bias": state["quant_conv.bias"][:8],
        "post_quant_conv.weight": state["post_quant_conv.weight"][:, :8],
    }
    for path in (folder, alone):
        refuse(narrow, r"vqgan\.ckpt: .* 8 numbers per code, the target needs 256; give `vq`", path)
    shallow = {  # levels 2 to 4 are equally wide: without one of them, this is a whole codec
        name.replace("down.4", "down.3"): value
        for name, value in state.items()
        if not re.match(r"encoder\.down\.3|decoder\.up\.4", name)
    }
    refuse(
        shallow, r"vqgan\.ckpt: .* 8 pixels per code along a side, the target needs 16; give `vq`"
    )
    short = {
        name: value for name, value in state.items() if name != "decoder.up.2.block.1.conv1.bias"
    }
    refuse(short, r"missing weights \(1\): .*\(decoder\.up\.2\.block\.1\.conv1\.bias\)")
    refuse(
        {**state, "decoder.up.0.attn.0.q.bias": torch.ones(1)},
        r"unknown to this model.*\(1\): decoder\.up\.0\.attn\.0\.q\.bias",
    )


# the family and its files


def test_an_entry_of_the_family(
    folder: Path, language: State, tmp_path: Path, attempt: Callable[..., Target]
) -> None:
    write_sharded(tmp_path / "hf", language)
    write_tokenizer(tmp_path / "hf")
    whole = Anole(transformer=str(folder)).load(torch.device("cpu"), torch.float32)
    assert (whole.grid.rows, whole.grid.cols, whole.prompt_len) == (32, 32, 128)
    # by the tokenizer that lies there
    assert whole.encode(["a red ball"], guided=True).valid.sum(1).tolist() == [6, 2]
    assert whole.codebook.shape == (8192, VQ.code_dim)
    entry = Anole(transformer=str(tmp_path / "hf"), prompt_tokens=16)
    with pytest.raises(WeightsError, match=r"hf: contains no VQGAN decoder.*give `vq`"):
        entry.load(torch.device("cpu"), torch.bfloat16)
    with pytest.raises(ValueError, match="prompt_tokens"):
        Anole(transformer="x", prompt_tokens=2)
    loaded = attempt(tmp_path / "hf", dtype=torch.bfloat16, kind=SquareAnole)
    assert loaded.head.weight.dtype == loaded.conditioner.words.weight.dtype == torch.bfloat16  # type: ignore[union-attr]
    assert loaded.grid.tokens == 1024


def without(name: str) -> Callable[[State], State]:
    return lambda state: {key: value for key, value in state.items() if key != name}


FAULTS: dict[str, tuple[Callable[[State], State], str]] = {
    "missing head": (without("lm_head.weight"), r"missing weights \(1\): lm_head\.weight"),
    "missing norm": (
        without("model.layers.1.self_attn.k_norm.bias"),
        r"\(1\): model\.layers\.1\.self_attn\.k_norm\.bias",
    ),
    "missing projection": (
        without("model.layers.1.self_attn.k_proj.weight"),
        r"\(1\): model\.layers\.1\.self_attn\.k_proj\.weight",
    ),
    "missing size": (
        without("model.layers.0.mlp.gate_proj.weight"),
        r"\(1\): model\.layers\.0\.mlp\.gate_proj\.weight",
    ),
    "unknown": (
        lambda state: {**state, "model.layers.0.self_attn.q_proj.bias": torch.ones(32)},
        r"unknown to this model \(1\): model\.layers\.0\.self_attn\.q_proj\.bias",
    ),
    "unknown in the codec": (
        lambda state: {**state, "model.vqmodel.encoder.extra.weight": torch.ones(3)},
        r"\(1\): model\.vqmodel\.encoder\.extra\.weight",
    ),
    "another vocabulary": (
        lambda state: {
            **state,
            "model.embed_tokens.weight": state["model.embed_tokens.weight"][:8300],
        },
        (
            "model.embed_tokens.weight has 8300 rows, but this family uses ids up to 8710: this is "
            "not its vocabulary"
        ),
    ),
    "another width": (
        lambda state: {**state, "model.layers.1.mlp.down_proj.weight": torch.ones(32, 40)},
        r"has shape \[32, 40\].*needs \[32, 48\].*another size",
    ),
    "not finite": (
        lambda state: {**state, "model.norm.weight": torch.full((32,), torch.nan)},
        "NaN or infinite",
    ),
    "a LLaMA model": (
        lambda state: {name: value for name, value in state.items() if "_norm." not in name},
        (
            "not a Chameleon model in Hugging Face's layout: "
            "model.layers.0.self_attn.q_norm.weight is missing"
        ),
    ),
    "a LlamaGen model": (
        lambda state: {"tok_embeddings.weight": torch.ones(3, 3)},
        "not a Chameleon model.*first tensor is tok_embeddings.weight",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_refused_in_words(
    language: State, tmp_path: Path, fault: str, attempt: Callable[..., Target]
) -> None:
    change, words = FAULTS[fault]
    path = tmp_path / "model.pt"
    torch.save(change(dict(language)), path)
    with pytest.raises(WeightsError, match=rf"model\.pt: .*{words}"):
        attempt(path)


def test_broken_shards_are_refused_in_words(
    language: State, tmp_path: Path, attempt: Callable[..., Target]
) -> None:
    folder = write_sharded(tmp_path / "hf", language)
    shard, index = (
        folder / "model-00002-of-00002.safetensors",
        folder / "model.safetensors.index.json",
    )
    whole, listing = shard.read_bytes(), json.loads(index.read_text())
    shard.write_bytes(whole[:-100])
    with pytest.raises(
        WeightsError, match=r"model-00002-of-00002\.safetensors: the file is truncated"
    ):
        attempt(folder)
    shard.unlink()
    with pytest.raises(WeightsError, match=r"index\.json: 1 of 2 shards missing: model-00002"):
        attempt(folder)
    shard.write_bytes(whole)
    lost = next(
        name
        for name, file in listing["weight_map"].items()
        if file == shard.name and "o_proj" in name
    )
    # an index that forgot an entry: the tensor is there, and nothing else shows it
    listing["weight_map"].pop(lost)
    index.write_text(json.dumps(listing))
    with pytest.raises(WeightsError, match=rf"(missing weights|lacks).*{lost}"):
        attempt(folder)
    listing["weight_map"][lost] = shard.name
    save_file({name: value for name, value in load_file(shard).items() if name != lost}, shard)
    index.write_text(json.dumps(listing))
    with pytest.raises(WeightsError, match=f"the shards lack {lost}"):
        attempt(folder)
    (folder / "config.json").write_text(json.dumps({"swin_norm": True}))
    shard.write_bytes(whole)
    with pytest.raises(WeightsError, match=r"config\.json: swin_norm is on, as in Chameleon-30B"):
        attempt(folder)


def test_tokenizers(tmp_path: Path) -> None:
    file = write_tokenizer(tmp_path / "right")
    # no <s>: the prompt has its own
    assert load_tokenizer(file.parent)("a red ball") == read("a red ball")
    with pytest.raises(WeightsError, match=r"none/tokenizer\.json|none: no such file"):
        load_tokenizer(tmp_path / "none")
    other = write_tokenizer(tmp_path / "other", {"<reserved08706>": 8711})
    with pytest.raises(
        WeightsError, match="not Chameleon's tokenizer: <reserved08706> is 8711 in it, not 8710"
    ):
        load_tokenizer(other)
    with pytest.raises(WeightsError, match="<new> is missing"):
        load_tokenizer(file, {"<new>": 5})
    (tmp_path / "text.json").write_text("{")
    with pytest.raises(WeightsError, match="not a tokenizer"):
        load_tokenizer(tmp_path / "text.json")
