"""The training recipe of each component of a model: what `python -m recipes COMPONENT` runs.

Without `data` a component is trained on procedural scenes, like the built-in model; with `data`, on
a folder of captioned or class-labelled images (`workers.data.captioned_images`). The components
that a component needs are read from the output folder: a target needs its tokenizer, a drafter its
target. For scenes, the built-in model replaces a missing one.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from recipes import COMPONENTS, SCENES_ONLY
from recipes.distillation import GuidedDistillation, guided_loss
from recipes.optimisers import CosineConfig, MuonConfig, OneCycleConfig
from recipes.scene_nets import train_clip, train_features
from recipes.scene_set import scene_set
from recipes.target import load_model, train_target
from recipes.tokenizer import scene_images, tokenize_images, tokenize_scenes, train_tokenizer
from workers.data.captioned_images import CaptionedImages, read_folder
from workers.data.captions import scene_captions
from workers.data.image_folder import load_images
from workers.data.storage import Storage
from workers.models.checkpoint_files import content_hash
from workers.models.families.conditioners import (
    NGramConditioner,
    SceneConditioner,
    WordConditioner,
    build_conditioner,
    split_words,
)
from workers.models.families.scenes import BUILTIN, ARModel
from workers.models.transformer import TransformerConfig
from workers.models.vertical import VerticalBranch
from workers.models.vq import VQModel, load_vq
from workers.scenes.images import IMAGE_SIZE
from workers.training.drafters import build_model
from workers.training.examples import Examples
from workers.training.job import new_drafter, train_drafter
from workers.training.loop import TrainConfig
from workers.training.vertical import VerticalTraining, vertical_loss

_SCENES, _HELD_OUT = 34_000, 1_000  # scenes of seed 0 to train on, of seed 1 to evaluate on
_SCENE_RANGES = ((0, _SCENES), (1, _HELD_OUT))
_MAX_HELD_OUT = 128  # held-out examples that a drafter is evaluated on at every save
# for the codec, and for the networks of the metrics
_TOKENIZER_SCENES, _NET_SCENES = 80_000, 20_000
# Of captions: words, and embeddings that the words' n-grams share. Larger tables cost memory, in
# smaller ones words that have nothing in common share more.
_MAX_WORDS, _BUCKETS = 32, 8192

# Epochs from one save to the next, and steps at least: a model of a user's few images is best after
# some epochs, and the best of those saved is kept.
_SAVE_EPOCHS, _MIN_SAVE_EVERY = 4, 25

_CODES, _GRID = 1024, 12
_HEADS = {
    "head_dim": 32,
    "rope": "grid",
    "prompt_rope": "identity",
    "prompt_len": 12,
    "rows": _GRID,
    "cols": _GRID,
}
#: The built-in target: deep and narrow, because on a CPU at batch 1 a layer's time hardly depends
#: on its width.
TARGET = TransformerConfig(
    dim=160,
    n_layers=14,
    n_heads=5,
    ffn_dim=448,
    vocab_size=_CODES,
    **_HEADS,  # type: ignore[arg-type]
)
INDEPENDENT = TransformerConfig(
    dim=128,
    n_layers=2,
    n_heads=4,
    ffn_dim=352,
    vocab_size=_CODES,
    **_HEADS,  # type: ignore[arg-type]
)

_DRAFTER = MuonConfig(
    steps=780, batch=16, rate=2e-3, decay=0.6, ema=0.98, warmup=30, save_every=100, log_every=25
)
#: Recipes by component. A recipe may have several phases; each starts from the averaged weights of
#: the phase before.
_RECIPES: Mapping[str, tuple[TrainConfig, ...]] = {
    "tokenizer": (
        CosineConfig(
            steps=1450,
            rate=2e-3,
            betas=(0.9, 0.98),
            weight_decay=1e-4,
            warmup=60,
            ema=0.0,
            save_every=250,
        ),
    ),
    "target": (
        MuonConfig(
            steps=1850,
            decay=0.45,
            ema=0.99,
            weight_decay=0.02,
            warmup=80,
            save_every=250,
            log_every=25,
        ),
    ),
    "eagle": (_DRAFTER, replace(_DRAFTER, steps=2300, batch=8, matrix_lr=4e-3, ema=0.99)),
    "eagle3": (replace(_DRAFTER, steps=500, batch=8, matrix_lr=4e-3),),
    "medusa": (replace(_DRAFTER, steps=1200, matrix_lr=4e-3),),
    "independent": (replace(_DRAFTER, steps=3600, batch=32, matrix_lr=4e-3, rate=3e-3),),
    "vertical": (replace(_DRAFTER, steps=560, batch=8, save_every=280),),
    "features": (
        OneCycleConfig(
            steps=1200,
            batch=128,
            rate=4e-3,
            betas=(0.9, 0.999),
            weight_decay=0.02,
            rise=0.15,
            clip=0.0,
            ema=0.0,
            save_every=250,
        ),
    ),
    "clip": (
        OneCycleConfig(
            steps=900,
            batch=128,
            rate=2.5e-3,
            betas=(0.9, 0.98),
            weight_decay=0.02,
            rise=0.1,
            ema=0.0,
            save_every=250,
        ),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    component: str
    out: Path
    data: Path | None
    seed: int
    device: str
    steps: int | None
    resume: bool
    log: Callable[[str], None]
    recipe_of: str | None = None

    @property
    def weights(self) -> Path:
        """The file that is trained."""
        return self.out / f"{self.component}.safetensors"

    def remove_earlier(self) -> None:
        """Removes the weights of an earlier training, which may be better than the first ones of
        this, unless this one continues it.
        """
        is_resumed = self.resume and (self.out / f"{self.component}.checkpoint.pt").exists()
        if not is_resumed:
            self.weights.unlink(missing_ok=True)

    def component_file(self, component: str) -> Path:
        """The file of a component that this one needs."""
        own = self.out / f"{component}.safetensors"
        if own.exists():
            return own
        if self.data is not None:
            problem = f"{self.component} needs it: run python -m recipes {component} first"
            raise ValueError(f"{own}: no such file; {problem}")
        return BUILTIN / f"{component}.safetensors"

    def phases(self) -> tuple[TrainConfig, ...]:
        """The phases of the recipe; with `steps`, only the first one, with that many steps."""
        # compiling takes about a minute, which is more than it saves in a short run
        recipe = _RECIPES[self.recipe_of or self.component]
        compiled = _can_compile(self.device) and (self.steps is None or self.steps >= 200)
        if self.steps is None:
            return tuple(replace(config, seed=self.seed, compile=compiled) for config in recipe)
        first = recipe[0]
        warmup = (
            min(first.warmup, max(1, self.steps // 10))
            if isinstance(first, MuonConfig)
            else first.warmup
        )
        return (replace(first, steps=self.steps, warmup=warmup, seed=self.seed, compile=compiled),)


def train_component(
    component: str,
    out: Path,
    data: Path | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
    steps: int | None = None,
    recipe_of: str | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains one of `COMPONENTS` into the folder `out`; returns its weight file.

    Args:
        data: the user's images; None: procedural scenes.
        device: None: a GPU if torch can use one.
        steps: None: the recipe's.
        recipe_of: the component whose recipe is used; None: its own.
        resume: continue from the checkpoint in `out` if there is one.

    Raises:
        ValueError: an unknown component, a missing component that this one needs, or data that
            cannot be read.
    """
    if component not in COMPONENTS:
        raise ValueError(f"unknown component {component!r}; known: {', '.join(COMPONENTS)}")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    job = _Job(
        component=component, out=out, data=data, seed=seed, device=device, steps=steps,
        recipe_of=recipe_of, resume=resume, log=log,
    )  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        for stale in out.glob(f"{component}*.checkpoint.pt"):
            stale.unlink()
    if component in SCENES_ONLY:
        return _scene_net(job)
    if component == "tokenizer":
        return _tokenizer(job)
    return _ar_model(job) if component in ("target", "independent") else _drafter(job)


def _can_compile(device: str) -> bool:
    """Whether torch.compile works here: it needs a C++ compiler for CPU code, and Triton for GPU
    code.
    """
    if device.startswith("cuda"):
        return torch.utils._triton.has_triton()
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


def _scene_net(job: _Job) -> Path:
    if job.data is not None:
        raise ValueError(
            f"{job.component} reads the attributes of procedural scenes, not {job.data}; omit "
            "--data"
        )
    (config,) = job.phases()
    train = train_features if job.component == "features" else train_clip
    return train(
        scene_set(0, _NET_SCENES, log=job.log), config, job.out, resume=job.resume, log=job.log
    )


def _tokenizer(job: _Job) -> Path:
    source, size = scene_images(0, device=job.device), _TOKENIZER_SCENES
    if job.data is not None:
        images = load_images(_read_folder(job.data, job.log).paths, IMAGE_SIZE)
        source, size = (lambda indices: images[indices].float() / 255), len(images)
    (config,) = job.phases()
    return train_tokenizer(
        source, size, config, job.out, device=job.device, resume=job.resume, log=job.log
    )


def _ar_model(job: _Job) -> Path:
    """Trains a target, or an independent drafter, which is a smaller model of the same kind."""
    settings, data, held_out = _examples(job)
    sizes = TARGET if job.component == "target" else INDEPENDENT
    prompt_len = build_conditioner(settings, 1).prompt_len
    codes = load_vq(job.component_file("tokenizer")).config.codebook_size
    body = replace(sizes, prompt_len=prompt_len, vocab_size=codes)
    name = "scenes" if job.data is None else job.out.resolve().name
    (config,) = job.phases()
    if job.data is not None:
        epoch = -(-len(data) // config.batch)
        often = max(_MIN_SAVE_EVERY, _SAVE_EPOCHS * epoch)
        config = replace(config, save_every=min(config.save_every, often))
    job.remove_earlier()
    train_target(
        build_model(body, settings, job.seed).to(job.device),
        data,
        held_out,
        config,
        job.out,
        name=name,
        component=job.component,
        resume=job.resume,
        log=job.log,
    )
    return job.weights


def _drafter(job: _Job) -> Path:
    """Trains a drafter that reads the target's features."""
    _, data, held_out = _examples(job)
    held_out = held_out.split(min(_MAX_HELD_OUT, len(held_out)))[1]
    target = load_model(job.component_file("target")).to(job.device).as_target()
    target.requires_grad_(False)
    drafter = new_drafter(job.component, target, job.seed)
    assert not isinstance(drafter, ARModel)
    job.remove_earlier()
    recipe = VerticalTraining() if isinstance(drafter, VerticalBranch) else GuidedDistillation()
    for phase, config in enumerate(job.phases()):
        if isinstance(drafter, VerticalBranch):
            assert isinstance(recipe, VerticalTraining)
            loss = vertical_loss(target, drafter, data, recipe)
        else:
            assert isinstance(recipe, GuidedDistillation)
            loss = guided_loss(target, drafter, data, recipe, compiled=config.compile)
        average = train_drafter(
            target,
            drafter,
            loss,
            (data, held_out),
            config,
            job.out,
            facts=asdict(recipe),
            resume=job.resume,
            name=f"{job.component}-{phase + 1}" if phase else None,
            log=job.log,
        )
        drafter.load_state_dict(average.state_dict())
    return job.weights


def _examples(job: _Job) -> tuple[Mapping[str, Any], Examples, Examples]:
    """The conditioner's settings, training examples and held-out examples. Tokens of scenes are
    cached in the output folder.
    """
    tokenizer = job.component_file("tokenizer")
    codec = load_vq(tokenizer).to(job.device)
    if job.data is None:
        cache = job.out / f"tokens-{content_hash(tokenizer)}-scenes.pt"
        if not cache.exists():
            job.log(f"encoding {_SCENES + _HELD_OUT} scenes as tokens (once, kept in {cache.name})")
            parts = [
                tokenize_scenes(codec, seed, range(count)).tokens for seed, count in _SCENE_RANGES
            ]
            torch.save(torch.cat(parts), buffer := io.BytesIO())
            Storage(job.out).write(cache.name, buffer.getvalue())
        captions = [
            caption.text for seed, count in _SCENE_RANGES for caption in scene_captions(count, seed)
        ]
        examples, held_out = Examples(captions, torch.load(cache, weights_only=True)).split(
            _HELD_OUT
        )
        return {"kind": SceneConditioner.kind}, examples, held_out
    settings, examples = _folder_examples(_read_folder(job.data, job.log), codec)
    if len(examples) < 2:
        raise ValueError(f"{job.data}: {len(examples)} image is too few; training needs at least 2")
    return settings, *examples.split(max(1, len(examples) // 20))


def _read_folder(data: Path, log: Callable[[str], None]) -> CaptionedImages:
    """A user's images. Logs how many there are, their classes, and what is left out."""
    folder = read_folder(data)
    notes = f"; {folder.notes}" if folder.notes else ""
    log(f"{data}: {len(folder)} images{notes}")
    return folder


def _conditioner_settings(folder: CaptionedImages) -> Mapping[str, Any]:
    """How captions are read: classes by their words, of which others are refused; texts by the
    n-grams of their words, so that new words can be read, too.
    """
    words = [split_words(caption) for caption in folder.captions]
    length = max(map(len, words))
    if folder.are_classes:
        vocabulary = sorted({word for found in words for word in found})
        return {"kind": WordConditioner.kind, "words": vocabulary, "length": length}
    length = min(length, _MAX_WORDS)
    return {"kind": NGramConditioner.kind, "buckets": _BUCKETS, "length": length}


def _folder_examples(folder: CaptionedImages, codec: VQModel) -> tuple[Mapping[str, Any], Examples]:
    """The conditioner's settings for a user's captions, and the examples in a fixed shuffled
    order.

    Raises:
        ValueError: a caption without words, or an image that cannot be read.
    """
    order = torch.randperm(len(folder), generator=torch.Generator().manual_seed(0)).tolist()
    captions = [folder.captions[i] for i in order]
    settings = _conditioner_settings(folder)
    build_conditioner(settings, 1).check(captions)
    return settings, Examples(captions, tokenize_images(codec, [folder.paths[i] for i in order]))
