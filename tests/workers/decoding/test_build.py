"""What a plugin's neighbourhood says of itself is compared with its masses before anything is
decoded.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar, cast

import pytest
import torch
from torch import Tensor

from search_spaces.acceptance import AcceptanceRule
from search_spaces.drafters import Eagle
from search_spaces.modulations import NO_MODULATION, Modulation, Nodes
from search_spaces.neighbourhoods import (
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.params import ConfigError
from search_spaces.schedules import Constant
from search_spaces.trees import Chain
from search_spaces.trial import DecodingConfig
from workers.decoding.build import build_tables, check_masses
from workers.models.target import Target


class Doubled(NoNeighbourhood):
    """Twice the token's mass."""

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        plain = NoNeighbourhood.mass(self, r, p, x, tables)
        return plain._replace(target=2 * plain.target)

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        target, proposal = NoNeighbourhood.all_masses(self, r, p, tables)
        return 2 * target, proposal


class Relaxed(Doubled):
    exact: ClassVar[bool] = False  # a property in the base


class Halved(Relaxed):
    """Half of the token's mass."""

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        plain = NoNeighbourhood.mass(self, r, p, x, tables)
        return plain._replace(target=plain.target / 2)

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        target, proposal = NoNeighbourhood.all_masses(self, r, p, tables)
        return target / 2, proposal


class Stricter(Halved):
    never_stricter: ClassVar[bool] = False


class Contradictory(Relaxed):
    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        return NoNeighbourhood.all_masses(self, r, p, tables)


class Broken(Relaxed):
    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        return super().mass(r, p, x[:, None], tables)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (NoNeighbourhood, None),
        (Relaxed, None),
        (Stricter, None),
        (Doubled, "exact is True, but mass has a `target` that is not the token's own"),
        (Halved, "mass may be stricter than the exact rule; set never_stricter = False"),
        (Contradictory, "mass and all_masses differ in `target`"),
        (Broken, "mass or all_masses fails: RuntimeError"),
    ],
)
def test_masses_that_contradict_their_class_are_refused(
    made: type[Neighbourhood], problem: str | None
) -> None:
    codebook = torch.zeros(64, 2)
    if problem is None:
        check_masses(made(), NeighbourTables(), codebook)
        return
    with pytest.raises(ConfigError) as caught:
        check_masses(made(), NeighbourTables(), codebook)
    assert str(caught.value).startswith(f"class {made.__name__} in {__file__}: {problem}")


class Following(Relaxed):
    """Twice the token's mass, or as much as a modulation says."""

    def mass(
        self, r: Tensor, p: Tensor | None, x: Tensor, tables: NeighbourTables
    ) -> NeighbourhoodMass:
        plain = NoNeighbourhood.mass(self, r, p, x, tables)
        factor = tables.factor if isinstance(tables.factor, float) else tables.factor[:, 0]
        return plain._replace(target=(1 + factor) * plain.target)

    def all_masses(
        self, r: Tensor, p: Tensor | None, tables: NeighbourTables
    ) -> tuple[Tensor, Tensor]:
        target, proposal = NoNeighbourhood.all_masses(self, r, p, tables)
        return (1 + tables.factor) * target, proposal


class Low(Modulation):
    """Half of the row."""

    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.row / 2


class Negative(Low):
    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.row - 0.5


class Endless(Low):
    def factor(self, nodes: Nodes) -> Tensor:
        return 1 / nodes.row


class OneForAll(Low):
    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.row.mean()


class Missing(Low):
    def factor(self, nodes: Nodes) -> Tensor:
        return nodes.rows  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize(
    ("neighbourhood", "modulation", "problem"),
    [
        (Following(), Low(), None),
        (Relaxed(), NO_MODULATION, None),
        (Relaxed(), Low(), "its masses do not follow a modulation"),
        (NoNeighbourhood(), Negative(), "factor must return 16 finite numbers of at least 0"),
        (NoNeighbourhood(), Endless(), "factor must return 16 finite numbers of at least 0"),
        (NoNeighbourhood(), OneForAll(), "factor must return 16 finite numbers of at least 0"),
        (NoNeighbourhood(), Missing(), "factor fails: AttributeError"),
    ],
)
def test_plugins_that_do_not_work_with_a_modulation_are_refused(
    neighbourhood: Neighbourhood, modulation: Modulation, problem: str | None
) -> None:
    rule = AcceptanceRule(neighbourhood, Constant(1.5), modulation=modulation)
    config = DecodingConfig(Eagle(), Chain(2), rule)
    target = cast(Target, SimpleNamespace(codebook=torch.zeros(64, 2)))
    if problem is None:
        build_tables(config, target)
        return
    with pytest.raises(ConfigError, match=problem) as caught:
        build_tables(config, target)
    assert __file__ in str(caught.value)
