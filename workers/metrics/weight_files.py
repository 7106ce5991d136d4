"""Weight files of the networks that metrics use: loaded frozen, identified by their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from workers.models.checkpoint_files import WeightsError, content_hash, load_tensors
from workers.models.weights import KeyMapping, load_weights, skip_init

C = TypeVar("C")
M = TypeVar("M", bound=nn.Module)


def load_frozen(
    build: Callable[[], M],
    path: Path,
    table: Sequence[KeyMapping] = (KeyMapping("{...}", "{...}"),),
    *,
    part: str = "",
    split: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors,
) -> M:
    """build() with the weights of a file: frozen, in evaluation mode, fp32.

    table: names in the file and in the module. part: name of the submodule that the file fills; all of it by default.
    split: applied to the file's tensors first, where one of them holds several weights.

    Raises:
        WeightsError: the file is missing, damaged, or of another model or size; it is named.
    """
    module, tensors = skip_init(build), split(load_tensors(path))
    load_weights(module.get_submodule(part), tensors, table, where=path)
    return module.eval().requires_grad_(False)


def config_from_header(kind: type[C], fields: Mapping[str, Any], name: str) -> C:
    """A config dataclass from the fields in a weight file's header. Raises WeightsError when they are not its own."""
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}
    try:
        return kind(**values)
    except TypeError as error:
        raise WeightsError(f"not the config of a {name}: {error}") from None


def combined_hash(paths: Sequence[Path]) -> str:
    """One hash for several files: that of a single one, else 16 hex digits over all of them."""
    hashes = [content_hash(path) for path in paths]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("\n".join(hashes).encode()).hexdigest()[:16]
