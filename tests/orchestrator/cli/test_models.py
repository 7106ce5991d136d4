"""`specfrontier models`: entries that read back, files that are fetched, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.fakes.command_line import error_of, specfrontier
from tests.fakes.hub import HubServer, hub_server
from tests.fakes.real_sweeps import SWEEP
from workers.loading.models_yaml import read_entry, read_models_yaml
from workers.models.families.catalogue import FAMILIES

FAMILIES_ON_HUB = [name for name, family in FAMILIES.all().items() if family.on_hub]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with hub_server(tmp_path / "hub") as server:
        yield server


@pytest.mark.parametrize("family", FAMILIES_ON_HUB)
def test_init_writes_entries_that_can_be_read(family: str, hub: HubServer, tmp_path: Path) -> None:
    file = tmp_path / "models.yaml"
    written = specfrontier("models", "init", family, "--out", str(file))
    assert written.code == 0, written.err
    assert list(read_models_yaml(file)) == list(FAMILIES.all()[family].on_hub)
    for name in read_models_yaml(file):
        entry = read_entry(file, name)
        keys = yaml.safe_load(file.read_text())[name]
        assert entry.family.kind == family
        assert all(reference.startswith("hf://") for reference in entry.hub.values())
        assert {
            key for key in entry.family.fields() if str(keys.get(key, "")).startswith("hf://")
        } <= entry.hub.keys()
        comments = [
            line.strip(" #")
            for line in file.read_text().splitlines()
            if line.strip().startswith("#")
        ]
        optional = {key for key in entry.family.fields() if key not in keys}
        assert optional <= {line.partition(":")[0] for line in comments}, (
            "every other key is named in a comment"
        )
        defaults = {
            key: field.default
            for key, field in entry.family.fields().items()
            if key in optional and isinstance(field.default, int)
        }
        given = yaml.safe_load("\n".join(c for c in comments if c.partition(":")[0] in defaults))
        assert (given or {}) == defaults, "a comment has the default"
    assert hub.fetched == []
    assert "exists" in error_of("models", "init", family, "--out", str(file), code=2)


def test_pull_fetches_what_an_entry_names(hub: HubServer, tmp_path: Path) -> None:
    hub.commit("lab/net", {"w.pt": b"weights", "other.pt": b"another"})
    file = tmp_path / "models.yaml"
    file.write_text(
        "a: {family: llamagen, transformer: 'hf://lab/net/w.pt', vq: vq.pt, image_size: 256}\n"
        "b: {family: llamagen, transformer: w.pt, vq: vq.pt, image_size: 256}\n"
    )
    pulled = specfrontier("models", "pull", f"{file}#a")
    assert pulled.code == 0, pulled.err
    assert hub.fetched == ["lab/net/w.pt"]
    entry = read_entry(file, "a")
    assert Path(entry.files["transformer"]).read_bytes() == b"weights"
    assert pulled.out == ""
    assert f"transformer: {entry.files['transformer']}\n" in pulled.err
    assert "hf://" in error_of("models", "pull", f"{file}#b", code=2)
    assert "lab/gone" in pull_of(file, "hf://lab/gone/w.pt")
    for wrong in (
        "hf://lab",
        "https://huggingface.co/lab/net/w.pt",
        "HF://lab/net/w.pt",
        "hf:/lab/net/w.pt",
    ):
        refused = pull_of(file, wrong, code=2)
        assert "transformer" in refused, wrong
        assert "hf://ORG/REPO/FILE" in refused


def pull_of(file: Path, reference: str, code: int = 1) -> str:
    file.write_text(
        f"a: {{family: llamagen, transformer: '{reference}', vq: vq.pt, image_size: 256}}\n"
    )
    return error_of("models", "pull", str(file), code=code)


def test_a_file_that_was_not_fetched_is_named_with_the_fix(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "models.yaml"
    file.write_text(
        "a: {family: llamagen, transformer: 'hf://lab/net/w.pt', vq: vq2.pt, image_size: 256, "
        "size: XL}\n"
    )
    Path("mine.yaml").write_text(SWEEP)
    for command in (
        ["generate", "a ring", "--models", str(file)],
        ["launch", "joint", "--models", str(file), "--check"],
        ["launch", "mine.yaml", "--models", str(file), "--check"],
    ):
        error = specfrontier(*command).err
        assert "hf://lab/net/w.pt" in error, command
        assert f"models pull {file}#a`" in error
        assert "launch --pull" in error
        assert error.rpartition("Error: ")[2].startswith(f"{file}:1: a: "), (
            "no line of the sweep's file"
        )
        assert "vq2.pt" in error, "all that is missing is named at once"
    doctor = specfrontier("doctor", "--models", str(file), "--json")
    assert doctor.code == 1
    problems = [problem for problem in doctor.json["problems"] if "hf://lab/net/w.pt" in problem]
    assert f"models pull {file}#a`" in problems[0]
    assert hub.fetched == []


def test_a_check_fetches_nothing(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hub.commit("lab/net", {"w.pt": b"weights"})
    Path("models.yaml").write_text(
        "a: {family: llamagen, transformer: 'hf://lab/net/w.pt', vq: vq.pt, image_size: 256}\n"
    )
    Path("mine.yaml").write_text(SWEEP)
    for words in (["--pull"], ["--pull", "--check"]):
        refused = error_of("launch", "mine.yaml", "--models", "models.yaml", *words, code=2)
        assert "vq.pt" in refused, "which no download mends"
        assert "w.pt" not in refused
    Path("vq.pt").touch()
    checked = specfrontier("launch", "mine.yaml", "--models", "models.yaml", "--pull", "--check")
    assert checked.code == 0, checked.err
    assert "transformer (hf://lab/net/w.pt)" in checked.out
    assert hub.fetched == []
    assert not Path("sweeps").exists()
    assert not any((tmp_path / "hub").glob("models--*"))
    assert "metrik" in error_of(
        "launch",
        "mine.yaml",
        "--models",
        "models.yaml",
        "--pull",
        "--check",
        "--set",
        "metrics=[metrik]",
        code=2,
    ), "what needs no weights is checked"
