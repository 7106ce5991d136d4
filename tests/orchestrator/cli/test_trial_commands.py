"""`show`, `diff` and `list` on made-up sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.synthetic_sweeps import write_sweep


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trials")
    write_sweep(folder / "sweeps" / "made", trials=10, shards=True, stopped={6: 1})
    return folder


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def plain(*arguments: str) -> Any:
    result = specfrontier(*arguments, "--json")
    assert result.code == 0, result.err
    return json.loads(result.out)


def test_show_has_all_that_is_known_of_a_trial() -> None:
    facts = plain("show", "made", "2")
    text = specfrontier("show", "made", "2").out
    assert facts["explanation"] in text
    assert all(paper in text for paper in facts["papers"])
    assert any("LANTERN" in paper for paper in facts["papers"])
    for name in facts["metrics"]:
        assert f"\n{name} " in text
    assert Path(facts["image_grid"]).exists()
    assert facts["image_grid"] in text
    assert "k: 100" in text


def test_show_says_why_a_trial_has_no_values() -> None:
    assert "OutOfMemoryError" in specfrontier("show", "made", "7").out
    stopped = specfrontier("show", "made", "6").out
    assert "stopped: " in stopped
    (fid,) = (line for line in stopped.splitlines() if line.startswith("fid "))
    assert fid.endswith("of fewer images")
    assert "99" in error_of("show", "made", "99", code=1)


def test_diff_prints_what_it_stores() -> None:
    facts = plain("diff", "made", "1", "3")
    text = specfrontier("diff", "made", "1", "3").out
    for part in (*facts["keys"], *facts["metrics"]):
        assert f"\n{part} " in text
    assert facts["images"][0]["caption"] in text
    assert plain("diff", "made", "1", "made", "3") == facts


@pytest.mark.parametrize("words", [["made", "1"], ["made", "1", "x"], ["made", "made", "1", "2"]])
def test_diff_refuses_other_words(words: list[str]) -> None:
    assert "diff quickstart 3 5" in error_of("diff", *words, code=2)


def test_list_has_each_sweep_with_its_recommendation() -> None:
    (facts,) = plain("list")["sweeps"]
    recommended = facts["recommended"]
    lines = specfrontier("list").out.splitlines()
    assert lines == specfrontier("status").out.splitlines()
    assert lines[0].split() == ["sweep", "trials", "recommended", "finished", "launch"]
    assert f"trial {recommended['number']}: speedup " in lines[1]
    assert " ago " in lines[1]


def test_list_names_a_damaged_sweep(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sweep(tmp_path / "sweeps" / "broken", trials=2)
    (tmp_path / "sweeps" / "broken" / "trials" / "00000.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    (facts,) = plain("list")["sweeps"]
    assert "00000.json" in facts["problem"]
    assert facts["finished"] == 2
    assert "00000.json" in specfrontier("list").out
