"""Synthetic sweeps whose trials were proposed from a space: every trial has its study's
parameters.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import yaml

from orchestrator.store.files import SWEEP, write_sweep_text
from orchestrator.store.records import TrialRecord, write_trial
from search_spaces.space import Space
from tests.fakes.synthetic_sweeps import ENDED, IMAGES, SAMPLING, metrics_of, write_sweep
from workers.data.storage import Storage

SPACE = {
    "drafter": "eagle",
    "tree": [
        {"policy": "chain", "length": {"low": 2, "high": 8}},
        {
            "policy": "dynamic",
            "depth": 5,
            "width": {"values": [4, 8]},
            "nodes": {"low": 16, "high": 60, "step": 4},
        },
    ],
    "acceptance": [
        {
            "schedule": "exponential",
            "budget": {"low": 1.05, "high": 3, "log": True},
            "nu": {"values": [0.1, 0.3]},
        },
        {
            "neighbourhood": "additive",
            "k": {"low": 2, "high": 1000, "log": True},
            "delta": {"low": 0.01, "high": 0.5},
        },
    ],
}


def write_searched_sweep(
    folder: Path, trials: int, seed: int = 0, name: str = "searched", **options: Any
) -> list[TrialRecord]:
    """Vanilla, then trials at random points of `SPACE`."""
    records = write_sweep(folder, trials=1, name=name, failed=(), **options)
    storage, space = Storage(folder), Space.read(SPACE)
    plan = yaml.safe_load(storage.read(SWEEP))
    write_sweep_text(storage, yaml.safe_dump(plan | {"space": SPACE}))
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed))
    rng = np.random.default_rng(seed)
    for number in range(1, trials):
        trial = study.ask()
        config = space.suggest(trial, SAMPLING).with_sampling(SAMPLING)
        finished = ENDED.format(number // 60, number % 60)
        record = TrialRecord(
            number,
            "",
            "complete",
            config,
            metrics=metrics_of(config, rng),
            images=IMAGES,
            seconds=9.0,
        )
        records.append(
            replace(record, params=dict(trial.params), started=finished, finished=finished)
        )
        write_trial(storage, records[-1])
    return records
