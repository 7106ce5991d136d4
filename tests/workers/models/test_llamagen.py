"""LlamaGen at a fraction of its width: checkpoints are written in the official names, everything
else is computed here from the formulas (explicit rotations, softmax and masks) and compared.
"""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    T5Config,
    T5EncoderModel,
)

from tests.fakes.watched import Replay, draw
from workers.models import text
from workers.models.checkpoint_files import WeightsError, shapes_only
from workers.models.families import llamagen
from workers.models.families.llamagen import CLASS_SAMPLING, SIZES, TEXT_SAMPLING, LlamaGen
from workers.models.families.llamagen_prompts import ClassConditioner, pad_left
from workers.models.target import Target
from workers.models.text import T5Encoder, clean_caption
from workers.models.transformer import Transformer, TransformerConfig
from workers.models.vq import VQConfig, VQModel
from workers.models.weights import skip_init

DIM, LAYERS, HEADS, FFN, CODES, SIDE, PROMPT, FEATURES = 32, 2, 2, 256, 48, 3, 120, 2048
CPU = torch.device("cpu")
VQ = VQConfig(codebook_size=CODES, channels=32, z_channels=32, multipliers=(1, 1, 1, 1, 1))
State = dict[str, Tensor]


def rand(*shape: int, scale: float = 1.0) -> Tensor:
    return torch.randn(*shape) * (scale / math.sqrt(shape[-1]))


def official(kind: str) -> State:
    """A transformer's state dict under the official names."""
    torch.manual_seed(3)
    state = {"tok_embeddings.weight": torch.randn(CODES, DIM), "output.weight": rand(CODES, DIM)}
    state["norm.weight"] = 1 + 0.3 * torch.randn(DIM)
    for i in range(LAYERS):
        state[f"layers.{i}.attention.wqkv.weight"] = rand(3 * DIM, DIM, scale=2)
        state[f"layers.{i}.attention.wo.weight"] = rand(DIM, DIM)
        state[f"layers.{i}.feed_forward.w1.weight"] = rand(FFN, DIM)
        state[f"layers.{i}.feed_forward.w3.weight"] = rand(FFN, DIM)
        state[f"layers.{i}.feed_forward.w2.weight"] = rand(DIM, FFN)
        state[f"layers.{i}.attention_norm.weight"] = 1 + 0.3 * torch.randn(DIM)
        state[f"layers.{i}.ffn_norm.weight"] = 1 + 0.3 * torch.randn(DIM)
    if kind == "c2i":
        state["cls_embedding.embedding_table.weight"] = torch.randn(1001, DIM)
    else:
        state["cls_embedding.cap_proj.fc1.weight"] = rand(DIM, FEATURES, scale=2)
        state["cls_embedding.cap_proj.fc2.weight"] = rand(DIM, DIM, scale=2)
        state["cls_embedding.uncond_embedding"] = torch.randn(PROMPT, FEATURES)
    return state


def converted(state: State) -> State:
    """The same under the names of the files converted to Hugging Face's layout."""
    names = {
        "tok_embeddings": "model.embed_tokens",
        "output": "lm_head",
        "norm": "model.norm",
        "attention.wo": "self_attn.o_proj",
        "feed_forward.w1": "mlp.gate_proj",
        "feed_forward.w3": "mlp.up_proj",
        "feed_forward.w2": "mlp.down_proj",
        "attention_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
    }
    out = {}
    for name, value in state.items():
        stem, _, leaf = name.rpartition(".")
        if stem.startswith("cls_embedding") or name.startswith("cls_embedding"):
            out[f"model.{name}"] = value
        elif stem.endswith("wqkv"):
            for part, block in zip("qkv", value.split(DIM), strict=True):  # type: ignore[no-untyped-call]
                out[f"model.{stem[: -len('attention.wqkv')]}self_attn.{part}_proj.weight"] = (
                    block.clone()
                )
        elif stem.startswith("layers."):
            _, layer, rest = stem.split(".", 2)
            out[f"model.layers.{layer}.{names[rest]}.{leaf}"] = value
        else:
            out[f"{names[stem]}.{leaf}"] = value
    return out


class Words:
    """A text encoder for tests: a fixed random feature per word."""

    width = FEATURES

    def __init__(self, *args: object, **options: object) -> None: ...

    def __call__(self, captions: Sequence[str]) -> tuple[Tensor, Tensor]:
        features, valid = (
            torch.full((len(captions), PROMPT, FEATURES), 7.0),
            torch.zeros(len(captions), PROMPT).bool(),
        )
        for row, caption in enumerate(captions):
            for place, word in enumerate(caption.split()):
                seed = torch.Generator().manual_seed(sum(map(ord, word)))
                features[row, place] = torch.randn(FEATURES, generator=seed)
                valid[row, place] = True
        return features, valid


@cache
def any_codec() -> VQModel:
    with torch.random.fork_rng():
        return VQModel(VQ)


def write_codec(path: Path, codec: VQModel | None = None) -> Path:
    codec = codec or any_codec()
    torch.save({"model": {**codec.state_dict(), "quantize.codebook_used": torch.zeros(9)}}, path)
    return path


def load_file_of(path: Path, vq: Path | None = None, **keys: Any) -> Target:
    vq = vq or write_codec(path.with_name("vq.pt"))
    return LlamaGen(str(path), str(vq), **{"image_size": 16 * SIDE, "heads": HEADS, **keys}).load(
        CPU, torch.float32
    )


def load(tmp_path: Path, kind: str, *, hf: bool = False, vq: Path | None = None) -> Target:
    """A target of `official` weights; its captions are read by `Words` in place of T5."""
    state = official(kind)
    if hf:
        path = tmp_path / f"{kind}.safetensors"
        save_file(converted(state), path)
    else:
        path = tmp_path / f"{kind}.pt"
        torch.save({"model": state, "steps": 1}, path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llamagen, "T5Encoder", Words)
        return load_file_of(path, vq, text="words" if kind == "t2i" else None)


# the formulas


def rms(x: Tensor, weight: Tensor) -> Tensor:
    out: Tensor = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    return out


def rotated(x: Tensor, position: int, prompt: int, channels: int, side: int) -> Tensor:
    """One head's channels [C] at a position, pair by pair; prompt positions are multiplied by
    zero.
    """
    if position < prompt:
        return torch.zeros_like(x)
    row, col = divmod(position - prompt, side)
    out = torch.empty_like(x)
    for pair in range(channels // 2):
        along, index = (row, pair) if pair < channels // 4 else (col, pair - channels // 4)
        angle = along * 10000.0 ** (-2 * index / (channels // 2))
        a, b = x[2 * pair], x[2 * pair + 1]
        out[2 * pair] = a * math.cos(angle) - b * math.sin(angle)
        out[2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return out


def plain_logits(state: State, x: Tensor, valid: Tensor, prompt: int) -> Tensor:
    """Logits [S, V] of one stream: x [S, D] embeddings, of which the first `prompt` are the prompt;
    valid [prompt].
    """
    length, channels = x.shape[0], DIM // HEADS
    seen = torch.ones(length, length).tril().bool()
    seen[:, :prompt] &= valid
    seen |= torch.eye(length).bool()
    for i in range(LAYERS):
        h = rms(x, state[f"layers.{i}.attention_norm.weight"])
        q, k, v = (
            (h @ state[f"layers.{i}.attention.wqkv.weight"].T)
            .view(length, 3, HEADS, channels)
            .clone()
            .unbind(1)
        )
        for part in (q, k):
            for t in range(length):
                for n in range(HEADS):
                    part[t, n] = rotated(part[t, n].clone(), t, prompt, channels, SIDE)
        scores = torch.einsum("ihc,jhc->hij", q, k) / channels**0.5
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        mixed = torch.einsum("hij,jhc->ihc", weights, v).reshape(length, DIM)
        x = x + mixed @ state[f"layers.{i}.attention.wo.weight"].T
        h = rms(x, state[f"layers.{i}.ffn_norm.weight"])
        gate, up = (h @ state[f"layers.{i}.feed_forward.{name}.weight"].T for name in ("w1", "w3"))
        x = x + (gate * torch.sigmoid(gate) * up) @ state[f"layers.{i}.feed_forward.w2.weight"].T
    return rms(x, state["norm.weight"]) @ state["output.weight"].T


def cap_proj(state: State, features: Tensor) -> Tensor:
    h = features @ state["cls_embedding.cap_proj.fc1.weight"].T
    gelu: Tensor = 0.5 * h * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h.pow(3))))
    return gelu @ state["cls_embedding.cap_proj.fc2.weight"].T


def prompt_mask(valid: Tensor, length: int) -> Tensor:
    """[R, 1, S, S]: causal and not padding, or itself."""
    seen = torch.ones(length, length).tril().bool().repeat(len(valid), 1, 1)
    seen[:, :, : valid.shape[1]] &= valid[:, None]
    return (seen | torch.eye(length).bool())[:, None]


# rotations and sizes


def test_grid_rotations_of_heads_with_100_channels() -> None:
    """Every value of the table for LlamaGen-3B's heads, on a 5 x 7 grid behind a prompt of 2."""
    config = TransformerConfig(
        dim=200,
        n_layers=1,
        n_heads=2,
        ffn_dim=8,
        vocab_size=4,
        rows=5,
        cols=7,
        prompt_len=2,
        prompt_rope="zero",
    )
    table = Transformer(config).rotations
    assert torch.equal(table[:2], torch.zeros(2, 50, dtype=torch.complex64))
    frequencies = [10000.0 ** (-2 * i / 50) for i in range(25)]
    for cell in range(40):  # the last five are past the image's end and go on below it
        row, col = divmod(cell, 7)
        angles = torch.tensor([row * f for f in frequencies] + [col * f for f in frequencies])
        torch.testing.assert_close(table[2 + cell].real, angles.cos(), atol=1e-6, rtol=0)
        torch.testing.assert_close(table[2 + cell].imag, angles.sin(), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("name", "ffn", "millions"),
    [
        ("B", 2048, 111),
        ("L", 2816, 343),
        ("XL", 3584, 775),
        ("XXL", 4096, 1411),
        ("3B", 8704, 3100),
    ],
)
def test_published_sizes(name: str, ffn: int, millions: int) -> None:
    """Feed-forward widths, and parameter counts as published (class-conditional, 384 px), within
    one per cent.
    """
    size = SIZES[name]
    assert size.ffn == ffn
    config = TransformerConfig(
        dim=size.dim,
        n_layers=size.layers,
        n_heads=size.heads,
        ffn_dim=size.ffn,
        vocab_size=16384,
        rows=24,
        cols=24,
    )
    model = skip_init(lambda: Transformer(config))
    count = sum(parameter.numel() for parameter in model.parameters()) + 1001 * size.dim
    assert count / 1e6 == pytest.approx(millions, rel=0.01)


# loading


@pytest.mark.parametrize("kind", ["c2i", "t2i"])
def test_official_and_converted_files_give_the_same_model(tmp_path: Path, kind: str) -> None:
    left, right = load(tmp_path, kind), load(tmp_path, kind, hf=True)
    pairs = left.state_dict(), right.state_dict()
    assert pairs[0].keys() == pairs[1].keys()
    assert all(torch.equal(pairs[0][name], pairs[1][name]) for name in pairs[0])
    assert left.name == right.name == f"llamagen-{kind}-32x2-48"
    assert left.sampling == (TEXT_SAMPLING if kind == "t2i" else CLASS_SAMPLING)
    assert (left.prompt_len, left.vocab_size, left.grid.tokens) == (
        120 if kind == "t2i" else 1,
        CODES,
        SIDE * SIDE,
    )
    assert not any(parameter.requires_grad for parameter in left.parameters())


def test_faults_are_refused_in_words(tmp_path: Path) -> None:
    def attempt(state: State, **options: Any) -> Target:
        path = tmp_path / "x.pt"
        torch.save(state, path)
        return load_file_of(path, **options)

    state = official("c2i")
    attempt(state)
    with pytest.raises(
        WeightsError, match=r"tensors unknown to this model \(1\): layers\.0\.freqs"
    ):
        attempt({**state, "layers.0.freqs": torch.ones(1)})
    with pytest.raises(
        WeightsError, match=r"missing weights \(1\): layers\.1\.feed_forward\.w3\.weight"
    ):
        attempt(
            {
                name: value
                for name, value in state.items()
                if name != "layers.1.feed_forward.w3.weight"
            }
        )
    with pytest.raises(WeightsError, match=r"missing weights \(5\): transformer\.layers\.2"):
        attempt({**state, "layers.2.attention.wo.weight": rand(DIM, DIM)})
    with pytest.raises(WeightsError, match="another size"):
        attempt({**state, "norm.weight": torch.ones(64)})
    with pytest.raises(WeightsError, match="not a published LlamaGen size"):
        attempt(state, heads=None)
    with pytest.raises(WeightsError, match="width 32 and 2 layers are not size XL"):
        attempt(state, heads=None, size="XL")
    with pytest.raises(ValueError, match="multiple of 16"):
        attempt(state, image_size=250)
    with pytest.raises(ValueError, match="is text-conditional"):
        attempt(official("t2i"))
    with pytest.raises(WeightsError, match=r"not a LlamaGen transformer.* VQ tokenizer"):
        attempt(VQModel(VQ).state_dict())
    vq = write_codec(tmp_path / "vq9.pt", VQModel(VQConfig(codebook_size=9, channels=32)))
    with pytest.raises(
        WeightsError, match=r"vq9\.pt: this codec has 9 codes, the target needs 48; give `vq`"
    ):
        attempt(state, vq=vq)


def test_a_codec_of_any_geometry_sets_the_grid(tmp_path: Path) -> None:
    codec = VQModel(
        VQConfig(
            codebook_size=CODES, code_dim=16, channels=32, z_channels=32, multipliers=(1, 1, 1, 1)
        )
    )
    target = load(tmp_path, "c2i", vq=write_codec(tmp_path / "vq.pt", codec))
    assert (target.grid.rows, target.grid.cols, target.codebook.shape) == (
        2 * SIDE,
        2 * SIDE,
        (CODES, 16),
    )
    assert target.decode(torch.zeros(1, 4 * SIDE * SIDE, dtype=torch.int64)).shape == (1, 3, 48, 48)
    with pytest.raises(ValueError, match="image_size 52 must be a multiple of 8"):
        load_file_of(tmp_path / "c2i.pt", tmp_path / "vq.pt", image_size=52)


def test_tokens_become_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    codec = VQModel(VQ)
    target = load(tmp_path, "c2i", vq=write_codec(tmp_path / "vq.pt", codec))
    tokens = torch.arange(2 * SIDE * SIDE).view(2, -1)
    images = target.decode(tokens)
    assert images.shape == (2, 3, 48, 48)
    expected = (codec.decode_ids(tokens.view(2, SIDE, SIDE)) + 1) / 2
    torch.testing.assert_close(images, expected)
    torch.testing.assert_close(target.codebook, F.normalize(codec.quantize.embedding.weight, dim=1))


# conditions


def test_class_condition(tmp_path: Path) -> None:
    table = official("c2i")["cls_embedding.embedding_table.weight"]
    prompt = load(tmp_path, "c2i").encode(["207", " 0 ", "999"], guided=True)
    assert torch.equal(prompt.embeds[:, 0], table[[207, 0, 999, 1000, 1000, 1000]])
    assert prompt.valid.tolist() == [[True]] * 6
    for bad in ("1000", "-1", "golden retriever", "", "٣"):
        with pytest.raises(ValueError, match="give a number from 0 to 999"):
            load(tmp_path, "c2i").encode([bad], guided=False)
    named = ClassConditioner(DIM, classes=2, names=["Golden retriever", "tench"])
    assert torch.equal(
        named(["tench", "golden Retriever", "1"]).embeds[:, 0], named.classes.weight[[1, 0, 1]]
    )


def test_caption_condition(tmp_path: Path) -> None:
    """Left padding, projection, the null caption and its mask, rows in the order cond, cond,
    uncond, uncond.
    """
    state, captions = official("t2i"), ["a red ball", "two very small blue squares"]
    prompt = load(tmp_path, "t2i").encode(captions, guided=True)
    features, _ = Words()(captions)
    null = cap_proj(state, state["cls_embedding.uncond_embedding"])
    for row, words in enumerate((3, 5)):
        start = PROMPT - words
        torch.testing.assert_close(
            prompt.embeds[row, start:], cap_proj(state, features[row, :words]), atol=1e-5, rtol=1e-4
        )
        # zero stays zero: the projection has no biases
        assert prompt.embeds[row, :start].count_nonzero() == 0
        torch.testing.assert_close(prompt.embeds[2 + row], null, atol=1e-4, rtol=1e-4)
        for stream in (row, 2 + row):
            assert prompt.valid[stream].tolist() == [False] * start + [True] * words
    assert torch.equal(
        load(tmp_path, "t2i").encode(captions, guided=False).embeds, prompt.embeds[:2]
    )
    with pytest.raises(ValueError, match="caption 1 is empty"):
        load(tmp_path, "t2i").encode(["a", " "], guided=True)


def test_pad_left_keeps_order_and_handles_full_rows() -> None:
    features = torch.arange(1.0, 9.0).view(2, 4, 1)
    moved, valid = pad_left(features, torch.tensor([[True, True, False, False], [True] * 4]))
    assert moved[..., 0].tolist() == [[0, 0, 1, 2], [5, 6, 7, 8]]
    assert valid.tolist() == [[False, False, True, True], [True] * 4]


@pytest.mark.parametrize("kind", ["c2i", "t2i"])
def test_logits_are_the_formulas(tmp_path: Path, kind: str) -> None:
    """Both streams of two captions, prompt and the whole image, against the plain computation;
    fp32.
    """
    state, target = official(kind), load(tmp_path, kind)
    captions = ["7", "8"] if kind == "c2i" else ["a red ball", "two very small blue squares"]
    prompt = target.encode(captions, guided=True)
    tokens = torch.randint(CODES, (2, SIDE * SIDE), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        x = torch.cat([prompt.embeds, target.embed(tokens).repeat(2, 1, 1)], 1)
        mask = prompt_mask(prompt.valid, x.shape[1])
        logits = target.head(target.transformer(x, torch.arange(x.shape[1]), mask=mask))
        for row in range(4):
            expected = plain_logits(state, x[row], prompt.valid[row], target.prompt_len)
            torch.testing.assert_close(logits[row], expected, atol=1e-4, rtol=1e-3)
            assert expected.std() > 0.2


class GridRotary(nn.Module):
    """transformers' rotary embedding with LlamaGen's angles: both halves of a head's channels, zero
    at the prompt.
    """

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        half = DIM // HEADS // 2
        frequencies = [10000.0 ** (-2 * index / half) for index in range(half // 2)]
        cos, sin = torch.zeros(2, *x.shape[:2], 2 * half)
        for place in range(1, x.shape[1]):
            row, col = divmod(place - 1, SIDE)
            angles = torch.tensor([along * f for along in (row, col) for f in frequencies] * 2)
            cos[:, place], sin[:, place] = angles.cos(), angles.sin()
        return cos, sin


def test_the_converted_layout_is_transformers_llama(tmp_path: Path) -> None:
    """LlamaForCausalLM reads the converted file by its own names; only its rotations, which turn
    halves, are replaced (so that queries' and keys' rows are put in that order first).
    """
    channels = DIM // HEADS
    config = LlamaConfig(
        vocab_size=CODES,
        hidden_size=DIM,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        rms_norm_eps=1e-5,
        tie_word_embeddings=False,
    )
    llama = LlamaForCausalLM(config)
    state = {
        name: value
        for name, value in converted(official("c2i")).items()
        if "cls_embedding" not in name
    }
    for name in [name for name in state if "q_proj" in name or "k_proj" in name]:
        state[name] = (
            state[name].view(HEADS, channels // 2, 2, DIM).transpose(1, 2).reshape(DIM, DIM)
        )
    llama.load_state_dict(state)
    llama.model.rotary_emb = GridRotary()
    target = load(tmp_path, "c2i", hf=True)
    prompt = target.encode(["3", "12"], guided=False)
    tokens = torch.randint(CODES, (2, SIDE * SIDE), generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        x = torch.cat([prompt.embeds, target.embed(tokens)], dim=1)
        expected = llama(inputs_embeds=x).logits
        logits = target.head(target.transformer(x, torch.arange(x.shape[1])))
    assert expected.std() > 0.2
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


def test_tree_passes_under_guidance_are_the_formulas(tmp_path: Path) -> None:
    """Every slot of a round's tree: uncond + 4 (cond - uncond) of plain computations over that
    slot's own path.
    """
    state, target = official("c2i"), load(tmp_path, "c2i")
    sampling = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "cfg": 4.0}
    plain, _ = draw(target, {"sampling": sampling}, None, ["7"])
    tree = {"policy": "dynamic", "depth": 3, "width": 2, "nodes": 5}
    replay = Replay({"7": plain["7"].tokens}, CODES, errors=4)
    results, engine = draw(
        target, {"drafter": "medusa", "tree": tree, "sampling": sampling}, replay, ["7"]
    )
    assert torch.equal(results["7"].tokens, plain["7"].tokens)
    classes = state["cls_embedding.embedding_table.weight"]
    paths = engine.paths()
    assert len(paths) > 10
    for path, logits in paths:
        tokens = state["tok_embeddings.weight"][torch.tensor(path)]
        conditional, unconditional = (
            plain_logits(state, torch.cat([classes[label][None], tokens]), torch.tensor([True]), 1)[
                -1
            ]
            for label in (7, 1000)
        )
        torch.testing.assert_close(
            logits, unconditional + 4 * (conditional - unconditional), atol=3e-4, rtol=1e-3
        )


def test_prompt_rotation_is_zero_and_that_matters(tmp_path: Path) -> None:
    target = load(tmp_path, "c2i")
    body = target.transformer
    assert isinstance(body, Transformer)
    attention: Any = body.layers[0].attention
    factors = body.rotations[torch.arange(4)][None]
    q, k, v = attention.project(torch.randn(1, 4, DIM), factors)
    assert q[0, 0].count_nonzero() == 0
    assert k[0, 0].count_nonzero() == 0
    assert q[0, 1:].count_nonzero() == q[0, 1:].numel()
    assert v[0, 0].count_nonzero() == v[0, 0].numel()
    x = target.encode(["3"], guided=False).embeds
    x = torch.cat([x, target.embed(torch.tensor([[1, 2, 3]]))], 1)
    with torch.no_grad():
        zero = body(x, torch.arange(4))
        body.rotations[0] = 1
        assert (body(x, torch.arange(4)) - zero).abs().max() > 1e-2


# text


def t5_folder(folder: Path, width: int = FEATURES) -> Path:
    words = ["<pad>", "</s>", "<unk>", "a", "red", "ball", "cat", "small"]
    tokenizer = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    fast = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    )
    fast.save_pretrained(folder)
    config = T5Config(
        vocab_size=8, d_model=width, d_kv=4, d_ff=8, num_layers=1, num_heads=2, dropout_rate=0.0
    )
    torch.manual_seed(0)
    T5EncoderModel(config).save_pretrained(folder)
    return folder


def test_t5_features_from_a_local_folder(tmp_path: Path) -> None:
    folder = t5_folder(tmp_path / "t5")
    encoder = T5Encoder(folder)
    features, valid = encoder(["A red <b>BALL</b>!", "cat", " ".join(["a"] * 300)])
    assert features.shape == (3, PROMPT, FEATURES)
    # words, punctuation and the end mark; cut at 120
    assert valid.sum(1).tolist() == [5, 2, PROMPT]
    assert valid[0, :5].all()
    model: nn.Module = T5EncoderModel.from_pretrained(folder)
    model.eval()
    with torch.no_grad():
        alone = model(torch.tensor([[3, 4, 5, 2, 1]])).last_hidden_state
    torch.testing.assert_close(features[0, :5], alone[0], atol=1e-4, rtol=1e-4)
    fresh = T5Encoder(folder)
    assert torch.equal(fresh(["cat"])[0][0], features[1])  # whoever else is in the call
    passes: list[int] = []
    fresh._model.register_forward_hook(lambda *_: passes.append(1))
    again, _ = fresh(["a ball", "cat", "a ball"])
    assert torch.equal(again[1], features[1])
    assert torch.equal(again[0], again[2])
    assert len(passes) == 1  # "cat" is remembered, and so is the first "a ball"
    fresh.batch_size = 16
    torch.testing.assert_close(fresh(["a ball", "cat"])[0], again[:2], atol=1e-5, rtol=1e-4)
    assert len(passes) == 2
    torch.save(official("t2i"), tmp_path / "x.pt")
    target = load_file_of(tmp_path / "x.pt", text=str(folder))
    prompt = target.encode(["cat"], guided=True)
    assert prompt.valid.sum(1).tolist() == [2, 2]
    expected = cap_proj(official("t2i"), features[1, :2])
    torch.testing.assert_close(prompt.embeds[0, -2:], expected, atol=1e-4, rtol=1e-4)
    assert not any(
        "encoder" in name or "t5" in name.lower() for name in target.conditioner.state_dict()
    )


def test_a_t5_remembers_its_latest_captions_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "_CACHE_SIZE", 2)
    encoder = T5Encoder(t5_folder(tmp_path / "t5"))
    for caption in ("a", "cat", "a", "ball", "a", "cat"):
        encoder([caption])
    facts = encoder._encode_cached.cache_info()
    assert (facts.currsize, facts.hits, facts.misses) == (2, 2, 4), (
        "the caption that was not used longest goes first"
    )


def test_a_dropped_t5_is_freed_at_once(tmp_path: Path) -> None:
    encoder = T5Encoder(t5_folder(tmp_path / "t5"))
    encoder(["a cat"])
    dropped = weakref.ref(encoder), weakref.ref(encoder._model)
    gc.disable()
    try:
        del encoder
        assert [reference() for reference in dropped] == [None, None]
    finally:
        gc.enable()


def test_a_whole_t5_with_its_own_head_is_read(tmp_path: Path) -> None:
    """As T5 v1.1 and flan-T5 are published."""
    weights = t5_folder(tmp_path / "t5") / "model.safetensors"
    expected = T5Encoder(tmp_path / "t5")(["a cat"])[0]
    others = {
        "decoder.final_layer_norm.weight": torch.ones(FEATURES),
        "lm_head.weight": torch.ones(8, FEATURES),
    }
    save_file({**load_file(weights), **others}, weights, metadata={"format": "pt"})
    assert torch.equal(T5Encoder(tmp_path / "t5")(["a cat"])[0], expected)
    with shapes_only():
        T5Encoder(tmp_path / "t5", device="meta")


def test_captions_are_checked_without_their_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Words, "__call__", unread)
    target = load(tmp_path, "t2i")
    target.check(["a cat", "a ball"])
    with pytest.raises(ValueError, match="caption 1 is empty"):
        target.check(["a cat", " "])


def unread(_: Words, captions: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    raise AssertionError(f"{captions} were encoded")


def test_a_t5_of_another_size_is_named(tmp_path: Path) -> None:
    torch.save(official("t2i"), tmp_path / "x.pt")
    folder = t5_folder(tmp_path / "t5-large", width=1024)
    with pytest.raises(
        WeightsError, match=r"t5-large: this T5 gives features of width 1024, LlamaGen reads 2048"
    ):
        load_file_of(tmp_path / "x.pt", text=str(folder))


def test_a_folder_without_t5_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="no such folder; give the folder of a T5"):
        T5Encoder(tmp_path / "none")
    with pytest.raises(WeightsError, match="no tokenizer that can be read"):
        T5Encoder(tmp_path)
    weights = t5_folder(tmp_path / "t5") / "model.safetensors"
    tensors = load_file(weights)
    del tensors["encoder.block.0.layer.0.SelfAttention.q.weight"]
    save_file(
        {**tensors, "decoder.final_layer_norm.weight": torch.ones(4)},
        weights,
        metadata={"format": "pt"},
    )
    with pytest.raises(WeightsError, match=r"lacks encoder\.block\.0"):  # a decoder is ignored
        T5Encoder(tmp_path / "t5")
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="truncated"):
        T5Encoder(tmp_path / "t5")


@pytest.mark.parametrize(
    ("caption", "cleaned"),
    [
        ("A Large RED circle", "a large red circle"),
        ("  a cat.  ", "a cat."),
        ("a <person> on <b>a&nbsp;bench</b>", "a person on a bench"),
        ("see https://example.com/a?b=c or www.foo.org/x now", "see or now"),
        ("photo from shutterstock.com/pics today", "photo from today"),
        ("nice @someone pic #12 of 1234567 dogs", "nice pic of dogs"),
        ("“quoted” – it’s", '"quoted" - it\'s'),
        ("tom &amp; jerry", "tom jerry"),
        ("this-is-my-cute-cat", "this is my cute cat"),
        ("IMG_20.jpg a dog", "a dog"),
        ("wall 1920x1080 art, free shipping", "wall art"),
        ("sofa jc6640vc blue", "sofa blue"),
        ("wait... what / really (yes)", "wait what really yes"),
        ("漢字 and cats", "and cats"),
        ("'a quoted line'", "a quoted line"),
        ("red,blue", "red, blue"),
        ("a+b%20c", "a b c"),
        ("", ""),
    ],
)
def test_caption_cleaning(caption: str, cleaned: str) -> None:
    """Each rule once. Twice over, as the encoder does, nothing more changes."""
    assert clean_caption(clean_caption(caption)) == cleaned
