"""`doctor --models`: whether the checkpoints of a models.yaml exist, are complete, match their
family, and fit here.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from orchestrator.doctor.machine import memory
from search_spaces.params import ConfigError
from search_spaces.paths import local_path
from search_spaces.presets import preset
from search_spaces.trial import DecodingConfig
from workers.data.folders import size_on_disk
from workers.loading import hub
from workers.loading.dry_run import Footprint, footprint, largest_batch
from workers.loading.models import Capabilities
from workers.loading.models_yaml import (
    Entry,
    find_entry,
    load_on_meta,
    metric_bytes,
    read_models_yaml,
    split_entry,
)
from workers.metrics.extractors import check_weights
from workers.models.checkpoint_files import WeightsError, collect_notes, content_hash, read_part
from workers.runtime.device import AUTO, pick_device
from workers.runtime.memory import format_bytes

# a typical tree of 60 nodes; without an EAGLE drafter, memory is that of vanilla decoding
_PRESET = "eagle2"


def check_models(source: str, batch: int) -> dict[str, Any]:
    """Findings on a models.yaml, or on the entry that `source` names, as plain data.

    Raises:
        ConfigError, OSError: the file is missing, or no entry of it is valid.
    """
    is_file = split_entry(source)[1] is None and local_path(source).is_file()
    listed = read_models_yaml(source) if is_file else {source: find_entry(source)}
    invalid = [entry for entry in listed.values() if isinstance(entry, ConfigError)]
    if len(invalid) == len(listed):
        raise invalid[0]
    device = pick_device(AUTO)
    free = available_memory(device)
    found = []
    for name, entry in listed.items():
        if isinstance(entry, ConfigError):
            found.append(_describe_invalid(name, entry))
        else:
            found.append(_check_entry(entry, batch, device, free))
    return {
        "file": source,
        "device": device.type,
        "free_memory": free,
        "entries": found,
        "problems": [problem for entry in found for problem in entry["problems"]],
    }


def _describe_invalid(name: str, error: ConfigError) -> dict[str, Any]:
    """Findings on an invalid entry: its mistake."""
    return {
        "name": name,
        "family": "invalid",
        "where": error.location,
        "files": [],
        "problems": [str(error)],
        "notes": [],
    }


def _check_entry(
    entry: Entry, batch: int, device: torch.device, free: int | None
) -> dict[str, Any]:
    """Findings on one entry: its files with sizes and hashes, its architecture, its memory at a
    batch size.
    """
    paths = entry.files | {f"metrics.{key}": path for key, path in entry.metrics.items()}
    files = [_check_file(key, path, entry.pull_fix) for key, path in paths.items()]
    problems = [
        f"{entry.where}: {entry.name}.{file['key']}: {file['problem']}"
        for file in files
        if file["problem"]
    ]
    found: dict[str, Any] = {
        "name": entry.name,
        "family": entry.family.kind,
        "where": entry.where,
        "files": files,
        "problems": problems,
    }
    with collect_notes() as notes:
        problems += _metric_problems(entry)
        if not any(file["problem"] for file in files if file["key"] in entry.files):
            try:
                found |= _architecture(entry, batch, device, free, problems)
            except ValueError as error:
                problems.append(str(error))
    return found | {"notes": list(notes)}


def _metric_problems(entry: Entry) -> list[str]:
    """Problems of the keys under `metrics` and of their files, if they exist."""
    try:
        problems = check_weights(entry.folder, entry.metrics)
    except ValueError as error:
        return [f"{entry.where}: {entry.name}: {error}"]
    return [
        f"{entry.where}: {entry.name}.metrics.{key}: {problem}"
        for key, problem in problems.items()
        if Path(entry.metrics[key]).exists()  # a missing file is reported with the others
    ]


def _check_file(key: str, place: str, pull_fix: str) -> dict[str, Any]:
    """Size and hash of a file or folder, and which of several state dicts in it is read; or its
    problem.
    """
    path = Path(place)
    found: dict[str, Any] = {
        "key": key,
        "path": place,
        "bytes": None,
        "hash": None,
        "part": "",
        "problem": None,
    }
    if not path.exists() and place.startswith(hub.SCHEME.rstrip("/")):
        return found | {"problem": f"{place}: not in the cache of the Hugging Face Hub; {pull_fix}"}
    if not path.exists():
        return found | {
            "problem": f"{path}: no such file or folder; check the path, or download it"
        }
    try:
        size = size_on_disk(path)
        if size == 0 and path.is_dir():
            return found | {"problem": f"{path}: the folder is empty; download its files"}
        found |= {"bytes": size, "hash": content_hash(path)}
    except (ValueError, OSError) as error:
        return found | {"problem": str(error)}
    with suppress(WeightsError):  # loading the model reports it
        found["part"] = read_part(path)
    return found


def _architecture(
    entry: Entry, batch: int, device: torch.device, free: int | None, problems: list[str]
) -> dict[str, Any]:
    """The architecture in the files, checked against the family's, and its memory. Appends to
    `problems`.

    Raises:
        ValueError: a shape differs, a shard is truncated, or a file is of another family.
    """
    dtype = entry.dtype_on(device)
    models = load_on_meta(entry, dtype)
    capabilities = Capabilities.of(models)
    config = preset(_PRESET) if "eagle" in capabilities.drafters else DecodingConfig()
    # two batch sizes show how memory grows
    needed = footprint(models, config, batch, batch)
    other = batch + 7
    more = footprint(models, config, other, other)
    if device.type == "cuda":
        needed = needed.with_graphs()
        more = more.with_graphs()
    nets = sum(metric_bytes(entry).values())
    largest = None
    if free is not None:
        largest = largest_batch((batch, needed.bytes), (other, more.bytes), free - nets)
    if largest == 0:
        problems.append(
            f"{entry.where}: {entry.name}: {format_bytes(needed.parameters + nets)} of parameters "
            f"leave no room for one image ({format_bytes(free)} are free); use a larger device, "
            "or dtype bfloat16"
        )
    return {
        "numbers": sum(parameter.numel() for parameter in models.target.parameters()),
        **capabilities.to_mapping(),
        "drafters": sorted(capabilities.drafters),
        "dtype": str(dtype).removeprefix("torch."),
        "memory": memory_parts(needed, nets) | {"batch": batch, "largest_batch": largest},
    }


_PARTS = ("parameters", "cache", "graphs", "activations", "pictures", "metric_nets")


def memory_parts(needed: Footprint, metric_nets: int = 0) -> dict[str, int]:
    """Bytes by purpose, and their peak."""
    parts = {kind: getattr(needed, kind) for kind in _PARTS[:-1]}
    return {**parts, "metric_nets": metric_nets, "total": needed.bytes + metric_nets}


def describe_memory(parts: Mapping[str, int]) -> str:
    """The peak of `memory_parts`, and the parts."""
    shown = ", ".join(
        f"{kind.replace('_', ' ')} {format_bytes(parts[kind])}" for kind in _PARTS if parts[kind]
    )
    return f"{format_bytes(parts['total'])} ({shown})"


def available_memory(device: torch.device) -> int | None:
    """Free bytes on a device; None if unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    known = [size for size in memory() if size is not None]
    return min(known, default=None)


def describe_checkup(found: Mapping[str, Any]) -> list[str]:
    """The findings as lines of text: one per file and fact."""
    lines = [f"{found['file']} on {found['device']}, {format_bytes(found['free_memory'])} free"]
    for entry in found["entries"]:
        lines += ["", f"{entry['name']} ({entry['family']}, {entry['where']})"]
        lines += [f"  {file['key']:<20} {_describe_file(file)}" for file in entry["files"]]
        lines += [f"  {'note':<20} {text}" for text in entry["notes"]]
        if "target" not in entry:
            continue
        parts = entry["memory"]
        grid = f"{entry['rows']} x {entry['cols']} tokens of {entry['vocab_size']} codes"
        if entry["preview"]:
            rows, cols = entry["preview"]
            grid += f", after a preview of {rows} x {cols}"
        shape = f"{entry['numbers']:,} parameters, {entry['image_size']} px, {grid}"
        largest = "unknown" if parts["largest_batch"] is None else parts["largest_batch"]
        lines += [
            f"  {'target':<20} {entry['target']}: {shape}",
            f"  {'drafters':<20} {', '.join(entry['drafters']) or 'none'}",
            (
                f"  {'memory':<20} at batch {parts['batch']} in {entry['dtype']}: "
                f"{describe_memory(parts)}; largest batch here: {largest}"
            ),
        ]
    problems = [f"PROBLEM: {problem}" for problem in found["problems"]]
    return [*lines, "", *(problems or ["No problems."])]


def _describe_file(file: Mapping[str, Any]) -> str:
    if file["problem"]:
        return "PROBLEM"
    text = f"{file['bytes']:>14,} bytes  sha256 {file['hash']}…  {file['path']}"
    return f"{text}; {file['part']}" if file["part"] else text
