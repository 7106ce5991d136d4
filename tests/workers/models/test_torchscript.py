"""TorchScript archives: programs that only compute, on the device where they are loaded."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.fakes.tiny_extended import decoder_module, write_decoder
from workers.models.checkpoint_files import WeightsError
from workers.models.torchscript import load_torchscript

CPU = torch.device("cpu")
IDS = torch.randint(64_000, (2, 1, 3, 5), generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("jit") / "decoder.jit"
    write_decoder(path)
    return path


def rewritten(archive: Path, path: Path, old: bytes, new: bytes) -> Path:
    """The archive with another program."""
    with zipfile.ZipFile(archive) as source, zipfile.ZipFile(path, "w") as target:
        names = source.namelist()
        code = {name: source.read(name) for name in names}
        assert any(old in text for name, text in code.items() if name.endswith(".py"))
        for name in names:
            text = code[name].replace(old, new) if name.endswith(".py") else code[name]
            target.writestr(name, text)
    return path


def test_a_program_computes_what_its_module_does(archive: Path) -> None:
    program = load_torchscript(archive, CPU)
    assert torch.equal(program(IDS), decoder_module()(IDS))
    assert not program.training


def test_a_program_runs_where_it_is_loaded(archive: Path, tmp_path: Path) -> None:
    """Traced on a GPU, it names that GPU."""
    path = rewritten(archive, tmp_path / "gpu.jit", b'device("cpu")', b'device("cuda:0")')
    with pytest.raises((RuntimeError, AssertionError, NotImplementedError)):
        torch.jit.load(str(path), map_location="cpu")(IDS)  # type: ignore[no-untyped-call]
    expected = decoder_module()(IDS)
    assert torch.equal(load_torchscript(path, CPU)(IDS), expected)
    shapes = load_torchscript(path, torch.device("meta"))
    shapes.drop_values()
    assert all(value.is_meta for value in (*shapes.parameters(), *shapes.buffers()))
    assert shapes(IDS.to("meta")).shape == expected.shape


class Writer(nn.Module):
    """Writes a file."""

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "written")
        return x


class Mapper(nn.Module):
    """Maps a file, which it could change."""

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.from_file("written", True, 1)


class Starter(nn.Module):
    """Runs something while it is loaded."""

    @torch.jit.export
    def __getstate__(self) -> tuple[int, bool]:
        return 1, self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[int, bool]) -> None:
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return x


@pytest.mark.parametrize(
    ("module", "what"), [(Writer, "save"), (Mapper, "from_file"), (Starter, "__setstate__")]
)
def test_a_program_that_could_do_more_than_compute_is_refused(
    module: type[nn.Module], what: str, tmp_path: Path
) -> None:
    path = tmp_path / "program.jit"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        script: Any = torch.jit.script(module())
    script.save(str(path))
    with pytest.raises(WeightsError, match=what) as caught:
        load_torchscript(path, CPU)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"torch.tanh", b"torch . from_file"),
        (b"torch.tanh", b"ops.other.tanh"),
        (b"torch.tanh", b"ops . other.tanh"),
        (b"torch.tanh", b"torch.classes.other.tanh"),
    ],
)
def test_a_program_of_another_spelling_is_refused(
    old: bytes, new: bytes, archive: Path, tmp_path: Path
) -> None:
    path = rewritten(archive, tmp_path / "program.jit", old, new)
    with pytest.raises(WeightsError, match="could do more than compute"):
        load_torchscript(path, CPU)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def weights(path: Path) -> None:
    torch.save({"weight": torch.zeros(2)}, path)


def other_zip(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a.txt", "a")


def prefixed(path: Path) -> None:
    """A zip file behind something else, which another loader could read."""
    path.write_bytes(b"\0\0\0\0PTMF" + path.read_bytes())


def broken_values(path: Path) -> None:
    module = decoder_module()
    value = dict(module.named_parameters())["post_quant_conv.bias"]
    value[0] = torch.nan
    write_decoder(path, module)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "truncated"),
        (pointer, "git-lfs pointer"),
        (weights, "not a TorchScript module"),
        (other_zip, "not a TorchScript module"),
        (prefixed, "not a TorchScript archive"),
        (broken_values, "post_quant_conv.bias: NaN"),
    ],
)
def test_other_files_are_refused_by_name(
    change: Callable[[Path], None], words: str, archive: Path, tmp_path: Path
) -> None:
    path = tmp_path / "decoder.jit"
    path.write_bytes(archive.read_bytes())
    change(path)
    with pytest.raises(WeightsError, match=words) as caught:
        load_torchscript(path, CPU)
    assert str(caught.value).startswith(f"{path}: ")
