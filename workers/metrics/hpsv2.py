"""HPSv2 (Wu et al. 2023): a CLIP ViT-H/14 trained on human preferences; the cosine of image and caption, unscaled.

`metrics.hpsv2` is its file in open_clip's layout (`HPS_v2.1_compressed.pt`; the hash in the identity distinguishes v2.0
and v2.1). Captions are tokenized by CLIP's tokenizer, whose files are next to the checkpoint or in the folder
`metrics.clip`; every CLIP has the same one. LANTERN prints this number times 100 (23.2), ADT-Tree unscaled (0.236). The
published code uses half precision where it can; this one uses fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workers.metrics.clip_files import TOKENIZER_FILES, Clip, load_clip_tokenizer, load_open_clip
from workers.metrics.clip_score import KEY as CLIP_KEY
from workers.metrics.networks import ScoreContext, Scorer, register_score
from workers.models.checkpoint_files import WeightsError, content_hash

if TYPE_CHECKING:  # imported where it is used: the import takes seconds, and not every process loads a CLIP
    from transformers import CLIPConfig

KEY = "hpsv2"
START, STOP = 49406, 49407
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


def load_hpsv2(path: Path, tokenizer_folder: Path, config: CLIPConfig | None = None) -> Clip:
    """The model of a checkpoint; `config`: its sizes (default ViT-H/14).

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; the folder has no tokenizer.
    """
    from transformers import CLIPConfig

    sizes = config or CLIPConfig(**VIT_H_14)
    return load_open_clip(path, sizes, load_clip_tokenizer(tokenizer_folder, sizes))


def tokenizer_for(path: Path, weights: Mapping[str, str]) -> Path:
    """The folder with CLIP's tokenizer: the checkpoint's own, or that of `metrics.clip`.

    Raises:
        WeightsError: neither has one.
    """
    folders = [path.parent, *([Path(weights[CLIP_KEY]).expanduser()] if CLIP_KEY in weights else [])]
    for folder in folders:
        if any((folder / name).is_file() for name in TOKENIZER_FILES):
            return folder
    raise WeightsError(
        f"{path.parent}: CLIP's tokenizer is needed next to {path.name}; copy tokenizer.json, or vocab.json and "
        f"merges.txt, there, or give a CLIP's folder as metrics.{CLIP_KEY}"
    )


def _load(context: ScoreContext) -> Scorer:
    path = context.path(KEY)
    model = load_hpsv2(path, tokenizer_for(path, context.weights)).to(context.device)
    return Scorer(f"hpsv2@{content_hash(path)}", model.cosines)


register_score(
    "hpsv2",
    unit="cosine",
    about="HPSv2: predicted human preference, the unscaled cosine of its ViT-H/14 (some papers print it times 100)",
    load=_load,
    weights={KEY: "the file HPS_v2.1_compressed.pt"},
)
