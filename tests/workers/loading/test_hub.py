"""Files of the Hub: references, what is fetched and what is not, and a cache that has parts
only.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from tests.fakes.hub import HubServer, hub_server
from workers.loading.hub import HubFile, local_path, on_this_machine, reference_of
from workers.models.checkpoint_files import WeightsError

FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "pytorch_model.bin": b"the same weights",
    "flax_model.msgpack": b"and again",
    "onnx/model.onnx": b"once more",
    "nested/other.pth": b"a single file",
    "nested/note.txt": b"text",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with hub_server(tmp_path / "hub") as server:
        yield server


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("hf://org/repo", ("org/repo", "", "")),
        ("hf://org/repo/", ("org/repo", "", "")),
        ("hf://org/repo@v1", ("org/repo", "", "v1")),
        ("hf://org/re.po-1/a/b.pt@refs/pr/3", ("org/re.po-1", "a/b.pt", "refs/pr/3")),
    ],
)
def test_references(text: str, parts: tuple[str, str, str]) -> None:
    found = HubFile.parse(text)
    assert (found.repo, found.file, found.revision) == parts
    assert HubFile.parse(str(found)) == found


@pytest.mark.parametrize(
    "text",
    [
        "hf://org",
        "hf:/org/repo",
        "hf://org/repo@main/w.pt",
        "hf://org/repo@",
        "hf://org/repo/../x",
        "hf:// a/b",
        "hf://",
        "hf://org/repo@..",
        "hf://org/repo//etc/hosts",
        "hf://org/repo/a//b",
        "hf://org/repo/./a",
        "hf://org/re--po",
        "hf://org/re..po",
    ],
)
def test_what_is_no_reference(text: str) -> None:
    with pytest.raises(ValueError, match="hf://ORG/REPO"):
        HubFile.parse(text)


def test_a_repository_comes_without_what_is_never_read(hub: HubServer) -> None:
    commit = hub.commit("org/model", FILES)
    reference = HubFile("org/model")
    assert reference.cached() is None
    assert hub.fetched == []
    path = reference.pull()
    assert {file.relative_to(path).as_posix() for file in path.rglob("*") if file.is_file()} == {
        "config.json", "model.safetensors", "nested/note.txt", "nested/other.pth",
    }  # fmt: skip
    assert path.name == commit
    assert reference.cached() == path
    assert reference_of(str(path)) == f"hf://org/model@{commit}"
    again = len(hub.fetched)
    assert reference.pull() == path
    assert len(hub.fetched) == again


def test_pickles_come_where_there_is_nothing_else(hub: HubServer) -> None:
    hub.commit(
        "org/old", {name: data for name, data in FILES.items() if not name.endswith(".safetensors")}
    )
    path = HubFile("org/old").pull()
    assert (path / "pytorch_model.bin").read_bytes() == FILES["pytorch_model.bin"]
    assert not (path / "flax_model.msgpack").exists()


def test_a_file_and_a_folder_of_a_repository(hub: HubServer) -> None:
    hub.commit("org/model", FILES)
    file = HubFile("org/model", "nested/other.pth")
    assert file.pull().read_bytes() == FILES["nested/other.pth"]
    assert hub.fetched == ["org/model/nested/other.pth"]
    assert HubFile("org/model", "nested").cached() is None, "another file of the folder is missing"
    assert HubFile("org/model", "model.safetensors").cached() is None
    folder = HubFile("org/model", "nested").pull()
    assert {path.name for path in folder.iterdir()} == {"other.pth", "note.txt"}
    assert reference_of(str(file.pull())).startswith("hf://org/model/nested/other.pth@")


def names(folder: Path) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()}


def test_a_name_is_no_pattern(hub: HubServer) -> None:
    hub.commit(
        "org/model",
        {"w[1].pt": b"this", "w1.pt": b"another", "part?/a.pt": b"a", "parts/a.pt": b"b"},
    )
    assert HubFile("org/model", "w[1].pt").pull().read_bytes() == b"this"
    assert names(HubFile("org/model", "part?").pull()) == {"a.pt"}
    assert hub.fetched == ["org/model/w[1].pt", "org/model/part?/a.pt"]
    with pytest.raises(WeightsError, match="no such file"):
        HubFile("org/model", "w*").pull()
    assert len(hub.fetched) == 2


def test_a_folder_with_a_dot_in_its_name(hub: HubServer) -> None:
    kept = {"a.safetensors": b"1", "config.json": b"{}"}
    files = {**kept, "a.bin": b"2", "a.msgpack": b"3", "onnx/a.bin": b"4"}
    hub.commit("org/model", {f"v1.5/{name}": data for name, data in files.items()})
    folder = HubFile("org/model", "v1.5").pull()
    assert names(folder) == kept.keys()
    assert HubFile("org/model", "v1.5").cached() == folder


def test_pickles_are_left_out_beside_safetensors_alone(hub: HubServer) -> None:
    hub.commit(
        "org/model",
        {"a.safetensors": b"1", "a.bin": b"2", "vae/config.json": b"{}", "vae/[v].bin": b"3"},
    )
    reference = HubFile("org/model")
    path = reference.pull()
    assert names(path) == {"a.safetensors", "vae/config.json", "vae/[v].bin"}
    assert reference.cached() == path
    (path / "vae/[v].bin").unlink()
    assert reference.cached() is None, "a part of it is missing"


def test_a_download_that_broke_off_is_not_taken_for_the_whole(hub: HubServer) -> None:
    hub.commit("org/old", {"config.json": b"{}", "pytorch_model.bin": b"weights"})
    hub.failing.add("pytorch_model.bin")
    with pytest.raises(WeightsError):
        HubFile("org/old").pull()
    assert HubFile("org/old").cached() is None
    hub.failing.clear()
    HubFile("org/old").pull()
    assert HubFile("org/old").cached() is not None


def test_revisions(hub: HubServer) -> None:
    first = hub.commit("org/model", {"w.safetensors": b"1"})
    reference = HubFile("org/model", "w.safetensors")
    assert reference.pull().read_bytes() == b"1"
    hub.tags["org/model", "v1"] = first
    hub.commit("org/model", {"w.safetensors": b"2"})
    assert local_path(str(reference)).endswith(f"{first}/w.safetensors"), (
        "nothing is fetched until it is asked for"
    )
    assert reference.pull().read_bytes() == b"2"
    for revision in ("v1", first):
        assert HubFile("org/model", "w.safetensors", revision).pull().read_bytes() == b"1"


def test_what_cannot_be_fetched(hub: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.commit("org/model", FILES)
    hub.commit("org/gated", FILES)
    hub.tokens["org/gated"] = "secret"
    for reference in (
        "hf://org/nothing",
        "hf://org/model@nowhere",
        "hf://org/model/nothing.pt",
        "hf://org/gated",
    ):
        with pytest.raises(WeightsError, match=reference):
            HubFile.parse(reference).pull()
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert HubFile.parse("hf://org/gated").pull().is_dir()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(WeightsError, match="hf://org/model"):
        HubFile("org/model").pull()
    assert HubFile.parse("hf://org/gated").pull().is_dir(), "offline, the cache is enough"


def test_a_hub_that_cannot_be_reached_or_breaks_off(
    hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.repos["org/broken"] = {}  # the server fails, and closes the connection
    with pytest.raises(WeightsError, match="cannot be downloaded: Server"):
        HubFile("org/broken").pull()
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(WeightsError, match="cannot be downloaded: ConnectError"):
        HubFile("org/model").pull()


def test_another_machines_cache(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = hub.commit("org/model", FILES)
    path = str(HubFile("org/model").pull())
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    assert on_this_machine(path) == path, "a shared disk"
    shutil.rmtree(tmp_path / "hub")
    assert on_this_machine(path) == f"hf://org/model@{commit}"
    here = str(HubFile("org/model", revision=commit).pull())
    assert on_this_machine(path) == on_this_machine(f"hf://org/model@{commit}") == here
    assert on_this_machine("ckpt/model.pt") == "ckpt/model.pt"
