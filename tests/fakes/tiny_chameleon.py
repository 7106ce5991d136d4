"""Chameleon checkpoints at a fraction of their width, in the official layouts, and what
transformers makes of them.

The vocabulary keeps the official ids of images, separators and sizes; text is a handful of words
beyond them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, ChameleonVQVAEConfig

from workers.models.vq import VQConfig

DIM, LAYERS, HEADS, KV_HEADS, CHANNELS, FFN, VOCABULARY = 32, 2, 4, 2, 8, 48, 8880
VQ = VQConfig(
    codebook_size=8192,
    code_dim=256,
    l2_normalised=False,
    channels=32,
    multipliers=(1, 2, 1, 1, 1),
    z_channels=10,
    level_attention=False,
)
SIZE = f"{DIM}x{LAYERS}"
State = dict[str, Tensor]

NAMED = {"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3}
NAMED |= {"<eoss>": 8196, "<racm3:break>": 8197, "<reserved08706>": 8710, "<reserved08799>": 8803}
WORDS = [
    "a",
    "red",
    "blue",
    "ball",
    "cat",
    "Generate",
    "an",
    "image",
    "of",
    "x",
    "following",
    "prompt",
    ":",
    "64",
]
WORD_IDS = {word: 8840 + number for number, word in enumerate(WORDS)}


def reference_model(seed: int = 0, shards: int | None = None) -> ChameleonForConditionalGeneration:
    """transformers' own, tiny, with every weight far from its initial value, norms and biases
    included. shards: the heads of each of so many shards share their norms.
    """
    vq = ChameleonVQVAEConfig(
        embed_dim=VQ.code_dim,
        num_embeddings=VQ.codebook_size,
        latent_channels=VQ.z_channels,
        resolution=16,
        base_channels=VQ.channels,
        channel_multiplier=list(VQ.multipliers),
        num_res_blocks=VQ.encoder_blocks,
    )
    config = ChameleonConfig(
        vocab_size=VOCABULARY,
        hidden_size=DIM,
        intermediate_size=FFN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=4096,
        vq_config=vq.to_dict(),
        vocabulary_map={"<image>": 8711, "IMGIMGAZ": 4},
    )
    with torch.random.fork_rng():
        torch.default_generator.manual_seed(seed)
        model = ChameleonForConditionalGeneration(config)
        model.train(False).requires_grad_(False)
        for name, value in model.named_parameters():
            if "norm" in name:
                value.copy_(
                    (0.0 if name.endswith("bias") else 1.0) + 0.3 * torch.randn(value.shape)
                )
            elif name == "lm_head.weight":
                value.copy_(0.3 * torch.randn(value.shape))
            elif name == "model.embed_tokens.weight" or name.endswith("embedding.weight"):
                value.copy_(torch.randn(value.shape))
            elif value.dim() > 1:
                value.copy_(torch.randn(value.shape) * value[0].numel() ** -0.5)
            else:
                value.copy_(0.1 * torch.randn(value.shape))
            if shards is not None and ("q_norm" in name or "k_norm" in name):
                value.copy_(value[:shards].repeat_interleave(len(value) // shards, 0))
    return model


def language_state(model: ChameleonForConditionalGeneration) -> State:
    """The language model's tensors under the names that the official files have."""
    return {
        name: value.clone() for name, value in model.state_dict().items() if ".vqmodel." not in name
    }


def encoder_state(model: ChameleonForConditionalGeneration) -> State:
    """The VQGAN's tensors that transformers has too, under taming's names."""
    return {
        name.removeprefix("model.vqmodel."): value.clone()
        for name, value in model.state_dict().items()
        if ".vqmodel." in name
    }


def decoder_state(seed: int = 5) -> State:
    """The VQGAN's decoder, which transformers lacks: taming's names, `up.0` the finest level."""
    generator = torch.Generator().manual_seed(seed)
    state: State = {}

    def conv(name: str, width: int, out: int, side: int) -> None:
        scale = (width * side * side) ** -0.5
        state[f"decoder.{name}.weight"] = (
            torch.randn(out, width, side, side, generator=generator) * scale
        )
        state[f"decoder.{name}.bias"] = 0.1 * torch.randn(out, generator=generator)

    def norm(name: str, width: int) -> None:
        state[f"decoder.{name}.weight"] = 1 + 0.2 * torch.randn(width, generator=generator)
        state[f"decoder.{name}.bias"] = 0.1 * torch.randn(width, generator=generator)

    def block(name: str, width: int, out: int) -> None:
        norm(f"{name}.norm1", width)
        conv(f"{name}.conv1", width, out, 3)
        norm(f"{name}.norm2", out)
        conv(f"{name}.conv2", out, out, 3)
        if width != out:
            conv(f"{name}.nin_shortcut", width, out, 1)

    width = VQ.widths[-1]
    conv("conv_in", VQ.z_channels, width, 3)
    block("mid.block_1", width, width)
    norm("mid.attn_1.norm", width)
    for part in ("q", "k", "v", "proj_out"):
        conv(f"mid.attn_1.{part}", width, width, 1)
    block("mid.block_2", width, width)
    for level in reversed(range(len(VQ.multipliers))):
        for number in range(3):
            block(f"up.{level}.block.{number}", width, VQ.widths[level])
            width = VQ.widths[level]
        if level:
            conv(f"up.{level}.upsample.conv", width, width, 3)
    norm("norm_out", width)
    conv("conv_out", width, 3, 3)
    return state


def write_sharded(folder: Path, state: State) -> Path:
    """Two shards and their index, as the hub has them."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(state)
    files = {
        name: f"model-0000{1 + (i >= len(names) // 2)}-of-00002.safetensors"
        for i, name in enumerate(names)
    }
    for file in set(files.values()):
        save_file(
            {name: state[name].contiguous() for name in names if files[name] == file}, folder / file
        )
    size = sum(value.numel() * value.element_size() for value in state.values())
    index = {"metadata": {"total_size": size}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def write_tokenizer(folder: Path, named: dict[str, int] | None = None) -> Path:
    """A tokenizer.json of a few words; like Chameleon's own, it puts <s> before a text unless it is
    asked not to.
    """
    words = models.WordLevel({**NAMED, **WORD_IDS, **(named or {})}, unk_token="<unk>")
    tokenizer = Tokenizer(words)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Split("x", "isolated")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 0)]
    )
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder / "tokenizer.json"


def checkpoint(folder: Path, shards: int | None = None) -> Path:
    """A whole folder: sharded model with its VQGAN, decoder included, and the tokenizer. shards:
    see `reference_model`; then norms have a row for each shard, as in Lumina-mGPT's own files.
    """
    model = reference_model(shards=shards)
    language = language_state(model)
    if shards is not None:
        norms = {
            name: value for name, value in language.items() if "q_norm" in name or "k_norm" in name
        }
        language |= {name: value[:: len(value) // shards].clone() for name, value in norms.items()}
    vq = {
        f"model.vqmodel.{name}": value
        for name, value in (encoder_state(model) | decoder_state()).items()
    }
    write_tokenizer(folder)
    return write_sharded(folder, language | vq)


@torch.inference_mode()
def image_logits(model: ChameleonForConditionalGeneration, rows: Sequence[Sequence[int]]) -> Tensor:
    """Logits [n, 8192] of the codes that follow these id lists, by transformers; positions count
    from 0.
    """
    length = max(map(len, rows))
    ids = torch.tensor([[*row, *[1] * (length - len(row))] for row in rows])
    hidden = model.model(input_ids=ids, position_ids=torch.arange(length)[None]).last_hidden_state
    last = hidden[torch.arange(len(rows)), torch.tensor([len(row) - 1 for row in rows])]
    return torch.as_tensor(last @ model.lm_head.weight[4:8196].T)


def guided_logits(
    model: ChameleonForConditionalGeneration,
    prompts: tuple[Sequence[int], Sequence[int]],
    images: Sequence[Sequence[int]],
    cols: int | None = None,
    cfg: float = 3.0,
) -> Tensor:
    """Guided logits [n, 8192] after images given as codes; `prompts`: conditional, unconditional.
    With `cols`, a token 8803 stands after each of so many codes.
    """
    ids = [
        [
            i
            for n, code in enumerate(image, 1)
            for i in ([code + 4, 8803] if cols and n % cols == 0 else [code + 4])
        ]
        for image in images
    ]
    conditional, unconditional = (
        image_logits(model, [[*prompt, *row] for row in ids]) for prompt in prompts
    )
    return unconditional + cfg * (conditional - unconditional)
