"""Where the tokens of an image are, against lists of cells."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from workers.data.grid import Grid

GRIDS = [Grid(2, 3), Grid(1, 4), Grid(3, 2, (2, 4)), Grid(2, 5, (3, 1)), Grid(1, 1, (1, 1))]


def places(grid: Grid) -> list[tuple[int, int, int]]:
    """Grid, row and column of each token, of the preview's tokens first."""
    sizes = [*([grid.preview] if grid.preview else []), (grid.rows, grid.cols)]
    return [
        (part, row, col)
        for part, (rows, cols) in enumerate(sizes, start=2 - len(sizes))
        for row in range(rows)
        for col in range(cols)
    ]


@pytest.mark.parametrize("grid", GRIDS)
def test_cells_are_those_of_two_grids_in_raster_order(grid: Grid) -> None:
    listed = places(grid)
    assert grid.tokens == len(listed)
    cells = grid.cells(torch.arange(grid.tokens))
    found = zip(cells.in_preview.tolist(), cells.row.tolist(), cells.col.tolist(), strict=True)
    assert [(int(not is_preview), row, col) for is_preview, row, col in found] == listed
    assert sum(grid.lines) == grid.tokens
    lines = grid.line(torch.arange(grid.tokens))
    assert lines.bincount().tolist() == list(grid.lines)
    rows, cols, *preview = grid.sizes
    assert Grid(rows, cols, tuple(preview)) == grid


@pytest.mark.parametrize("grid", GRIDS)
def test_neighbours_are_of_the_same_grid(grid: Grid) -> None:
    listed = places(grid)
    tokens = torch.arange(grid.tokens)
    for up in range(3):
        for right in range(-2, 3):
            wanted = [
                listed.index(cell) if (cell := (part, row - up, col + right)) in listed else -1
                for part, row, col in listed
            ]
            assert grid.neighbour(tokens, up, right).tolist() == wanted


def test_heights_go_from_0_to_1_in_each_grid() -> None:
    found = Grid(3, 2, (2, 1)).height(torch.arange(8))
    assert found.tolist() == [0, 1, 0, 0, 0.5, 0.5, 1, 1]
    assert Grid(1, 2).height(torch.arange(2)).tolist() == [0, 0]


def test_arrays_of_numpy_are_read_too() -> None:
    grid = Grid(2, 2, (1, 3))
    tokens = np.arange(grid.tokens)
    found = grid.cells(tokens)  # type: ignore[arg-type]
    assert np.asarray(found.col).tolist() == [0, 1, 2, 0, 1, 0, 1]
    assert np.asarray(grid.line(tokens)).tolist() == [0, 0, 0, 1, 1, 2, 2]  # type: ignore[arg-type]


def test_a_preview_has_rows_and_columns() -> None:
    for preview in ((2,), (0, 3), (1, 1, 1)):
        with pytest.raises(ValueError, match="rows and columns"):
            Grid(2, 2, preview)
