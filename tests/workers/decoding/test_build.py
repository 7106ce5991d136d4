"""What a plugin's neighbourhood says of itself is compared with its masses before anything is
decoded.
"""

from __future__ import annotations

from typing import ClassVar

import pytest
import torch
from torch import Tensor

from search_spaces.neighbourhoods import (
    Neighbourhood,
    NeighbourhoodMass,
    NeighbourTables,
    NoNeighbourhood,
)
from search_spaces.params import ConfigError
from workers.decoding.build import check_masses


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
