"""How each piece of a model is made, by name: what `specfrontier train PIECE` runs.

Without `data` a piece is trained on procedural scenes, as the built-in one was; with it, on a user's folder of
captioned or class-labelled images (`workers.data.folder`). Pieces build on each other through the output folder: the
target needs its tokenizer, a drafter its target. For scenes, a missing piece is taken from the built-in model.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.data.folder import load_images, read_folder
from workers.data.scenes import IMAGE_SIZE
from workers.drafters.eagle import EagleLayer
from workers.drafters.medusa import MedusaHeads
from workers.models.families.conditioners import SceneConditioner, WordConditioner, build_conditioner, split_words
from workers.models.families.scenes import BUILTIN, INDEPENDENT, TARGET
from workers.models.vq import VQModel, load_vq
from workers.models.weights import content_hash, save
from workers.training.drafters import DistillConfig, new_eagle, new_medusa, train_drafter
from workers.training.loop import TrainConfig
from workers.training.parts import TokenSet, build_model, load_model
from workers.training.scene_nets import ClipTraining, FeatureTraining, train_clip, train_features
from workers.training.scene_set import scene_set
from workers.training.target import train_target
from workers.training.tokenizer import TokenizerConfig, scene_images, tokenize_scenes, train_tokenizer

#: Every piece, in the order of dependence.
PIECES: Mapping[str, str] = {
    "tokenizer": "VQ codec: images to tokens and back",
    "target": "the autoregressive model that speculative decoding speeds up",
    "eagle": "EAGLE drafter: one layer on the target's features",
    "medusa": "Medusa drafter: heads on the target's last feature",
    "independent": "independent drafter: a small autoregressive model of its own",
    "features": "feature net for distances between images (scenes only)",
    "clip": "tiny CLIP for the caption score (scenes only)",
}

SCENES, HELD_OUT = 34_000, 1_000  # scenes of seed 0 to train on, of seed 1 to measure on
MEDUSA_HEADS = 5
LONGEST_CAPTION = 32  # words

_TARGET = TrainConfig(steps=1850, decay=0.45, ema=0.99, weight_decay=0.02, warmup=80, save_every=250, log_every=25)
_DRAFTER = TrainConfig(steps=780, batch=16, other_lr=2e-3, decay=0.6, ema=0.98, warmup=30, save_every=100, log_every=25)
#: As the built-in pieces were trained, in phases: each starts from the averaged weights of the one before.
RECIPES: Mapping[str, tuple[TrainConfig, ...]] = {
    "target": (_TARGET,),
    "eagle": (_DRAFTER, replace(_DRAFTER, steps=2300, batch=8, matrix_lr=4e-3, ema=0.99)),
    "medusa": (replace(_DRAFTER, steps=1200, matrix_lr=4e-3),),
    "independent": (replace(_DRAFTER, steps=3600, batch=32, matrix_lr=4e-3, other_lr=3e-3),),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    piece: str
    out: Path
    data: Path | None
    seed: int
    device: str
    steps: int | None
    resume: bool
    tell: Callable[[str], None]

    def checkpoint(self, phase: int = 0) -> Path:
        return self.out / f"{self.piece}{f'-{phase + 1}' if phase else ''}.checkpoint.pt"

    def before(self, piece: str) -> Path:
        """The file of a piece that this one builds on."""
        own = self.out / f"{piece}.safetensors"
        if own.exists():
            return own
        if self.data is not None:
            raise ValueError(f"{self.piece} builds on {own}, which is missing: specfrontier train {piece} comes first")
        return BUILTIN / f"{piece}.safetensors"

    def phases(self) -> tuple[TrainConfig, ...]:
        """The recipe's; with `steps`, its first alone."""
        # Compiling takes about a minute: more than a short run saves.
        fast = can_compile(self.device) and (self.steps is None or self.steps >= 200)
        if self.steps is None:
            return tuple(replace(config, seed=self.seed, compile=fast) for config in RECIPES[self.piece])
        first = RECIPES[self.piece][0]
        rise = min(first.warmup, max(1, self.steps // 10))
        return (replace(first, steps=self.steps, warmup=rise, seed=self.seed, compile=fast),)


def train_piece(
    piece: str,
    out: Path,
    data: Path | None = None,
    *,
    seed: int = 0,
    device: str | None = None,
    steps: int | None = None,
    resume: bool = False,
    tell: Callable[[str], None] = print,
) -> Path:
    """Trains one of `PIECES` into the folder `out`; returns its weight file.

    Args:
        data: the user's images; None: procedural scenes.
        device: None takes a GPU if torch can use one.
        steps: None takes the recipe's.
        resume: go on from the checkpoint in `out`, if there is one; otherwise start anew.

    Raises:
        ValueError: an unknown piece, a piece missing that this one builds on, or data that cannot be read.
    """
    if piece not in PIECES:
        raise ValueError(f"unknown piece {piece!r}; known: {', '.join(PIECES)}")
    if steps is not None and steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    job = _Job(piece=piece, out=out, data=data, seed=seed, device=place, steps=steps, resume=resume, tell=tell)
    out.mkdir(parents=True, exist_ok=True)
    if not resume:
        for stale in out.glob(f"{piece}*.checkpoint.pt"):
            stale.unlink()
    if piece in ("features", "clip"):
        return _scene_net(job)
    if piece == "tokenizer":
        return _tokenizer(job)
    return _drafter(job) if piece in ("eagle", "medusa") else _ar_model(job)


def can_compile(device: str) -> bool:
    """Whether torch.compile can work here: it needs a C++ compiler for CPU code, and Triton for a GPU's."""
    if device.startswith("cuda"):
        return torch.utils._triton.has_triton()
    return shutil.which("g++") is not None or shutil.which("clang++") is not None


def _scene_net(job: _Job) -> Path:
    if job.data is not None:
        raise ValueError(f"{job.piece} reads the attributes of procedural scenes, not {job.data}; leave --data out")
    if job.piece == "features":
        features = FeatureTraining()
        features = replace(features, steps=job.steps or features.steps)
        return train_features(features, scene_set(0, 20_000, report=job.tell), job.out, job.seed, log=job.tell)
    clip = ClipTraining()
    clip = replace(clip, steps=job.steps or clip.steps)
    return train_clip(clip, scene_set(0, 20_000, report=job.tell), job.out, job.seed, log=job.tell)


def _tokenizer(job: _Job) -> Path:
    config = TokenizerConfig()
    config = replace(config, steps=job.steps or config.steps)
    if job.data is None:
        source = scene_images(0, 32, 80_000, device=job.device)
    else:
        images = load_images(read_folder(job.data).paths, IMAGE_SIZE)

        def source(step: int) -> Tensor:
            generator = torch.Generator().manual_seed(job.seed * 1_000_003 + step)
            return images[torch.randint(len(images), (min(32, len(images)),), generator=generator)].float() / 255

    return train_tokenizer(config, source, job.out, job.seed, device=job.device, report=job.tell)


def _ar_model(job: _Job) -> Path:
    """A target, or the same in small: an independent drafter."""
    settings, data, held_out = _tokens(job)
    sizes = TARGET if job.piece == "target" else INDEPENDENT
    body = replace(sizes, prompt_len=data.codes.shape[1], vocab_size=_codes_of(job))
    name = "scenes" if job.data is None else job.data.resolve().name
    (config,) = job.phases()
    train_target(
        build_model(body, settings, job.seed).to(job.device), data, held_out, config, job.out, name=name,
        piece=job.piece, resume=job.resume and job.checkpoint().exists(), log=job.tell,
    )  # fmt: skip
    return job.out / f"{job.piece}.safetensors"


def _drafter(job: _Job) -> Path:
    """A drafter that reads the target's features."""
    _, data, _ = _tokens(job)
    target = load_model(job.before("target")).to(job.device)
    path, body = job.out / f"{job.piece}.safetensors", target.transformer.config
    drafter: EagleLayer | MedusaHeads
    if job.piece == "eagle":
        drafter = new_eagle(target, job.seed)
        header: dict[str, Any] = {"transformer": asdict(drafter.decoder.config)}
    else:
        drafter = new_medusa(target, MEDUSA_HEADS, shared_head=False)
        header = {"dim": body.dim, "vocab_size": body.vocab_size, "heads": MEDUSA_HEADS, "shared_head": False}

    def save_to(average: nn.Module) -> None:
        save(path, average, header)

    for phase, config in enumerate(job.phases()):
        checkpoint = job.checkpoint(phase)
        average, _ = train_drafter(
            drafter, target, data, config, DistillConfig(), name=job.piece, save_to=save_to, checkpoint=checkpoint,
            resume=job.resume and checkpoint.exists(), log=job.tell,
        )  # fmt: skip
        drafter.load_state_dict(average.state_dict())
    return path


def _codes_of(job: _Job) -> int:
    return load_vq(job.before("tokenizer")).config.codebook_size


def _tokens(job: _Job) -> tuple[Mapping[str, Any], TokenSet, TokenSet]:
    """The conditioner's settings, training and held-out examples; scenes' tokens are kept in the output folder."""
    tokenizer = job.before("tokenizer")
    codec = load_vq(tokenizer).to(job.device)
    cache = job.out / f"tokens-{content_hash(tokenizer)}-{'scenes' if job.data is None else 'folder'}.pt"
    settings: Mapping[str, Any]
    if job.data is None:
        if not cache.exists():
            job.tell(f"turning {SCENES + HELD_OUT} scenes into tokens (once, kept in {cache.name})")
            parts = [tokenize_scenes(codec, seed, range(count)) for seed, count in ((0, SCENES), (1, HELD_OUT))]
            torch.save({name: torch.cat([part[name] for part in parts]) for name in parts[0]}, cache)
        kept = torch.load(cache, weights_only=True)
        codes = SceneConditioner(1).from_attributes(kept["attributes"])
        whole, settings, held = TokenSet(kept["tokens"], codes), SceneConditioner(1).settings(), HELD_OUT
    else:
        whole, settings = _folder_tokens(job.data, codec, job.device)
        held = max(1, len(whole) // 20)
    whole = whole.to(job.device)
    if len(whole) <= held:
        raise ValueError(f"{job.data}: {len(whole)} image is too few; training needs at least 2")
    train, rest = ((whole.tokens[part], whole.codes[part]) for part in (slice(None, -held), slice(-held, None)))
    return settings, TokenSet(*train), TokenSet(*rest)


def _folder_tokens(data: Path, codec: VQModel, device: str) -> tuple[TokenSet, Mapping[str, Any]]:
    """Tokens of a user's images in a fixed shuffled order and how to read their captions."""
    folder = read_folder(data)
    order = torch.randperm(len(folder), generator=torch.Generator().manual_seed(0)).tolist()
    captions = [folder.captions[i] for i in order]
    images = load_images([folder.paths[i] for i in order], IMAGE_SIZE)
    settings: dict[str, Any]
    if folder.labels == "classes":
        settings = {"kind": "classes", "names": sorted(set(captions))}
    else:
        words = [split_words(caption) for caption in captions]
        captions = [" ".join(found[:LONGEST_CAPTION]) for found in words]
        length = min(LONGEST_CAPTION, max(len(found) for found in words))
        known = sorted({word for found in words for word in found})
        settings = {"kind": WordConditioner.kind, "words": known, "length": length}
    codes = build_conditioner(settings, 1).codes(captions)
    with torch.no_grad():
        chunks = [codec.encode(part.to(device).float() / 127.5 - 1).flatten(1).cpu() for part in images.split(64)]  # type: ignore[no-untyped-call]
    return TokenSet(torch.cat(chunks), codes), settings
