"""Recordings on disk: safetensors whose header names the recorded tree and what the steps depend on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from search_spaces.params import ConfigError
from search_spaces.trees import POLICIES, TreePolicy
from search_spaces.trial import DecodingConfig
from workers.data.shards import digest
from workers.decoding.state import Request
from workers.loading.models import Models
from workers.models.checkpoint_files import WeightsError, load_tensors
from workers.models.own_files import read_config, save
from workers.replay.nested_trees import NestedTrees
from workers.replay.recording import RecordedSteps

_FIX = "delete it, or give another folder"


def recording_identity(
    models: Models, config: DecodingConfig, requests: Sequence[Request], seed: int
) -> dict[str, Any]:
    """What a recording's steps depend on besides the tree: weights, sampling, captions, seed."""
    others = {f"drafters.{kind}" for kind in models.drafters if kind != config.drafter.kind}
    mapping = config.to_mapping()
    return {
        "weights": {key: value for key, value in models.hashes.items() if key not in others},
        "precision": str(models.target.dtype).removeprefix("torch."),
        "drafter": mapping["drafter"],
        "sampling": mapping["sampling"],
        "captions": digest([[request.caption_id, request.caption, request.sample] for request in requests]),
        "seed": seed,
    }


def write_recording(path: Path, policy: TreePolicy, steps: RecordedSteps, identity: Mapping[str, Any]) -> None:
    """Write a recording atomically, in fp32."""
    columns = {field.name: getattr(steps, field.name) for field in fields(steps)}
    tree = {"policy": policy.kind, **policy.to_mapping()}
    tensors = {name: column for name, column in columns.items() if column is not None}
    save(path, tensors, {"tree": tree, "identity": identity}, dtype=torch.float32)


def read_recording(
    path: Path, identity: Mapping[str, Any], device: torch.device
) -> tuple[TreePolicy, RecordedSteps] | None:
    """The recorded tree and its steps; None if there is no file.

    Raises:
        ValueError: the recording has another identity, or the file is not a recording.
    """
    if not path.exists():
        return None
    config = read_config(path)
    try:
        stored, tree = config["identity"], dict(config["tree"])
        kind = tree.pop("policy")
        policy = (NestedTrees if kind == NestedTrees.kind else POLICIES.lookup(kind)).from_mapping(tree)
    except ConfigError as error:  # the tree may be a plugin's
        raise ConfigError(error.path, error.problem, str(path)) from error
    except (KeyError, TypeError) as error:
        raise WeightsError(f"{path}: not a recording; {_FIX}") from error
    changed = [key for key in identity if stored.get(key) != identity[key]]
    if changed:
        raise WeightsError(f"{path}: recorded with other {' and '.join(changed)}; give another folder, or delete it")
    tensors = {name: tensor.to(device) for name, tensor in load_tensors(path).items()}
    return policy, RecordedSteps(**{field.name: tensors.get(field.name) for field in fields(RecordedSteps)})  # type: ignore[arg-type]
