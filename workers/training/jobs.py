"""A drafter's training as plain data: what a command asks for, and what each process of a team carries out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from workers.data.captions import Caption, captions_hash
from workers.data.shards import digest
from workers.loading.manifest import Entry, load_entry
from workers.loading.models import Models, load_models, weights_folder
from workers.training.eagle import CHECKPOINT, JOURNAL, Drawn, EagleRecipe, train_eagle
from workers.training.process_group import SINGLE_PROCESS, ProcessGroup
from workers.training.recording import record

FACTS = "eagle.job.json"
RECORDED = "recorded"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterJob:
    """An EAGLE drafter for the target of `weights` (a folder, or "builtin"), on images that it draws of `captions`.

    models: an entry of models.yaml as plain data (`Entry.to_mapping`), which goes before `weights`; its drafters stay
    where they are. out: a folder for weights, checkpoint, journal and recorded images; in a team, one that all
    processes see.
    """

    weights: str
    captions: tuple[Caption, ...]
    out: Path
    recipe: EagleRecipe
    models: Mapping[str, Any] | None = None

    def load(self, device: torch.device) -> Models:
        """The target, with its weights' hashes.

        Raises:
            WeightsError: a weight file is missing, truncated or of another family.
        """
        if self.models is None:
            return load_models(weights_folder(self.weights), device)
        return load_entry(replace(Entry.from_mapping(self.models), drafters={}), device)

    def facts(self, models: Models) -> dict[str, Any]:
        """What the result depends on, as plain data."""
        own = {name: value for name, value in models.hashes.items() if Path(name).stem not in models.drafters}
        return {
            "target": models.target.name,
            "models": own,
            "captions": captions_hash(self.captions),
            "count": len(self.captions),
            "recipe": asdict(self.recipe),
        }

    def run(
        self,
        device: torch.device,
        *,
        resume: bool = False,
        group: ProcessGroup = SINGLE_PROCESS,
        tell: Callable[[str], None] = print,
    ) -> Path:
        """Draw the images, then train; returns the weight file. All processes of a team call it.

        Raises:
            ValueError: a resumed training was begun with other models, captions or options; see `train_eagle`.
            WeightsError: the target's files cannot be read.
        """
        models = self.load(device)
        facts = self.facts(models)
        if group.is_main:
            self.open(facts, resume)
        group.barrier()
        tokens = record(
            models.target,
            self.captions,
            self.out / RECORDED,
            identity=digest(facts["models"]),
            seed=self.recipe.seed,
            batch=2 * self.recipe.batch,
            group=group,
            tell=tell,
        )
        data = Drawn([caption.text for caption in self.captions], tokens)
        return train_eagle(models.target, data, self.out, self.recipe, resume=resume, group=group, tell=tell)

    def open(self, facts: dict[str, Any], resume: bool) -> None:
        """Hold a training that goes on against what it was begun with; clear away an earlier one otherwise."""
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / FACTS
        if resume and path.exists():
            begun = json.loads(path.read_text("utf-8"))
            if different := _difference(begun, facts):
                raise ValueError(
                    f"{path}: this training was begun with another {different}; give the same, or leave --resume out"
                )
            return
        for stale in (CHECKPOINT, JOURNAL):
            (self.out / stale).unlink(missing_ok=True)
        beside = path.with_suffix(".part")
        beside.write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", "utf-8")
        os.replace(beside, path)


def _difference(begun: dict[str, Any], facts: dict[str, Any]) -> str | None:
    """The first key whose values differ, with both of them; None if all are equal."""
    for key, value in facts.items():
        there = begun.get(key)
        if isinstance(value, dict) and isinstance(there, dict):
            if inner := _difference(there, value):
                return f"{key}.{inner}" if key != "recipe" else inner
        elif there != value:
            return f"{key} ({there}, now {value})"
    return None
