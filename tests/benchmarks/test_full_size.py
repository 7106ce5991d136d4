"""The benchmark of full-size models, shrunk: every model and tree policy really runs, and its floor is what can be
counted by hand."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import full_size
from benchmarks.floor import copy_bandwidth, pass_bytes, round_bytes
from benchmarks.random_models import NAMES, published_shape, randomise, with_usual_drafter
from search_spaces.trees import Adjacency, Dynamic
from search_spaces.trial import DecodingConfig
from workers.loading.dry_run import Footprint, footprint
from workers.loading.models import Models
from workers.models.transformer import rotation_table

CPU = torch.device("cpu")


def ran(
    monkeypatch: pytest.MonkeyPatch, *arguments: str, settings: Collection[str] = tuple(full_size.SETTINGS)
) -> None:
    monkeypatch.setattr(full_size, "SETTINGS", {name: full_size.SETTINGS[name] for name in settings})
    monkeypatch.setattr(sys, "argv", ["full_size", "--scale", "tiny", "--device", "cpu", *arguments])
    full_size.main()


def test_every_model_draws_by_every_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    known: dict[DecodingConfig, Footprint] = {}

    def predicted(models: Models, config: DecodingConfig, *rest: int) -> Footprint:
        """A tree's dry run costs more than its drawing does: it is that of the first model, and of the first growing
        tree."""
        growing = isinstance(config.policy, (Dynamic, Adjacency))
        key = full_size.SETTINGS["dynamic"] if growing else config
        if key not in known or key == full_size.SETTINGS["vanilla"]:
            known[key] = footprint(models, key, *rest)
        return known[key]

    monkeypatch.setattr(full_size, "footprint", predicted)
    out = tmp_path / "new" / "rows.json"
    ran(monkeypatch, "--batch", "2", "--tokens", "2", "--out", str(out))
    found = json.loads(out.read_text())
    assert found["machine"]["torch"] == torch.__version__
    assert found["machine"]["command"].startswith("python -m benchmarks.full_size --scale tiny")
    rows: list[dict[str, Any]] = found["rows"]
    assert [row["setting"] for row in rows] == [*full_size.SETTINGS] * len(full_size.MODELS)
    assert len({row["model"] for row in rows}) == len(full_size.MODELS)
    for row in rows:
        assert row["tokens"] == 2 * 2
        assert 1 <= row["rounds"] <= 2
        for key in ("tokens_per_second", "seconds_per_round", "floor_seconds", "times_floor"):
            assert math.isfinite(row[key])
            assert row[key] > 0
        assert 1 <= row["tokens_per_round"] <= 2
        assert row["times_floor"] == pytest.approx(row["seconds_per_round"] / row["floor_seconds"])
        assert (row["nodes"] > 0) is (row["setting"] != "vanilla")
        assert sum(row["seconds_by_phase"].values()) > 0
        assert row["peak_bytes"] is None
        assert row["predicted_bytes"] > 0
    table = capsys.readouterr().out.splitlines()[1:]
    assert len(table) == 2 + len(rows)
    assert len({text.count("|") for text in table}) == 1


def test_the_floor_is_the_bytes_counted_by_hand() -> None:
    """Width 64, 2 layers, feed-forward 128, 2048 codes; numbers of 4 bytes; 10 columns of the cache."""
    target = published_shape("llamagen-3b-c2i", torch.float32, tiny=True)
    layer, norms, head = 4 * 64 * 64 + 3 * 64 * 128, 2 * 64, 2048 * 64
    vanilla = 4 * (2 * (layer + norms) + 64 + head) + 4 * 10 * 2 * 2 * 64
    assert pass_bytes(target.transformer, 10) == vanilla
    models = with_usual_drafter(target, full_size.SETTINGS["chain"])
    # the EAGLE layer has one norm, and joins embedding and feature before it
    level = 4 * (layer + 64 + (2 * 64 * 64 + 64) + head) + 4 * 10 * 2 * 64
    assert round_bytes(models, 10, 3) == vanilla + 3 * level
    assert round_bytes(with_usual_drafter(target, full_size.SETTINGS["jacobi window"]), 10, 15) == vanilla
    half = published_shape("llamagen-3b-c2i", torch.bfloat16, tiny=True)
    assert 2 * pass_bytes(half.transformer, 10) == vanilla
    assert copy_bandwidth(CPU) > 1e6


@pytest.mark.parametrize("name", NAMES)
def test_targets_have_the_published_shapes(name: str) -> None:
    """A randomised one is finite, its rotations true, its norms 1."""
    whole, tiny = published_shape(name, torch.bfloat16), published_shape(name, torch.bfloat16, tiny=True)
    assert whole.embed.weight.is_meta
    assert whole.codec is not None
    assert (tiny.grid, tiny.prompt_len, tiny.sampling) == (whole.grid, whole.prompt_len, whole.sampling)
    target = randomise(tiny, CPU)
    assert all(bool(value.isfinite().all()) for value in target.state_dict().values())
    body = target.transformer
    assert torch.equal(body.get_buffer("rotations"), rotation_table(body.config))
    assert torch.equal(body.get_parameter("norm.weight"), torch.ones(64, dtype=torch.bfloat16))
    assert 0.019 < float(target.embed.weight.float().std()) < 0.021
    prompt = target.encode(["0"], guided=True)
    assert prompt.embeds.shape == (2, target.prompt_len, 64)


def test_rows_of_fixed_ends_are_drawn_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Lumina's, across the end of a row; nothing is written where no file is named."""
    monkeypatch.setattr(Path, "write_text", lambda *_: pytest.fail("wrote a file"))
    ran(monkeypatch, "--models", "lumina-mgpt-7b-768", "--tokens", "50", settings=("vanilla", "static"))
    assert capsys.readouterr().out.count("lumina-mgpt-7b-768") == 2


def test_memory_running_out_skips_the_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measure = full_size.measure

    def short(models: Any, config: Any, *rest: Any) -> Any:
        if config == full_size.SETTINGS["static"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return measure(models, config, *rest)

    monkeypatch.setattr(full_size, "measure", short)
    ran(monkeypatch, "--models", "llamagen-3b-c2i", "--tokens", "1", settings=("vanilla", "static", "chain"))
    lines = {text.split("|")[2].strip(): text for text in capsys.readouterr().out.splitlines() if "llamagen" in text}
    assert "out of memory" in lines["static"]
    assert [name for name, text in lines.items() if "out of memory" in text] == ["static"]


def test_full_size_needs_a_gpu_or_a_word(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["full_size"])
    with pytest.raises(SystemExit):
        full_size.main()
    assert "--scale tiny" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        ran(monkeypatch, "--tokens", "0")
    assert "at least 1" in capsys.readouterr().err
