"""Counts of accepted drafts of a sweep's trials: in Python, in `compare`, and in the report."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from orchestrator.report.page import page_data
from orchestrator.store.acceptance import read_acceptance
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.counted_sweeps import counts_of, write_counted_sweep
from tests.fakes.synthetic_sweeps import write_sweep
from workers.data.records import write_shard
from workers.metrics.acceptance import AcceptanceCounts, acceptance_file
from workers.metrics.estimate import BLOCKS

TRIALS = 10


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("counted") / "made"
    write_counted_sweep(folder, TRIALS, without=[1])
    return Sweep.open(folder)


@pytest.fixture(scope="module")
def plain_sweep(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("plain") / "made"
    write_sweep(folder, trials=4, shards=True)
    return str(folder)


def test_a_table_has_a_row_per_group_and_number_of_drafts(sweep: Sweep) -> None:
    rows = sweep.acceptance(2).to_pylist()
    assert [row["group"] for row in rows] == [None] * 3 + ["long"] * 3 + ["short"] * 3
    assert [row["drafts"] for row in rows] == [0, 1, 2] * 3
    by_key = {(row["group"], row["drafts"]): row for row in rows}
    # 24 images of short captions, a third of them with 3, 4 and 5 verifications of one draft
    short = by_key["short", 2]
    assert (short["verifications"], short["tested"], short["accepted"]) == (96, 192, 96)
    assert short["rate"] == pytest.approx(96 / 192)
    assert short["share"] == pytest.approx(96 / (96 + 96 + 96))
    assert by_key[None, 1]["accepted"] == 24 * (4 + 4) + 24 * (3 + 1)
    assert by_key[None, 0]["rate"] is None
    assert {row["number"] for row in sweep.acceptance().to_pylist()} == {
        number for number in range(TRIALS) if number not in (1, 7)
    }
    assert sweep.acceptance(1).num_rows == 0


def test_compare_shows_the_trials_on_the_fronts(sweep: Sweep, plain_sweep: str) -> None:
    place = sweep.storage.display_name
    found = specfrontier("compare", place, "--by", "position", "--json").json["by_position"]
    front = specfrontier("pareto", place, "--json").json["rows"]
    members = {row["number"] for row in front if row["on_front"]} - {1}
    assert {row["number"] for row in found} == members
    expected = read_acceptance(sweep.storage, sweep.records[found[0]["number"]])
    assert expected is not None
    assert found[0]["all"] == expected.to_mapping()["all"]
    text = specfrontier("compare", place, "--by", "position").out
    assert text.splitlines()[0].split() == ["trial", "setting", "accepted", "1", "2"]
    by_group = specfrontier("compare", place, "--by", "group").out
    assert by_group.splitlines()[0].split() == ["trial", "setting", "all", "long", "short"]
    assert "no trial" in error_of("compare", plain_sweep, "--by", "position", code=2)


def test_the_report_has_trials_that_draft(sweep: Sweep) -> None:
    data = page_data([sweep], decode=False)["sections"]["acceptance"]["data"]
    assert (data["groups"], data["more_groups"]) == (["long", "short"], 0)
    record = sweep.records[2]
    entry = data["trials"][record.digest]
    positions = counts_of(2).positions()
    assert entry["shares"] == [
        [pytest.approx(each.share.value, rel=1e-4), pytest.approx(each.share.error, rel=1e-2)]
        for each in positions
    ]
    assert len(entry["rates"]) == 2
    assert set(entry["groups"]) == {"long", "short"}


def test_the_report_has_the_first_groups_and_the_number_of_the_others(tmp_path: Path) -> None:
    """A page of a captions file with a group for each caption stays small."""
    records = write_sweep(tmp_path, trials=4, shards=True)
    opened = Sweep.open(tmp_path)
    names = [f"group {place:02}" for place in range(48)]
    counts = AcceptanceCounts.of([[1, 2]] * 48, [[3]] * 48, names, [n % BLOCKS for n in range(48)])
    file = acceptance_file(records[2].digest)
    write_shard(opened.storage, file, counts.to_table(), {"kind": "acceptance"})
    data = page_data([opened], decode=False)["sections"]["acceptance"]["data"]
    assert (data["groups"], data["more_groups"]) == (names[:8], 40)
    assert list(data["trials"][records[2].digest]["groups"]) == names[:8]


def test_a_sweep_without_groups_adds_no_column(sweep: Sweep, tmp_path: Path) -> None:
    records = write_sweep(tmp_path, trials=10, shards=True)
    opened = Sweep.open(tmp_path)
    counts = AcceptanceCounts.of([[1, 2]] * 24, [[3]] * 24, [""] * 24, range(24))
    for record in records:
        name = acceptance_file(record.digest)
        write_shard(opened.storage, name, counts.to_table(), {"kind": "acceptance"})
    data = page_data([sweep, opened], decode=False)["sections"]["acceptance"]["data"]
    assert data["groups"] == ["long", "short"]
    places = [sweep.storage.display_name, str(tmp_path)]
    text = specfrontier("compare", *places, "--by", "group").out
    assert text.splitlines()[0].split() == ["trial", "setting", "all", "long", "short"]
    assert "no groups" in error_of("compare", str(tmp_path), "--by", "group", code=2)


def changed(column: str, values: list[object], kind: pa.DataType) -> pa.Table:
    """The counts of a trial with other values in a column, repeated."""
    table = counts_of(2).to_table()
    place = table.column_names.index(column)
    values = (values * table.num_rows)[: table.num_rows]
    return table.set_column(place, column, pa.array(values, kind))


FOREIGN = {
    "no column": counts_of(2).to_table().drop_columns(["block"]),
    "another type": changed("tested", ["many"], pa.string()),
    "a null": changed("accepted", [1, None], pa.int64()),
    "a negative count": changed("tested", [1, -1], pa.int64()),
    "another block": changed("block", [0, BLOCKS], pa.int32()),
    "a terabyte": changed("drafts", [0, 2**31 - 1], pa.int32()),
}


@pytest.mark.parametrize(
    "content", [b"PAR1 damaged PAR1", *FOREIGN.values()], ids=["bytes", *FOREIGN]
)
def test_a_damaged_or_foreign_file_is_named(tmp_path: Path, content: bytes | pa.Table) -> None:
    records = write_sweep(tmp_path, trials=4, shards=True)
    opened = Sweep.open(tmp_path)
    name = acceptance_file(records[2].digest)
    if isinstance(content, bytes):
        opened.storage.write(name, content)
    else:
        write_shard(opened.storage, name, content, {"kind": "acceptance"})
    notes: list[str] = []
    sections = page_data([opened], notes.append, decode=False)["sections"]
    assert "acceptance" not in sections
    assert any(name in note for note in notes)
    with pytest.raises(ValueError, match=name):
        opened.acceptance(2)
