"""`specfrontier generate --verify`: whether the tokens are what a lossless setting claims."""

from __future__ import annotations

from pathlib import Path

import pytest

import orchestrator.cli.generation
from orchestrator.images import ImageEngine
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import CommandResult, specfrontier
from tests.orchestrator.cli.test_generate import CHAIN, toy_models

KEYS = ("acceptance.neighbourhood=additive", "acceptance.k=8", "acceptance.delta=0.3")
RELAXED = [word for key in KEYS for word in ("--set", key)]


@pytest.fixture(autouse=True)
def toy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    models = toy_models()
    monkeypatch.setattr(orchestrator.cli.generation, "load_entry", lambda *_: models)
    monkeypatch.chdir(tmp_path)


def verify(*arguments: str) -> CommandResult:
    return specfrontier("generate", "a red circle", "--samples", "256", "--verify", *arguments)


def test_a_lossless_setting_keeps_what_it_claims() -> None:
    found = verify(*CHAIN, "--json")
    assert found.code == 0, found.err
    check = found.json["token_check"]
    assert check["passed"]
    assert (check["images"], check["tokens"], check["impossible"]) == (256, 256 * 16, 0)
    assert "the tokens are the target's own" in verify("--preset", "speculative").out


def test_a_lossy_setting_is_said_to_be_one() -> None:
    """It claims nothing, so the run has not failed."""
    found = verify(*CHAIN, *RELAXED)
    assert found.code == 0, found.err
    assert "the tokens are not the target's own" in found.out


def test_a_false_claim_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DecodingConfig, "is_lossless", lambda *_: True)
    found = verify(*CHAIN, *RELAXED, "--json")
    assert found.code == 1
    assert not found.json["token_check"]["passed"]
    assert "claims to be lossless" in found.err


def test_without_the_option_nothing_is_checked() -> None:
    found = specfrontier("generate", "a red circle", *CHAIN, "--json")
    assert found.json["token_check"] is None


def test_images_are_checked_in_python() -> None:
    engine = ImageEngine(toy_models().engine(DecodingConfig(), seed=1, batch_size=64))
    found = engine.check(engine.draw("a red circle", samples=64))
    assert (found.images, found.passed) == (64, True)
