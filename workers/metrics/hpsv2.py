"""HPSv2 (Wu et al. 2023): a CLIP ViT-H/14 trained on human preferences; the cosine of image and
caption, unscaled.

`metrics.hpsv2` is its file in open_clip's layout (`HPS_v2.1_compressed.pt`; the hash in the
identity distinguishes v2.0 and v2.1). Captions are tokenized by CLIP's tokenizer, whose files are
next to the checkpoint or in the folder `metrics.clip`; every CLIP has the same one. LANTERN prints
this number times 100 (23.2), ADT-Tree unscaled (0.236). The published code uses half precision
where it can; this one uses fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workers.metrics.clip_files import TOKENIZER_FILES, Clip, load_clip_tokenizer
from workers.metrics.clip_score import KEY as CLIP_KEY
from workers.metrics.networks import ScoreContext, Scorer, load_frozen, register_score
from workers.models.checkpoint_files import WeightsError, content_hash
from workers.models.weights import KeyMapping

# imported where it is used: the import takes seconds, and not every process loads a CLIP
if TYPE_CHECKING:
    from transformers import CLIPConfig

KEY = "hpsv2"
START = 49406
STOP = 49407
VIT_H_14: dict[str, Any] = {
    "text_config": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "vocab_size": 49408,
        "max_position_embeddings": 77,
        "hidden_act": "gelu",  # not OpenAI's quick_gelu
        "bos_token_id": START,
        "eos_token_id": STOP,
        "pad_token_id": STOP,
    },
    "vision_config": {
        "hidden_size": 1280,
        "intermediate_size": 5120,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "gelu",
    },
    "projection_dim": 1024,
}


def _transpose(parts: Sequence[Tensor]) -> Tensor:
    """open_clip multiplies from the right, so its projections are stored transposed."""
    return parts[0].T


def _open_clip_block(source: str, target: str) -> tuple[KeyMapping, ...]:
    """One transformer layer {i} of open_clip, whose joint projection `_split_qkv` has cut into
    three.
    """
    names = {"attn.out_proj": "self_attn.out_proj", "ln_1": "layer_norm1", "ln_2": "layer_norm2"}
    names |= {f"attn.{part}_proj": f"self_attn.{part}_proj" for part in "qkv"}
    names |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    return tuple(
        KeyMapping(f"{source}.{{i}}.{a}.{{...}}", f"{target}.{{i}}.{b}.{{...}}")
        for a, b in names.items()
    )


_OPEN_CLIP_TABLE = (
    KeyMapping("logit_scale", "logit_scale"),
    KeyMapping("attn_mask", None),  # a constant that older files hold
    KeyMapping("token_embedding.weight", "text_model.embeddings.token_embedding.weight"),
    KeyMapping("positional_embedding", "text_model.embeddings.position_embedding.weight"),
    KeyMapping("text_projection", "text_projection.weight", _transpose),
    KeyMapping("ln_final.{...}", "text_model.final_layer_norm.{...}"),
    KeyMapping("visual.class_embedding", "vision_model.embeddings.class_embedding"),
    KeyMapping("visual.positional_embedding", "vision_model.embeddings.position_embedding.weight"),
    KeyMapping("visual.conv1.weight", "vision_model.embeddings.patch_embedding.weight"),
    KeyMapping("visual.ln_pre.{...}", "vision_model.pre_layrnorm.{...}"),
    KeyMapping("visual.ln_post.{...}", "vision_model.post_layernorm.{...}"),
    KeyMapping("visual.proj", "visual_projection.weight", _transpose),
    *_open_clip_block("visual.transformer.resblocks", "vision_model.encoder.layers"),
    *_open_clip_block("transformer.resblocks", "text_model.encoder.layers"),
)


def load_hpsv2(path: Path, tokenizer_folder: Path, config: CLIPConfig | None = None) -> Clip:
    """The model of a checkpoint; `config`: its sizes (default ViT-H/14).

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; the folder has no
            tokenizer.
    """
    from transformers import CLIPConfig

    sizes = config or CLIPConfig(**VIT_H_14)
    tokenizer = load_clip_tokenizer(tokenizer_folder, sizes)
    return load_frozen(
        lambda: Clip(sizes, tokenizer), path, _OPEN_CLIP_TABLE, part="clip", split=_split_qkv
    )


def _split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """open_clip keeps query, key and value in one matrix: split it into three with their own
    names.
    """
    result: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        stem, joint, suffix = name.partition("attn.in_proj_")
        if not joint:
            result[name] = tensor
            continue
        for letter, weight in zip("qkv", tensor.chunk(3), strict=True):
            result[f"{stem}attn.{letter}_proj.{suffix}"] = weight
    return result


def tokenizer_for(path: Path, weights: Mapping[str, str]) -> Path:
    """The folder with CLIP's tokenizer: the checkpoint's own, or that of `metrics.clip`.

    Raises:
        WeightsError: neither has one.
    """
    folders = [
        path.parent,
        *([Path(weights[CLIP_KEY]).expanduser()] if CLIP_KEY in weights else []),
    ]
    for folder in folders:
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            return folder
    raise WeightsError(
        f"{path.parent}: CLIP's tokenizer is needed next to {path.name}; copy tokenizer.json, or "
        f"vocab.json and merges.txt, there, or give a CLIP's folder as metrics.{CLIP_KEY}"
    )


def _load(context: ScoreContext) -> Scorer:
    path = context.path(KEY)
    model = load_hpsv2(path, tokenizer_for(path, context.weights)).to(context.device)
    return Scorer(f"hpsv2@{content_hash(path)}", model.cosines)


register_score(
    "hpsv2",
    unit="cosine",
    about=(
        "HPSv2: predicted human preference, the unscaled cosine of its ViT-H/14 (some papers print "
        "it times 100)"
    ),
    load=_load,
    weights={KEY: "the file HPS_v2.1_compressed.pt"},
)
