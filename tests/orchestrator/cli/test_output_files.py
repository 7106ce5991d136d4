"""Files that commands write: what their names say, refused before any work otherwise, and named
when they are done.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from orchestrator.front.front import front_of
from orchestrator.outputs import CONFIGS, PAGES, PLOTS, TABLES, ending_of, table_bytes
from orchestrator.store.sweep import Sweep
from search_spaces.trial import DecodingConfig
from specfrontier import Sweep as NotebookSweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep

# of commands that need no model: the command, its option, and the endings that it takes
OPTIONS = {
    "plot": (("pareto", "nowhere"), "--plot", PLOTS),
    "table": (("pareto", "nowhere"), "--table", TABLES),
    "csv": (("pareto", "nowhere"), "--csv", TABLES),
    "config": (("pareto", "nowhere", "--knee"), "--config", CONFIGS),
    "compare": (("compare", "nowhere", "nobody", "--html"), "--out", PAGES),
    "report": (("report", "nowhere"), "--out", PAGES),
    "reference": (("reference", "nowhere"), "--out", (".parquet",)),
}
PLOT_STARTS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sweeps") / "one"
    write_sweep(folder, trials=24, name="one")
    return folder


@pytest.fixture(params=[*OPTIONS.values()], ids=[*OPTIONS])
def refused(request: pytest.FixtureRequest) -> tuple[Callable[[str], str], tuple[str, ...]]:
    """The error of a command that is to write such a file, and the endings that it takes."""
    command, option, endings = request.param

    def error(file: str) -> str:
        message = error_of(*command, option, file, code=2)
        assert option in message or "--table" in message
        assert "nowhere" not in message, "it is said before any work"
        return message

    return error, endings


@pytest.mark.parametrize("name", ["front", "front.gif", "front.csv.gz", "front.", "pdf"])
def test_another_ending_is_refused_before_any_work(
    refused: tuple[Callable[[str], str], tuple[str, ...]], tmp_path: Path, name: str
) -> None:
    error, endings = refused
    message = error(str(tmp_path / name))
    assert all(ending in message for ending in endings)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_refused_before_any_work(
    refused: tuple[Callable[[str], str], tuple[str, ...]], tmp_path: Path
) -> None:
    error, (ending, *_) = refused
    (tmp_path / f"folder{ending}").mkdir()
    assert "is a folder" in error(str(tmp_path / f"folder{ending}"))
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file" in error(str(tmp_path / "file" / f"name{ending}"))
    error("")


@pytest.mark.parametrize("ending", PLOTS)
def test_plots_have_the_format_of_their_ending(sweep: Path, tmp_path: Path, ending: str) -> None:
    file = tmp_path / "new folder" / f"front{ending.upper()}"
    result = specfrontier("pareto", str(sweep), "--plot", str(file))
    assert (result.code, f"plot: {file}" in result.out.splitlines()) == (0, True), result.err
    data = file.read_bytes()
    assert data.startswith(PLOT_STARTS[ending])
    if ending == ".pdf":
        assert b"/FontFile2" in data, "TrueType, which journals ask for"
        assert b"/Type3" not in data
    if ending == ".svg":
        assert b"<svg" in data
        assert ">speedup" in data.decode(), "text that can be searched"
    specfrontier("pareto", str(sweep), "--plot", str(tmp_path / f"again{ending}"))
    assert (tmp_path / f"again{ending}").read_bytes() == data


@pytest.mark.parametrize("option", ["--table", "--csv"])
@pytest.mark.parametrize("ending", TABLES)
def test_tables_have_the_format_of_their_ending(
    sweep: Path, tmp_path: Path, ending: str, option: str
) -> None:
    file = tmp_path / f"front{ending}"
    result = specfrontier("pareto", str(sweep), option, str(file))
    assert (result.code, f"table: {file}" in result.out.splitlines()) == (0, True), result.err
    front = front_of([Sweep.open(sweep)])
    expected = front.table(front.members)
    if ending == ".parquet":
        assert pq.read_table(file).equals(expected)
    elif ending == ".json":
        assert json.loads(file.read_text("utf-8")) == expected.to_pylist()
    else:
        rows = list(csv.DictReader(io.StringIO(file.read_bytes().decode("utf-8"), newline="")))
        assert list(rows[0]) == expected.column_names
        assert [int(row["number"]) for row in rows] == expected["number"].to_pylist()
        assert [float(row["fid"]) for row in rows] == expected["fid"].to_pylist()


def test_json_names_every_file(sweep: Path, tmp_path: Path) -> None:
    files = {"plot": tmp_path / "f.svg", "table": tmp_path / "f.csv", "config": tmp_path / "f.yml"}
    options = [word for option, file in files.items() for word in (f"--{option}", str(file))]
    result = specfrontier("pareto", str(sweep), "--knee", *options, "--json").json
    assert result["written"] == {option: str(file) for option, file in files.items()}
    config = DecodingConfig.from_mapping(yaml.safe_load(files["config"].read_text("utf-8")))
    assert config.digest() == result["knee"]["digest"]
    assert specfrontier("pareto", str(sweep), "--json").json["written"] == {}


def test_the_report_is_written_where_it_says(sweep: Path, tmp_path: Path) -> None:
    file = tmp_path / "deep" / "page.html"
    result = specfrontier("report", str(sweep), "--out", str(file))
    assert (result.code, result.out.strip()) == (0, str(file))
    assert file.read_text("utf-8").startswith("<!doctype html>")


def test_a_trial_saves_its_config_as_yaml_only(sweep: Path, tmp_path: Path) -> None:
    best = NotebookSweep.open(sweep).best("fid <= 1.2 * vanilla")
    for name in ("fast.json", "fast", "fast.png"):
        with pytest.raises(ValueError, match=r"\.yaml or \.yml"):
            best.save(tmp_path / name)
    saved = yaml.safe_load(best.save(tmp_path / "fast.yaml").read_text("utf-8"))
    assert DecodingConfig.from_mapping(saved) == best.config


def test_the_ending_of_a_uri_is_that_of_its_path() -> None:
    assert ending_of("s3://bucket/front.PDF?region=eu.png", PLOTS) == ".pdf"
    with pytest.raises(ValueError, match=r"\.png, \.pdf or \.svg"):
        ending_of("s3://bucket/front?name=front.png", PLOTS)


def test_text_of_any_kind_survives_in_every_table() -> None:
    texts = ['a "b", c', "two\nlines", "\u2028", "é;=1", ""]
    table = pa.table({"text": texts, "list": pa.array([["a", "b"], [], None, ["c"], None])})
    assert json.loads(table_bytes(table, ".json")) == table.to_pylist()
    assert pq.read_table(io.BytesIO(table_bytes(table, ".parquet"))).equals(table)
    rows = list(csv.DictReader(io.StringIO(table_bytes(table, ".csv").decode(), newline="")))
    assert [row["text"] for row in rows] == texts
    assert rows[0]["list"] == "a;b"
