"""Outputs of a Ray job, whose working folder is a temporary copy; tables as files."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pyarrow as pa
import pytest

from orchestrator.outputs import check_lasting, output_folder, table_bytes
from tests.fakes.command_line import error_of


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a job, where Ray puts it."""
    folder = (
        tmp_path
        / "session_1"
        / "runtime_resources"
        / "working_dir_files"
        / "_ray_pkg_0123456789abcdef"
    )
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    return folder


LOST = [
    "sweeps",
    "./a",
    "../a",
    "COPY/sweeps",
    "file://COPY/a",
    "sqlite:///a.db",
    "sqlite:///COPY/a.db",
    "sqlite+x:///a",
]
KEPT = [
    "ELSEWHERE/sweeps",
    "~/sweeps",
    "s3://bucket/a",
    "sqlite:///ELSEWHERE/a.db",
    "http://h:5000",
    "mysql+x://h/sweeps",
]


def test_results_in_the_copy_are_refused(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for output in LOST:
        with pytest.raises(ValueError, match=r"--out .*absolute path"):
            check_lasting("--out", output.replace("COPY", str(copy)))
    for output in KEPT:
        check_lasting("--out", output.replace("ELSEWHERE", str(tmp_path)))
    monkeypatch.delenv("RAY_JOB_CONFIG_JSON_ENV_VAR")
    for output in LOST:
        check_lasting("--out", output)


@pytest.mark.usefixtures("copy")
@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("--out", ("launch", "quickstart")),
        ("--out", ("launch", "quickstart", "--out", "mine")),
        ("--study", ("launch", "quickstart", "--out", "/tmp/z", "--study", "study.log")),
        ("--study", ("launch", "quickstart", "--out", "/tmp/z", "--study", "sqlite:///study.db")),
        (
            "--tracking-uri",
            ("launch", "quickstart", "--out", "/tmp/z", "--tracking-uri", "sqlite:///runs.db"),
        ),
        ("--out", ("generate", "a large red circle", "--preset", "vanilla", "--out", "images")),
        ("--out", ("train", "eagle", "--captions", "scenes", "--out", "weights")),
        ("--out", ("reference", ".", "--out", "reference.parquet")),
    ],
)
def test_commands_name_the_option(option: str, arguments: tuple[str, ...]) -> None:
    message = error_of(*arguments, code=2)
    assert f"{option} " in message
    assert "Ray job" in message
    assert list(Path().iterdir()) == []


@pytest.mark.usefixtures("copy")
def test_the_tracking_uri_of_the_environment_is_refused_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///runs.db")
    message = error_of("launch", "quickstart", "--out", str(tmp_path / "sweeps"), code=2)
    assert "--tracking-uri sqlite:///runs.db" in message
    assert "Ray job" in message


def test_a_call_from_python_is_refused_too(copy: Path) -> None:
    with pytest.raises(Exception, match="Ray job"), output_folder(copy / "made"):
        raise AssertionError("the block ran")


def test_no_text_of_a_table_is_a_formula_and_numbers_stay() -> None:
    columns = {
        "label": ["=HYPERLINK(1)", "@x", "plain"],
        "value": [-1.5, 2.0, None],
        "=1": ["-2", "+1", "-"],
    }
    table = pa.table({**columns, "tags": [["-a", "b"], [], ["c"]]})
    rows = list(csv.reader(io.StringIO(table_bytes(table, ".csv").decode(), newline="")))
    assert rows[0] == ["label", "value", "'=1", "tags"]
    assert rows[1] == ["'=HYPERLINK(1)", "-1.5", "-2", "'-a;b"]
    assert rows[2:] == [["'@x", "2.0", "+1", ""], ["plain", "", "'-", "c"]]
