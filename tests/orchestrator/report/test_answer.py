"""The recommendation's data: steps of the slider, and the commands."""

from __future__ import annotations

import shlex
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest

from orchestrator.front.choice import best_within, default_limit, recommend
from orchestrator.front.front import front_of
from orchestrator.report.answer import answer
from orchestrator.store.records import write_trial
from orchestrator.store.sweep import Sweep
from tests.fakes.command_line import specfrontier
from tests.fakes.drawn_sweeps import write_drawn_sweep
from tests.fakes.metric_inputs import write_session
from tests.fakes.synthetic_sweeps import METRICS, write_sweep
from tests.fakes.timed_sweeps import write_timed_sweep
from workers.data.storage import Storage
from workers.metrics.estimate import Estimate


def generate_words(folder: Path) -> list[str]:
    return shlex.split(answer(front_of([Sweep.open(folder)]))["commands"]["generate"])


@pytest.mark.parametrize("caption", ['it\'s a "red" $HOME; `ls`\n*', "plain", "-n 4"])
def test_the_prompt_is_the_shortest_caption_as_one_word(tmp_path: Path, caption: str) -> None:
    write_drawn_sweep(tmp_path, ["the longest one of all the captions", caption], trials=2)
    words = generate_words(tmp_path)
    expected = " ".join(caption.split())
    assert words[-2:] == ["--", expected] if caption.startswith("-") else words[2] == expected
    assert words.count(expected) == 1


def test_without_images_the_prompt_is_a_placeholder(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    assert generate_words(tmp_path)[2] == "PROMPT"


def test_the_slider_reaches_the_setting_that_is_best_without_a_bar(tmp_path: Path) -> None:
    """Though one of a larger error has a higher value and a better fid."""
    for record in write_sweep(tmp_path, trials=6):
        speed = (
            (1.0, 0.0)
            if record.number == 0
            else (9.0, 50.0)
            if record.number == 3
            else (1.5 + record.number, 0.01)
        )
        fid = Estimate(3.0 + record.number * (record.number != 3), 0.01, 9)
        write_trial(Storage(str(tmp_path)), replace(record, metrics={
            **record.metrics, "speedup": Estimate(*speed, 9), "fid": fid,
        }))  # fmt: skip
    front = front_of([Sweep.open(tmp_path)], "speedup", "fid")
    found, best = answer(front), best_within(front)
    assert best is not None
    assert best.number != 3
    assert found["bar"]["steps"][-1][0] == best.name
    assert found["bar"]["steps"][-1][2] == best.basis
    assert len(best.basis) == 2, "3 is within error"


def test_the_report_has_a_quality_bar_where_pareto_has_one(tmp_path: Path) -> None:
    """Counts and times have none; distances from vanilla's own images have one in their own
    unit.
    """
    for name, seed in (("a", 1), ("b", 2)):
        write_sweep(tmp_path / name, trials=16, seed=seed, name=name)
    sweeps = [Sweep.open(tmp_path / name) for name in "ab"]
    seen = set()
    for x, y in permutations(METRICS, 2):
        for given in (sweeps[:1], sweeps):
            front = front_of(given, x, y)
            bar, limit = answer(front)["bar"], default_limit(front)
            assert (bar is None) == front.metrics[1].is_of_counts
            assert (bar is not None and bar["relative"]) == (limit is not None)
            if limit is not None:
                assert limit == f"{y} {bar['relation']} {bar['start']} * vanilla"
                reach = bar["high"] if bar["relation"] == "<=" else 2 - bar["low"]
                assert reach > (1.45 if bar["relation"] == "<=" else 1.09), "beyond the default"
            seen.add((bar is None, limit is None))
    assert seen == {(True, True), (False, True), (False, False)}


def test_the_commands_find_the_settings_of_a_page_that_is_priced_elsewhere(tmp_path: Path) -> None:
    """Those of the sweep's own device need no options."""
    sweep = write_timed_sweep(tmp_path, 10)
    configs = [record.config for record in sweep.records if record.metrics and record.config]
    costs = {config: [0.01 * (1 + (config.policy.bounds.depth > 4)), 0.0101] for config in configs}
    write_session(sweep.storage, costs, batch=8, is_later=True)
    own, there = Sweep.open(tmp_path), Sweep.open(tmp_path, device="a processor", batch=8)
    found = []
    for priced in (own, there):
        words = shlex.split(answer(front_of([priced]))["commands"]["pareto"])
        best = specfrontier(*words[1:], "--lossless", "--json").json["best_lossless"]
        trial = recommend(front_of([priced])).choices.get("best_lossless")
        assert trial is not None
        assert (best["number"], best["metrics"]["speedup"]["value"]) == (
            trial.number,
            trial.metrics["speedup"].value,
        )
        found.append(trial.metrics["speedup"].value)
        assert ("--device" in words) is (priced is there)
    assert found[0] != found[1]
