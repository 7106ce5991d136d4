"""TorchScript archives (`.jit`): modules that bring their own program.

PyTorch's interpreter runs the program, without Python. Before an archive is loaded, its text is
searched for what could do more than compute: code that runs at loading, operators that read or
write files, and operators of other libraries than PyTorch. They are refused by name. All code of an
archive is text: the loader compiles it from there.

The program of a traced module names the devices and types with which it was traced. The devices are
replaced; weights keep the file's types.
"""

from __future__ import annotations

import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.models.checkpoint_files import WeightsError, other_format, preview

_REFUSED = re.compile(
    r"\b(?:__setstate__|from_file|save)\b|\btorch\s*\.\s*classes\b|\bops\s*\.\s*(?!aten\b|prim\b)\w+"
)


class Program(nn.Module):
    """A loaded module, run as it is written: PyTorch's optimiser may fuse operators after some
    calls, which changes last bits.
    """

    def __init__(self, script: nn.Module, device: torch.device) -> None:
        super().__init__()
        self.script = script
        self._name_device(device)

    def forward(self, *inputs: Tensor) -> Any:
        with torch.jit.optimized_execution(False):  # type: ignore[attr-defined]
            return self.script(*inputs)

    def drop_values(self) -> None:
        """Move the weights to the meta device. Constants of the program keep their values, on which
        sizes may depend.
        """
        self._name_device(torch.device("meta"))
        for part in self.script.modules():
            script: Any = part._c
            tensors = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
            for name, value in tensors:
                script.setattr(name, value.to("meta"))

    def _name_device(self, device: torch.device) -> None:
        """Let the program name a device in the place of those with which it was traced."""
        for part in self.script.modules():
            script: Any = part._c
            for method in map(script._get_method, script._method_names()):
                for node in method.graph.findAllNodes("prim::Constant"):
                    if str(node.output().type()) == "Device":
                        node.s_("value", str(device))


def load_torchscript(path: Path, device: torch.device) -> Program:
    """The module of an archive, in eval mode; for the meta device on the CPU (see `drop_values`).

    Raises:
        WeightsError: the file is damaged, not TorchScript, could do more than compute, or has
            weights that are not finite.
    """
    with path.open("rb") as file:
        is_archive = file.read(2) == b"PK" and zipfile.is_zipfile(file)
    if not is_archive:
        problem = other_format(path) or (
            "not a TorchScript archive: damaged, truncated, or of another format; download it again"
        )
        raise WeightsError(f"{path}: {problem}")
    place = torch.device("cpu") if device.type == "meta" else device
    try:
        _check_program(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of TorchScript as a whole
            script: nn.Module = torch.jit.load(  # type: ignore[no-untyped-call]
                str(path), map_location=place
            )
    except RuntimeError as error:
        raise WeightsError(
            f"{path}: not a TorchScript module ({str(error).strip().partition(chr(10))[0]}); "
            "download it again"
        ) from error
    if broken := [
        name for name, value in script.named_parameters() if not bool(value.isfinite().all())
    ]:
        raise WeightsError(f"{path}: {preview(broken)}: NaN or infinite values; download it again")
    return Program(script, place).eval()


def _check_program(path: Path) -> None:
    """Check that a program only computes.

    Raises:
        WeightsError: it could do more.
        RuntimeError: the archive is not one of PyTorch's.
    """
    reader = torch._C.PyTorchFileReader(str(path))  # as the loader reads it
    for name in reader.get_all_records():
        if not name.endswith(".py"):
            continue
        if found := _REFUSED.search(reader.get_record(name).decode("utf-8", "replace")):
            raise WeightsError(
                f"{path}: its program has {found[0]} ({name}), which could do more than compute; "
                "give the file that the codec's authors published"
            )
