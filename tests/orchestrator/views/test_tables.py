"""The views beside a sweep: tables that other tools open, a picture, and not written more often
than need be.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

from orchestrator.store.files import FRONT_PLOT, FRONT_TABLE, TRIAL_TABLE
from orchestrator.views.tables import write_tables
from specfrontier import Sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.storage import Storage


def test_views_say_what_the_records_say(tmp_path: Path) -> None:
    records = write_sweep(tmp_path, 12)
    write_tables(Sweep.open(Storage(tmp_path)))
    table, sweep = pq.read_table(tmp_path / TRIAL_TABLE), Sweep.open(tmp_path)
    assert table.column("number").to_pylist() == [record.number for record in records]
    assert table.column("state").to_pylist() == [record.state for record in records]
    speedups = [record.metrics["speedup"].value if record.metrics else None for record in records]
    assert table.column("speedup").to_pylist() == speedups
    assert table.equals(sweep.trials())
    front = pq.read_table(tmp_path / FRONT_TABLE)
    assert front.equals(sweep.front())
    assert 0 < len(front) < len(table)
    with Image.open(tmp_path / FRONT_PLOT) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) > 300
        assert len(picture.convert("RGB").getcolors(1 << 20) or []) > 10, "something is drawn"


def test_an_empty_sweep_has_no_views(tmp_path: Path) -> None:
    write_sweep(tmp_path, 0)
    write_tables(Sweep.open(Storage(tmp_path)))
    assert not (tmp_path / TRIAL_TABLE).exists()


def test_a_sweep_of_failures_has_its_table(tmp_path: Path) -> None:
    write_sweep(tmp_path, 3, failed=(0, 1, 2))
    write_tables(Sweep.open(Storage(tmp_path)))
    assert pq.read_table(tmp_path / TRIAL_TABLE).num_rows == 3
    assert pq.read_table(tmp_path / FRONT_TABLE).num_rows == 0
    with Image.open(tmp_path / FRONT_PLOT) as picture:
        assert picture.format == "PNG"
