"""Training of drafters with held-out metrics, and `DrafterJob`: the training of a drafter for a
user's target.

The weights with the best held-out top-3 accuracy are kept.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from search_spaces.trial import Sampling
from workers.data.captions import Caption, captions_hash
from workers.data.shards import digest
from workers.data.storage import Storage
from workers.drafters.eagle import EagleLayer
from workers.drafters.eagle3 import Eagle3Layer
from workers.drafters.medusa import MedusaHeads
from workers.loading.models_yaml import Entry, load_entry
from workers.models.families.scenes import ARModel
from workers.models.own_files import read_config, save
from workers.models.target import Target
from workers.models.vertical import VerticalBranch
from workers.training.drafters import (
    Distillation,
    Drafter,
    ar_loss,
    drafter_loss,
    evaluate_drafter,
    frequent_codes,
    header,
    independent_conditioner,
    new_eagle,
    new_eagle3,
    new_independent,
    new_medusa,
)
from workers.training.examples import Examples, sample_images
from workers.training.loop import Figures, LossFunction, ProcessGroup, TrainConfig, train
from workers.training.vertical import VerticalTraining, new_vertical, vertical_loss

IMAGES = "images"  # folder with the tokens of the generated images
MEDUSA_HEADS = 5
# Published settings that differ from EAGLE's, by kind of drafter.
_PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "eagle3": {"cross_entropy": 1.0, "noise": 0.0, "rate": 5e-5, "warmup": 12_000},
    "medusa": {"rate": 1e-3},
    "independent": {"rate": 1e-3},
    "vertical": {"rate": 1e-3},
}
_BEST = "top-3"  # the held-out metric that decides which weights are kept
_MAX_HELD_OUT = 512  # examples; each needs two passes of the target at every save

AnyDrafter = Drafter | VerticalBranch | ARModel


def kind_of(drafter: AnyDrafter) -> str:
    """The drafter's kind, which begins the names of its files."""
    kinds: dict[type, str] = {
        EagleLayer: "eagle",
        Eagle3Layer: "eagle3",
        MedusaHeads: "medusa",
        VerticalBranch: "vertical",
    }
    return kinds.get(type(drafter), "independent")


def new_drafter(kind: str, target: Target, seed: int, ids: Tensor | None = None) -> AnyDrafter:
    """An untrained drafter for a target. `ids` are the codes that an EAGLE-3 layer drafts; None:
    all.

    Raises:
        ValueError: the target cannot have an independent drafter.
    """
    match kind:
        case "eagle":
            return new_eagle(target, seed)
        case "eagle3":
            return new_eagle3(target, seed, ids)
        case "medusa":
            return new_medusa(target, MEDUSA_HEADS)
        case "vertical":
            return new_vertical(target, seed)
    return new_independent(target, seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterRecipe(Distillation):
    """The settings of a training. The defaults are EAGLE's published ones."""

    batch: int = 16
    epochs: int = 20
    steps: int | None = None  # None: `epochs` passes over the examples
    rate: float = 1e-4  # the peak learning rate
    warmup: int = 2000  # steps
    clip_value: float = 0.5  # bound of each entry of the gradients
    # The codes that an EAGLE-3 layer drafts, the most frequent ones of the training images; None:
    # all.
    draft_vocab: int | None = None
    held_out: float = 0.05  # fraction of the examples
    save_every: int = 1000  # steps
    seed: int = 0

    @classmethod
    def of(cls, kind: str, **settings: Any) -> Self:
        """The published settings of a kind of drafter, with some replaced."""
        return cls(**{**_PUBLISHED.get(kind, {}), **settings})

    def split(self, examples: int) -> int:
        """The number of held-out examples; they are the last ones.

        Raises:
            ValueError: too few to train and to evaluate on.
        """
        held = max(1, round(self.held_out * examples))
        if examples - held < 1:
            raise ValueError(
                f"{examples} captions are too few to train and evaluate a drafter: give at least 2"
            )
        return held

    def schedule(self, examples: int) -> TrainConfig:
        """The training settings for this many examples: AdamW, linear decay, and a linear warm-up
        of at most a tenth of the steps.
        """
        steps = self.steps or max(1, self.epochs * examples // self.batch)
        return TrainConfig(
            steps=steps,
            batch=self.batch,
            rate=self.rate,
            warmup=min(self.warmup, steps // 10),
            decay=1.0,
            clip=0.0,
            clip_value=self.clip_value,
            ema=0.0,
            seed=self.seed,
            save_every=self.save_every,
            log_every=min(50, self.save_every),
        )


def train_drafter(
    target: Target,
    drafter: AnyDrafter,
    loss: LossFunction,
    data: tuple[Examples, Examples],
    config: TrainConfig,
    out: Path,
    *,
    facts: Mapping[str, Any],
    name: str | None = None,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> AnyDrafter:
    """Trains a drafter with held-out metrics; returns the averaged drafter.

    The weights with the best held-out top-3 accuracy are written to out/<kind>.safetensors, unless
    the file's own accuracy is better. In a process group, all processes call this with the same
    arguments.

    Args:
        target: the target.
        drafter: the drafter.
        loss: its loss on examples.
        data: the examples to train on, and those to evaluate on.
        config: the hyperparameters.
        out: a folder that all processes of a group see.
        facts: plain data for the header of the weight file.
        name: checkpoint and journal are written to out/<name>.*; None: the kind.
        resume: continue from the checkpoint if there is one.
        log: gets lines about the progress.

    Raises:
        ValueError: no examples; a batch that the processes cannot share; a loss that is not finite.
    """
    group = ProcessGroup.current()
    group.share(config.batch)
    weights = out / f"{kind_of(drafter)}.safetensors"
    scales = tuple(dict.fromkeys((1.0, target.sampling.cfg)))

    def on_save(current: AnyDrafter) -> Figures:
        evaluated, own = _evaluated(target, current)
        figures = evaluate_drafter(target, evaluated, data[1], scales=scales, batch=config.batch)
        best = 0.0
        if weights.exists():
            best = read_config(weights).get("held_out", {}).get(_BEST, best)
        if figures[_BEST] >= best:
            save(weights, current, {**own, "recipe": dict(facts), "held_out": figures})
        return figures

    average, _ = train(
        drafter, loss, len(data[0]), config, out, name=name or kind_of(drafter), on_save=on_save,
        resume=resume, log=log,
    )  # fmt: skip
    if group.is_main and not weights.exists():  # resumed when it had finished
        on_save(average)
    return average


def _evaluated(
    target: Target, drafter: AnyDrafter
) -> tuple[Drafter | VerticalBranch | Target, dict[str, Any]]:
    """The form in which a drafter is evaluated, and the config in its file's header."""
    if isinstance(drafter, ARModel):
        return drafter.as_target(), drafter.settings()
    return drafter, header(target, drafter)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterJob:
    """A drafter for an entry's target, trained on images that the target generates."""

    entry: Entry
    captions: tuple[Caption, ...]
    # A folder for weights, checkpoint, journal and generated images; all processes of a group see
    # it.
    out: Path
    recipe: DrafterRecipe
    kind: str = "eagle"  # one of `workers.training.DRAFTERS`
    # A name of this start of a group, by which processes that Ray has restarted find the training
    # that they resume.
    launch: str = ""

    def file(self, ending: str) -> Path:
        """The training's `safetensors` (weights), `checkpoint.pt`, `journal.jsonl`, `job.json` or
        `log`.
        """
        return self.out / f"{self.kind}.{ending}"

    def check(self, target: Target) -> None:
        """Check that the target, which may be on the meta device, and the captions suffice.

        Raises:
            ValueError: the target cannot have such a drafter, or has fewer codes; too few captions.
        """
        self.recipe.split(len(self.captions))
        if not 1 <= (self.recipe.draft_vocab or 1) <= target.vocab_size:
            raise ValueError(
                f"--draft-vocab {self.recipe.draft_vocab}: the target has {target.vocab_size} codes"
            )
        if self.kind == "independent":
            independent_conditioner(target)
        if self.kind == "vertical" and target.grid.rows == 1:
            raise ValueError(
                f"{target.name}: its images have one row, so no token is below another; train "
                "another drafter"
            )
        if self.kind == "vertical" and target.grid.preview:
            raise ValueError(
                f"{target.name}: its images are a preview and a grid, and a vertical branch "
                "decodes one grid; train another drafter"
            )

    def run(
        self,
        device: torch.device,
        *,
        resume: bool = False,
        log: Callable[[str], None] = print,
    ) -> Path:
        """Generates the images, then trains; returns the weight file. All processes of a group call
        it.

        Raises:
            ValueError: a resumed training was started with other models, captions or options; see
                `train_drafter`.
            WeightsError: the target's files cannot be read.
        """
        models = load_entry(self.entry, device)
        recipe = self.recipe
        group = ProcessGroup.current()
        # After the models are loaded: an error there must not remove an earlier training.
        if group.is_main and not self._is_restart() and not (resume and self.can_resume()):
            self._start()
        group.barrier()
        tokens = sample_images(
            models.target,
            self.captions,
            self.out / IMAGES,
            identity=digest(dict(models.hashes)),
            seed=recipe.seed,
            batch=2 * recipe.batch,
            # a vertical branch replaces the target, so it learns the target's own probs, to which
            # guidance and filters are applied later
            sampling=Sampling() if self.kind == "vertical" else None,
            log=log,
        )
        data = Examples([caption.text for caption in self.captions], tokens)
        # `_start` has removed the checkpoint of any other training.
        return train_by_recipe(
            models.target, self.kind, data, self.out, recipe, resume=True, log=log
        )

    def can_resume(self) -> bool:
        """Whether the output folder has a training that was started.

        Raises:
            ValueError: it was started with other models, captions or options.
            WeightsError: a file of the target is missing.
        """
        started = self._started_with()
        if started and (difference := _difference(started, self._facts())):
            raise ValueError(
                f"{self.file('job.json')}: this training was started with another {difference}; "
                "give the same, or omit --resume"
            )
        return bool(started)

    def _started_with(self) -> dict[str, Any]:
        """The facts and the launch of the training in the output folder; empty if there is none."""
        path = self.file("job.json")
        if not path.exists():
            return {}
        return dict(json.loads(path.read_text("utf-8")))

    def _is_restart(self) -> bool:
        return bool(self.launch) and self._started_with().get("launch") == self.launch

    def _start(self) -> None:
        """Removes an earlier training, and writes what this one is started with."""
        for stale in ("checkpoint.pt", "journal.jsonl"):
            self.file(stale).unlink(missing_ok=True)
        facts = json.dumps({**self._facts(), "launch": self.launch}, indent=2, sort_keys=True)
        Storage(self.out).write(self.file("job.json").name, f"{facts}\n".encode())

    def _facts(self) -> dict[str, Any]:
        """Everything that the result depends on, as JSON data."""
        facts = {
            "target": self.entry.name,
            "models": self.entry.hashes,
            "captions": captions_hash(self.captions),
            "count": len(self.captions),
            "recipe": asdict(self.recipe),
        }
        found: dict[str, Any] = json.loads(json.dumps(facts))
        return found


def train_by_recipe(
    target: Target,
    kind: str,
    data: Examples,
    out: Path,
    recipe: DrafterRecipe,
    *,
    resume: bool = False,
    log: Callable[[str], None] = print,
) -> Path:
    """Trains a drafter of a kind by a recipe; returns its weight file. See `train_drafter`."""
    train_data, held_out = data.split(recipe.split(len(data)))
    held_out = Examples(held_out.captions[:_MAX_HELD_OUT], held_out.tokens[:_MAX_HELD_OUT])
    config = recipe.schedule(len(train_data))
    weights = out / f"{kind}.safetensors"
    target.requires_grad_(False)
    target.set_encoder_batch(config.batch)
    count = recipe.draft_vocab or target.vocab_size
    drafter = new_drafter(
        kind, target, recipe.seed, frequent_codes(data.tokens, target.vocab_size, count)
    )
    if isinstance(drafter, ARModel):
        loss = ar_loss(drafter, train_data)
    elif isinstance(drafter, VerticalBranch):
        loss = vertical_loss(target, drafter, train_data, VerticalTraining())
    else:
        loss = drafter_loss(target, drafter, train_data, recipe)
    if ProcessGroup.current().is_main and not (resume and (out / f"{kind}.checkpoint.pt").exists()):
        weights.unlink(missing_ok=True)  # an earlier training may have left them
    facts = asdict(recipe)
    data_pair = (train_data, held_out)
    train_drafter(
        target, drafter, loss, data_pair, config, out, facts=facts, resume=resume, log=log
    )
    return weights


def _difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """The first key whose values differ, with both of them; None if all are equal."""
    for key, value in now.items():
        earlier = before.get(key)
        if isinstance(value, dict) and isinstance(earlier, dict):
            if inner := _difference(earlier, value):
                return f"{key}.{inner}" if key != "recipe" else inner
        elif earlier != value:
            return f"{key} ({earlier}, now {value})"
    return None
