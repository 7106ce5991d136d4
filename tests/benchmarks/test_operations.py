"""Operations of a step outside the models: the bounds, for every preset."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.operations import (
    CHAINS,
    DRAFTED,
    LARGEST,
    ROWS,
    SKIPPING,
    TOGETHER,
    TREES,
    OperationCounter,
    on_meta,
    operations,
)
from search_spaces.drafters import Window
from search_spaces.modulations import MODULATIONS, NO_MODULATION
from search_spaces.presets import CATALOGUE
from search_spaces.trees import Adjacency, Dynamic
from tests.fakes.toys import code_path
from workers.drafters.vertical import VerticalHead
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder
from workers.models.transformer import Transformer

MOST_OF_A_MODULATION = 18
PRESETS = {code_path(preset.config): name for name, preset in CATALOGUE.items()}


@pytest.fixture(scope="module")
def whole_models() -> Models:
    return on_meta(load_folder())


@pytest.fixture(scope="module")
def models() -> Models:
    """The built-in models with one layer each: their operations do not count, but take most of the
    time.
    """
    models = load_folder()
    for module in itertools.chain(
        *(model.modules() for model in (models.target, *models.drafters.values()))
    ):
        if isinstance(module, Transformer):
            module.layers = module.layers[:1]
            module.config = replace(module.config, n_layers=1)
    for drafter in models.drafters.values():
        drafter.taps = (0,) * len(drafter.taps)
        if isinstance(drafter, VerticalHead):
            drafter.start = 1
    return on_meta(models)


FILTERED = [
    name
    for name in sorted(PRESETS.values())
    if isinstance(CATALOGUE[name].config.policy, Adjacency)
]


@pytest.mark.parametrize(
    ("name", "top_k"),
    [
        *((name, 0) for name in sorted(PRESETS.values())),
        *((name, 50) for name in (*FILTERED, "eagle1", "lantern")),
    ],
)
def test_a_step_has_at_most_so_many(models: Models, name: str, top_k: int) -> None:
    config = CATALOGUE[name].config
    config = replace(config, sampling=replace(models.target.sampling, top_k=top_k))
    counts = operations(models, config, batch=2)
    assert all(counts[phase] for phase in ("target", "accept", "commit"))
    total = sum(sum(phase.values()) for phase in counts.values())
    bound = TREES if isinstance(config.policy, Adjacency | Dynamic) else CHAINS
    bound = DRAFTED if isinstance(config.policy, Window) else bound
    bound = SKIPPING if config.acceptance.verification.implementation else bound
    if config.acceptance.verification.reads_later_drafts and config.policy.bounds.width > 1:
        bound = TOGETHER
    if config.acceptance.modulation != NO_MODULATION:
        bound += MOST_OF_A_MODULATION
    assert total <= (bound if config.drafter.row_lag is None else ROWS)
    assert counts == operations(models, config, batch=7)


@pytest.mark.parametrize("name", ["cool", "lantern", "gsd"])
@pytest.mark.parametrize("kind", ["entropy", "margin", "row"])
def test_what_a_modulation_adds(models: Models, name: str, kind: str) -> None:
    config = CATALOGUE[name].config
    rule = replace(config.acceptance, modulation=MODULATIONS.lookup(kind)())
    plain, modulated = (
        sum(sum(phase.values()) for phase in operations(models, found).values())
        for found in (config, replace(config, acceptance=rule))
    )
    assert 12 <= modulated - plain <= MOST_OF_A_MODULATION  # as docs/methods.md says


@pytest.mark.parametrize("name", ["eagle1", "adt"])
def test_the_number_of_layers_does_not_matter(
    models: Models, whole_models: Models, name: str
) -> None:
    config = CATALOGUE[name].config
    assert operations(models, config) == operations(whole_models, config)


@pytest.mark.parametrize("name", FILTERED)
def test_padded_adjacency_trees_have_at_most_so_many(models: Models, name: str) -> None:
    config = CATALOGUE[name].config
    config = replace(config, sampling=replace(models.target.sampling, top_k=50))
    counts = operations(models, config, largest=True)
    assert sum(sum(phase.values()) for phase in counts.values()) <= LARGEST


def test_views_and_excluded_forwards_do_not_count() -> None:
    layer, x = nn.Linear(3, 3), torch.ones(2, 3)
    counter = OperationCounter()
    with counter, counter.excluding([layer]):
        y = layer(x).t()[:1].expand(4, -1)
        counter.during("draft", lambda: y + 1)()
        torch.cat([y, y]).mul_(2)
    assert {phase: dict(names) for phase, names in counter.counts.items() if names} == {
        "draft": {"add": 1}, "target": {"cat": 1, "mul_": 1},
    }  # fmt: skip
