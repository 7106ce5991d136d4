"""HPSv2 (Wu et al. 2023): a CLIP ViT-H/14 trained on people's choices; the plain cosine of image and caption, x1.

`metrics.hpsv2` is its file in open_clip's layout (`HPS_v2.1_compressed.pt`; the identity tells v2.0 and v2.1 apart by
their hash). Captions are read by CLIP's tokenizer, whose files lie beside the checkpoint or in the folder of
`metrics.clip`: it is the same for all of them. LANTERN prints this number times 100 (23.2), ADT-Tree as it is (0.236).
The published code runs it in half precision where it can; here it is fp32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from workers.metrics.clip_files import TOKENIZER_FILES, Clip, combined_hash, load_clip_tokenizer, load_open_clip
from workers.metrics.clip_score import KEY as CLIP_KEY
from workers.metrics.estimate import Estimate, MetricUnavailable, grouped_mean
from workers.metrics.metric import Metric, MetricInputs, ScoreContext, Scorer, ScorerFactory
from workers.metrics.pixels import squares
from workers.models.checkpoint_files import WeightsError

if TYPE_CHECKING:  # imported where it is used: it takes seconds, and not every process loads one
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
        "hidden_act": "gelu",  # not OpenAI's quick one
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
        WeightsError: the file is missing, damaged, or of another model or size; no tokenizer in the folder.
    """
    from transformers import CLIPConfig

    sizes = config or CLIPConfig(**VIT_H_14)
    return load_open_clip(path, sizes, load_clip_tokenizer(tokenizer_folder, sizes))


def tokenizer_for(path: Path, weights: Mapping[str, str]) -> Path:
    """The folder with CLIP's tokenizer: the checkpoint's own, or that of `metrics.clip`.

    Raises:
        WeightsError: neither has one.
    """
    places = [path.parent, *([Path(weights[CLIP_KEY]).expanduser()] if CLIP_KEY in weights else [])]
    for place in places:
        if any((place / name).is_file() for name in TOKENIZER_FILES):
            return place
    raise WeightsError(
        f"{path.parent}: CLIP's tokenizer is needed beside {path.name}; copy tokenizer.json, or vocab.json and "
        f"merges.txt, there, or give a CLIP's folder as metrics.{CLIP_KEY}"
    )


def _load_score(subject: ScoreContext) -> Scorer:
    if KEY not in subject.weights:
        raise MetricUnavailable(f"no weights are given for it: metrics.{KEY}, the file HPS_v2.1_compressed.pt")
    path = Path(subject.weights[KEY]).expanduser()
    folder = tokenizer_for(path, subject.weights)
    model = load_hpsv2(path, folder).to(subject.device)

    def read(images: Tensor, captions: Sequence[str], features: Tensor | None) -> Tensor:
        return model.cosines(squares(images, None), captions)

    return Scorer(f"hpsv2@{combined_hash([path])}", read)


def _compute(evidence: MetricInputs) -> Estimate:
    return grouped_mean(evidence.column("score.hpsv2"), evidence.column("caption_id"))


SCORERS = (ScorerFactory(name="hpsv2", load=_load_score, takes=(KEY,)),)
METRICS = (
    Metric(
        name="hpsv2",
        direction="maximize",
        unit="cosine",
        about="HPSv2: how people would choose, the cosine of its ViT-H/14 as it is (some papers print it times 100)",
        needs=("score.hpsv2",),
        compute=_compute,
    ),
)
