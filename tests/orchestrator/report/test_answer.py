"""The recommendation's data: steps of the slider, and the commands."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from orchestrator.report.answer import _slider, answer
from orchestrator.results.sweep import Sweep, front_of
from tests.fakes.drawn_sweeps import write_drawn_sweep
from tests.fakes.synthetic_sweeps import write_sweep


def generate_words(folder: Path) -> list[str]:
    return shlex.split(answer(front_of([Sweep.open(folder)]))["commands"]["generate"])


@pytest.mark.parametrize("caption", ['it\'s a "red" $HOME; `ls`\n*', "plain", "-n 4"])
def test_the_prompt_is_the_first_caption_as_one_word(tmp_path: Path, caption: str) -> None:
    write_drawn_sweep(tmp_path, [caption, "second"], trials=2)
    words = generate_words(tmp_path)
    expected = " ".join(caption.split())
    assert words[-2:] == ["--", expected] if caption.startswith("-") else words[2] == expected
    assert words.count(expected) == 1


def test_without_images_the_prompt_is_a_placeholder(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    assert generate_words(tmp_path)[2] == "PROMPT"


@pytest.mark.parametrize("size", [3.7, 3.7e-9, -3.7e6])
def test_steps_are_no_finer_than_a_thousandth_of_the_value(size: float) -> None:
    slider = _slider(size, size + abs(size) * 1e-12, "minimize", relative=False)
    assert 1e-4 * abs(size) <= slider["step"] <= abs(size)
    assert slider["low"] == pytest.approx(size, rel=1e-2)
    steps = (slider["high"] - slider["low"]) / slider["step"]
    assert steps == pytest.approx(round(steps), abs=1e-6)
