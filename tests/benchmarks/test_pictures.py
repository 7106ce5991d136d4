"""The pictures of docs/how_it_works.md are those of the stored facts, and the facts those of the
model.
"""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from benchmarks.pictures import chain, exact, tree, window
from benchmarks.pictures.__main__ import DRAWINGS, FACTS, FOLDER, MEASURES, drawings
from benchmarks.pictures.runs import CHAIN, SEED, Pass
from tests.docs.pages import ROOT
from workers.loading.models import Models
from workers.loading.models_yaml import load_folder

PAGE = (ROOT / "docs" / "how_it_works.md").read_text("utf-8")


@pytest.fixture(scope="module")
def facts() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FACTS.read_text("utf-8"))
    return found


@pytest.fixture(scope="module")
def models() -> Models:
    return load_folder()


def test_the_pictures_are_those_of_the_facts(facts: dict[str, Any]) -> None:
    assert facts.keys() == MEASURES.keys()
    for name, text in drawings(facts):
        assert (FOLDER / name).read_text("utf-8") == text, (
            f"{name}: python -m benchmarks.pictures --draw"
        )


def test_the_page_shows_every_picture_with_a_description() -> None:
    shown = re.findall(r"!\[(.{30,})\]\(images/how_it_works/(\w+)\.svg\)", PAGE)
    assert [name for _, name in shown] == list(DRAWINGS)
    assert {path.stem for path in FOLDER.iterdir()} == set(DRAWINGS)


@pytest.mark.parametrize("name", DRAWINGS)
def test_a_picture_is_self_contained_and_follows_the_readers_wishes(name: str) -> None:
    text = (FOLDER / f"{name}.svg").read_text("utf-8")
    root = ElementTree.fromstring(text)
    assert root.get("role") == "img"
    assert len(root.get("aria-label", "").split()) > 10
    addresses = [value for entry in root.iter() for key, value in entry.items() if "href" in key]
    assert all(address.startswith("data:image/png;base64,") for address in addresses)
    assert "prefers-color-scheme: dark" in text
    assert ("animation:" in text) == ("prefers-reduced-motion: reduce" in text)


def test_the_facts_are_those_of_the_model(models: Models, facts: dict[str, Any]) -> None:
    found = chain.measure(models)
    stored = facts["chain"]
    assert found.keys() == stored.keys()
    for key in found.keys() - {"passes", "colours"}:
        assert found[key] == stored[key], key
    assert_alike(found["passes"], stored["passes"])


def assert_alike(found: Any, stored: Any) -> None:
    """Equal but for the last digits of numbers."""
    if isinstance(stored, dict):
        assert found.keys() == stored.keys()
        for key in stored:
            assert_alike(found[key], stored[key])
    elif isinstance(stored, list):
        assert len(found) == len(stored)
        for ours, theirs in zip(found, stored, strict=True):
            assert_alike(ours, theirs)
    else:
        assert found == pytest.approx(stored, abs=2e-3)


def test_green_and_orange_are_the_targets_probs(facts: dict[str, Any]) -> None:
    stored = facts["exact"]
    assert stored["accepted"] + stored["resampled"] == pytest.approx(1, abs=1e-3)
    assert stored["largest_difference"] < 1e-6
    for entry in stored["codes"]:
        assert entry["accepted"] + entry["resampled"] == pytest.approx(entry["q"], abs=2e-4)
        error = (entry["q"] * (1 - entry["q"]) / stored["draws"]) ** 0.5
        assert entry["share"] == pytest.approx(entry["q"], abs=4.5 * error + 1e-4)


def test_the_split_is_exact_for_any_two_distributions() -> None:
    generator = torch.Generator().manual_seed(SEED)
    p, q = torch.rand(2, 50, generator=generator).pow(4).unbind()
    accepted, residual = exact.split(p / p.sum(), q / q.sum())
    emitted = accepted + (1 - accepted.sum()) * residual
    torch.testing.assert_close(emitted, q / q.sum())


def test_states_of_nodes_say_what_was_tested() -> None:
    """Below the root 5 and 6, below 6 the nodes 7 and 8, below 8 the node 9."""
    none = torch.zeros(0)
    drafts, parents = [5, 6, 7, 8, 9], [-1, -1, 1, 1, 3]

    def states(emitted: list[int]) -> list[str]:
        return tree.node_states(Pass(1, 1, 4, drafts, parents, emitted, none, none))

    assert states([3]) == ["rejected", "rejected", "", "", ""]
    assert states([5, 3]) == ["accepted", "", "", "", ""]
    assert states([6, 8, 9, 3]) == ["rejected", "accepted", "rejected", "accepted", "accepted"]
    assert states([6, 8, 9]) == ["rejected", "accepted", "rejected", "accepted", "rejected"]


def test_a_budget_is_spent_on_average(facts: dict[str, Any]) -> None:
    omegas = facts["budget"]["omegas"]
    assert len(omegas["exact"]) > CHAIN["tree"]["length"]
    for name, budget in (("exact", 1), ("constant", 1.5), ("linear", 1.5), ("exponential", 1.5)):
        assert sum(omegas[name]) / len(omegas[name]) == pytest.approx(budget, abs=1e-3)
    tested = facts["budget"]["tested"]
    assert tested == sorted(tested, reverse=True)
    assert tested[0] == 1


def test_guesses_of_a_window_are_copies_of_the_draft_on_their_left(facts: dict[str, Any]) -> None:
    for entry in facts["window"]["passes"]:
        count = window.count_guesses(facts["window"], entry)
        drafts = entry["drafts"]
        known = drafts[: len(drafts) - count]
        assert drafts[len(known) :] == known[-1:] * count


def test_rows_lag_behind_the_rows_above(facts: dict[str, Any]) -> None:
    lag = facts["rows"]["lag"]
    for name in ("ZipAR", "PJD"):
        before, after = facts["rows"][name]["before"], facts["rows"][name]["after"]
        assert sum(after) > sum(before) + 1, "several rows advance"
        for above, own, now in zip(before, before[1:], after[1:], strict=False):
            assert own <= above
            assert own == now or own > 0 or above >= lag
