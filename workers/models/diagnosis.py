"""Why a weight file cannot be read: truncated, of another format, or unsafe."""

from __future__ import annotations

import re
from pathlib import Path

from search_spaces.documents import parse_json


def _other_format(path: Path) -> str | None:
    """What a file is, from its first bytes, if it is not a weight file."""
    with path.open("rb") as file:
        head = file.read(64)
    if head.startswith(b"version https://git-lfs"):
        return "this is a git-lfs pointer, not the file it points to; run `git lfs pull`, or download the file itself"
    if head.lstrip().startswith((b"<!", b"<html", b"<?xml")):
        return "this is a web page, not weights: the download went wrong; download it again"
    return None


def diagnose_safetensors(path: Path) -> str:
    """Why a safetensors file cannot be read, and the fix."""
    if other := _other_format(path):
        return other
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size > 8 and file.read(1) != b"{":
            return "not a safetensors file in spite of its name; correct its ending, or convert it"
        file.seek(8)
        if size < 8 + length:
            return f"the file is truncated inside its header ({size} bytes); copy or download it again"
        try:
            header = parse_json(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError):
            return "its header is damaged; copy or download it again"
    expected = 8 + length + max(ends, default=0)
    if size < expected:
        return f"the file is truncated: {size} of the {expected} bytes its header promises; copy or download it again"
    return "its header does not describe its contents; copy or download it again"


def diagnose_pickle(path: Path, zipped: bool, error: Exception) -> str:
    """Why a file of `torch.save` cannot be read, and the fix."""
    if other := _other_format(path):
        return other
    if found := re.search(r"GLOBAL ([\w.]+)", str(error)):
        return (
            f"reading the file would run code ({found[1]}), which is refused; "
            "save only the tensors (`torch.save(model.state_dict(), ...)`), or convert it to safetensors"
        )
    if "TorchScript" in str(error):
        return (
            "a TorchScript archive, which is a program; give a file with only the weights "
            "(for FID: pt_inception-2015-12-05-6726825d.pth)"
        )
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PK\x03\x04" and not zipped:
        return f"the file is truncated: it ends after {path.stat().st_size} bytes without its index; download it again"
    return "not a readable PyTorch weight file: damaged, truncated, or of another format; download it again"
