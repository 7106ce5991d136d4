"""`compare --html`: one page of several sweeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.front.front import front_of
from orchestrator.report.trials import PageTrial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.drawn_sweeps import captions, write_drawn_sweep
from tests.orchestrator.report.test_page import Elements


def compared(folder: Path, *options: str) -> tuple[dict[str, Any], list[Sweep]]:
    """The page's data for two sweeps, and the sweeps."""
    for name, seed in (("first", 1), ("second", 2)):
        write_drawn_sweep(folder / name, captions(6), trials=10, seed=seed, name=name)
    places = [str(folder / name) for name in ("first", "second")]
    out = folder / "pages" / "both.html"
    result = specfrontier("compare", *places, "--html", "--out", str(out), *options)
    assert (result.code, result.out.strip()) == (0, str(out)), result.err
    data: dict[str, Any] = json.loads(Elements(out.read_text("utf-8")).scripts[0])
    return data, [Sweep.open(place) for place in places]


def test_the_page_has_the_trials_of_both_sweeps(tmp_path: Path) -> None:
    data, sweeps = compared(tmp_path)
    assert [sweep["name"] for sweep in data["sweeps"]] == ["first", "second"]
    assert [sweep["vanilla"] for sweep in data["sweeps"]] == ["first#0", "second#0"]
    expected = [f"{sweep.name}#{record.number}" for sweep in sweeps for record in sweep.records]
    assert [trial["id"] for trial in data["trials"]] == expected
    front = front_of(sweeps, "speedup", "fid")
    assert {trial["id"] for trial in data["trials"] if trial["confidence"] is not None} == {
        c.name for c in front.candidates
    }
    second = sweeps[1].records[0]
    assert {record.digest for record in sweeps[0].records} & {second.digest}, (
        "the same config in both"
    )
    sheets = data["sections"]["images"]["data"]["sheets"]
    assert sheets[second.digest] != sheets[PageTrial(sweeps[1], second, 1).key], (
        "has other images in each"
    )


def test_the_page_has_what_the_command_prints(tmp_path: Path) -> None:
    data, _ = compared(tmp_path)
    printed = specfrontier(
        "compare", str(tmp_path / "first"), str(tmp_path / "second"), "--json"
    ).json
    found = data["sections"]["comparison"]["data"]
    for key in ("hypervolumes", "hypervolume_errors", "reference", "pairs"):
        assert found[key] == printed[key]
    assert found["metrics"] == ["speedup", "fid"]


def test_notes_are_sentences(tmp_path: Path) -> None:
    for name in ("first", "second"):
        given = {"source": name, "count": 5, "hash": name}
        write_drawn_sweep(tmp_path / name, captions(5), trials=4, name=name, captions=given)
    words = [str(tmp_path / "first"), str(tmp_path / "second"), "--x=speedup"]
    words.append("--y=step_compression")
    out = tmp_path / "both.html"
    assert specfrontier("compare", *words, "--html", "--out", str(out)).code == 0
    data = json.loads(Elements(out.read_text("utf-8")).scripts[0])
    printed = specfrontier("compare", *words, "--json").json["warnings"]
    assert printed, "the captions differ"
    notes = data["sections"]["comparison"]["data"]["notes"]
    assert notes == [f"{text}." for text in printed]


def test_the_objectives_are_chosen(tmp_path: Path) -> None:
    data, _ = compared(tmp_path, "--x", "step_compression", "--y", "drift")
    assert (data["axes"]["x"], data["axes"]["y"]) == ("step_compression", "drift")
    assert "--x step_compression --y drift" in data["answer"]["commands"]["pareto"]


def test_it_has_no_quality_bar_where_pareto_has_none(tmp_path: Path) -> None:
    axes = ("--x", "fid", "--y", "step_compression")
    data, sweeps = compared(tmp_path, *axes)
    printed = specfrontier("pareto", *(sweep.storage.uri for sweep in sweeps), *axes, "--json").json
    assert (data["answer"]["bar"], printed["limits"], printed["best"]) == (None, [], None)
    assert data["answer"]["knee"]["id"] == f"{printed['knee']['sweep']}#{printed['knee']['number']}"


@pytest.mark.parametrize(
    "option", [("--where", "tree.depth=4"), ("--json",), ("--by", "tree.policy")]
)
def test_options_that_the_page_does_not_take(tmp_path: Path, option: tuple[str, ...]) -> None:
    assert "--html" in error_of("compare", str(tmp_path), str(tmp_path), "--html", *option, code=2)


def test_a_file_needs_the_page(tmp_path: Path) -> None:
    assert "--html" in error_of("compare", str(tmp_path), str(tmp_path), "--out", "a.html", code=2)


def test_sweeps_that_cannot_be_compared_have_no_page(tmp_path: Path) -> None:
    write_drawn_sweep(tmp_path / "a", captions(3), trials=4, name="a")
    write_drawn_sweep(
        tmp_path / "b", captions(3), trials=4, name="b", extractors={"features": "another net"}
    )
    out = tmp_path / "page.html"
    places = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert "features" in error_of(
        "compare", *places, "--y", "fid", "--html", "--out", str(out), code=2
    )
    assert not out.exists()
