"""Models in folders that `save_pretrained` of `transformers` wrote: the library reads them, this
module checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from workers.models.checkpoint_files import (
    Tensors,
    WeightsError,
    is_shapes_only,
    load_tensors,
    preview,
    read_json_object,
    without_prefix,
)
from workers.models.layouts import FOREIGN_CONFIGS
from workers.models.weights import check_dtypes, with_wide_floats


def load_pretrained(
    folder: str | Path,
    model_class: Any,
    dtype: torch.dtype,
    *,
    keep: str = "",
    renamed: bool = True,
) -> Any:
    """The model of a folder in eval mode; on the meta device inside `shapes_only`.

    Rotary frequencies stay in fp32.

    Args:
        folder: folder that `save_pretrained` wrote.
        model_class: class of the model in the library.
        dtype: type to which weights are cast.
        keep: weights with this text in their name keep the file's type.
        renamed: whether files may have older names, which the library renames.

    Raises:
        WeightsError: a file is missing, damaged, or of another model or size; tensors are missing
            or unknown.
    """
    folder = Path(folder)
    _check_config(folder, model_class.config_class.model_type)
    # First, because its errors name what is damaged or missing; the library's do not.
    tensors = load_tensors(folder)
    try:
        config = model_class.config_class.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = model_class(config)
    except Exception as error:  # its validation raises errors of several libraries
        raise WeightsError(
            f"{folder / 'config.json'}: not a valid {model_class.config_class.model_type} config: "
            f"{str(error).partition(chr(10))[0]}"
        ) from error
    slots = model.state_dict()
    tensors = without_prefix(tensors, slots)
    check_dtypes(
        tensors, [n for n in tensors if n in slots and slots[n].is_floating_point()], where=folder
    )
    if is_shapes_only():
        _check_report(folder, _compare(model, tensors, renamed))
    else:
        # Types of buffers follow: Gemma's scale of embeddings is one.
        model = _load_values(folder, model_class, config, tensors, "auto" if keep else dtype)
    for name, parameter in model.named_parameters():
        if not keep or keep not in name:
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def _check_config(folder: Path, expected: str) -> None:
    """Raises WeightsError unless config.json is that of an original model of the `expected`
    type.
    """
    file = folder / "config.json"
    keys = read_json_object(file)
    found = keys.get("model_type")
    if foreign := FOREIGN_CONFIGS.get(str(found)):
        raise WeightsError(f"{file}: {foreign.kind}: {foreign.fix}")
    if found != expected:
        raise WeightsError(f"{file}: a {found!r}, not a {expected!r}: it is of another family")
    if "quantization_config" in keys:
        raise WeightsError(f"{file}: quantised (quantization_config); give the original model")


def _load_values(
    folder: Path, model_class: Any, config: Any, tensors: Tensors, dtype: torch.dtype | str
) -> Any:
    """The model with the folder's values, read by the library. dtype: "auto" is the folder's.

    Raises:
        WeightsError: the library cannot load it, tensors are missing, unknown or of another size,
            or values are not finite.
    """
    state = {name: with_wide_floats(value) for name, value in tensors.items()}
    is_changed = tensors.is_renamed or any(state[name] is not tensors[name] for name in state)
    # The library does not find files whose ending is in capitals.
    is_changed |= any(file.suffix.isupper() for file in folder.iterdir())
    if "float8" in str(config.dtype):  # the library would make its parameters in that type
        config.dtype = None
    try:
        with _silent_library():
            model, report = model_class.from_pretrained(
                None if is_changed else folder,
                state_dict=state if is_changed else None,
                config=config,
                local_files_only=True,
                dtype=dtype,
                attn_implementation="sdpa",
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(
            f"{folder}: cannot be loaded: {str(error).partition(chr(10))[0]}"
        ) from error
    _check_report(folder, report)
    if broken := [
        name for name, value in model.named_parameters() if not bool(value.isfinite().all())
    ]:
        raise WeightsError(
            f"{folder}: {preview(broken)}: NaN or infinite values; the files are damaged"
        )
    return model


def _compare(model: Any, tensors: Mapping[str, Tensor], renamed: bool) -> dict[str, list[str]]:
    """Mismatches between a folder's tensors and a model, in the form of the report that the library
    gives when it loads values.

    With `renamed`, names that are missing and names that are unknown are not reported if there are
    both: the library may rename old ones while it loads.
    """
    slots = model.state_dict()
    tied = model._tied_weights_keys
    ignored = model._keys_to_ignore_on_load_unexpected
    missing = [name for name in slots if name not in tensors and name not in (tied or ())]
    extra = [
        name
        for name in tensors
        if name not in slots and not any(re.search(k, name) for k in ignored or ())
    ]
    if renamed and missing and extra:
        missing = []
        extra = []
    sizes = [name for name in slots if name in tensors and tensors[name].shape != slots[name].shape]
    return {"missing_keys": missing, "unexpected_keys": extra, "mismatched_keys": sizes}


@contextmanager
def _silent_library() -> Iterator[None]:
    """Turn off the library's progress bars and loading reports; this module reports the
    problems.
    """
    from transformers.utils import logging as library

    logging: Any = library
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _check_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Raise for mismatches that the library only warns about."""
    if sizes := sorted(
        str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]
    ):
        raise WeightsError(
            f"{folder}: {preview(sizes)}: another size than in config.json; the files do not match"
        )
    for key, problem in (
        ("missing_keys", "lacks"),
        ("unexpected_keys", "has tensors unknown to its config.json:"),
    ):
        if names := sorted(report[key]):
            raise WeightsError(f"{folder}: the checkpoint {problem} {preview(names)}")


class HFCodec(nn.Module):
    """The VQ decoder of a model of `transformers`, in fp32. The encoder is not used, and is
    removed.
    """

    def __init__(self, vq: Any) -> None:
        super().__init__()
        vq.encoder = vq.quant_conv = nn.Identity()
        self.vq = vq.float()

    @property
    def codebook(self) -> Tensor:
        """The codes as they are decoded, [V, d]."""
        weight: Tensor = self.vq.quantize.embedding.weight
        return weight


class HFTokenizer:
    """A folder's tokenizer: turns a text, with its special tokens spelled out, into ids."""

    def __init__(self, folder: str | Path) -> None:
        """
        Raises:
            WeightsError: the folder has no readable tokenizer.
        """
        from transformers import AutoTokenizer

        self.folder = Path(folder)
        self.library: Any  # the tokenizer of `transformers`
        try:
            self.library = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except Exception as error:  # the library raises many types for a folder without one
            raise WeightsError(
                f"{self.folder}: no tokenizer that can be read "
                f"({str(error).partition(chr(10))[0]}); put the model's tokenizer.json and "
                "tokenizer_config.json there"
            ) from error

    def __call__(self, text: str) -> list[int]:
        return list(self.library.encode(text, add_special_tokens=False))

    def __len__(self) -> int:
        """The number of its tokens, added ones included."""
        return len(self.library)

    def check_tokens(self, tokens: Iterable[str]) -> None:
        """Check that each of these texts is one token.

        Raises:
            WeightsError: one is not.
        """
        for token in tokens:
            if self.library.convert_ids_to_tokens(self(token)) != [token]:
                raise WeightsError(
                    f"{self.folder}: its tokenizer has no token {token}; put the tokenizer that "
                    "came with the model there"
                )

    def special_token(self, role: str) -> str:
        """The special token of a role, such as boi_token, by the names that the library's
        processors use.

        Raises:
            WeightsError: the tokenizer has none.
        """
        token = getattr(self.library, role, None)
        if not isinstance(token, str) or len(self(token)) != 1:
            raise WeightsError(
                f"{self.folder}: its tokenizer has no {role}; is it another model's?"
            )
        return token
