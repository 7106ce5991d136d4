"""Folders that `save_pretrained` of `transformers` wrote: read by that library, checked as every other checkpoint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers.models.checkpoint_files import WeightsError, load_tensors, read_object, reading_shapes, shapes_only, some


def open_model(folder: str | Path, kind: Any, dtype: torch.dtype, *, codec: str) -> Any:
    """The model of a folder, ready to run: a `kind`, which is a class of the library. In shapes alone inside
    `shapes_only`.

    Weights are cast to `dtype`, but for those below `codec`, which stay as the file has them. Buffers are not cast:
    rotary frequencies stay in fp32 whatever the weights are in.

    Raises:
        WeightsError: files that are missing, damaged, of another model or size; tensors that are missing or unknown.
    """
    folder = Path(folder)
    said = read_object(folder / "config.json")
    wanted = kind.config_class.model_type
    if said.get("model_type") != wanted:
        raise WeightsError(f"{folder / 'config.json'}: a {said.get('model_type')!r}, not a {wanted!r}: another family")
    tensors = load_tensors(folder)  # says in words what is damaged or missing; the library's own words are a traceback
    try:
        config = kind.config_class.from_pretrained(folder, local_files_only=True)
        with torch.device("meta"):
            model = kind(config)
    except Exception as error:  # its validation raises errors of several libraries
        raise WeightsError(f"{folder / 'config.json'}: no {wanted}: {str(error).partition(chr(10))[0]}") from error
    _refuse(folder, _held(model, tensors))
    if not reading_shapes():
        model = _filled(folder, kind, config)
    for name, parameter in model.named_parameters():
        if not name.startswith(f"{codec}."):
            parameter.data = parameter.data.to(dtype)
    return model.eval()


def _held(model: Any, tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """What of a folder does not fit a model, as the library reports it. Where names are old ones, which the library
    renames when it loads, this is seen only then.
    """
    slots, tied = model.state_dict(), model._tied_weights_keys or ()
    missing = [name for name in slots if name not in tensors and name not in tied]
    extra = [name for name in tensors if name not in slots]
    if missing and extra:
        missing, extra = [], []
    with shapes_only():
        sizes = [name for name in slots if name in tensors and tensors[name].shape != slots[name].shape]
    return {"missing_keys": missing, "unexpected_keys": extra, "mismatched_keys": sizes}


def _filled(folder: Path, kind: Any, config: Any) -> Any:
    """The model with the folder's numbers, which are finite.

    Raises:
        WeightsError: they are not, or do not fit.
    """
    try:
        with _no_bars():
            model, report = kind.from_pretrained(
                folder, config=config, local_files_only=True, dtype="auto", attn_implementation="sdpa",
                output_loading_info=True, ignore_mismatched_sizes=True,
            )  # fmt: skip
    except (OSError, RuntimeError, ValueError, KeyError, TypeError) as error:
        raise WeightsError(f"{folder}: cannot be loaded: {str(error).partition(chr(10))[0]}") from error
    _refuse(folder, report)
    if wrong := [name for name, value in model.named_parameters() if not bool(value.isfinite().all())]:
        raise WeightsError(f"{folder}: {some(wrong)}: NaN or infinite values; the files are damaged")
    return model


@contextmanager
def _no_bars() -> Iterator[None]:
    """The library's progress bars and reports of loading off: they say nothing that is not said here."""
    from transformers.utils import logging as library

    logging: Any = library
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _refuse(folder: Path, report: Mapping[str, Any]) -> None:
    """Raise for what the library would only warn of."""
    if sizes := sorted(str(key[0] if isinstance(key, tuple) else key) for key in report["mismatched_keys"]):
        raise WeightsError(f"{folder}: {some(sizes)}: of another size than config.json says; the two do not belong")
    for key, words in (("missing_keys", "lacks"), ("unexpected_keys", "holds, unknown to its config.json:")):
        if names := sorted(report[key]):
            raise WeightsError(f"{folder}: the checkpoint {words} {some(names)}")


class Tokens:
    """A folder's tokenizer: a text with its special tokens spelled out, to ids."""

    def __init__(self, folder: str | Path) -> None:
        """WeightsError: there is none."""
        from transformers import AutoTokenizer

        self.folder = Path(folder)
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
        except Exception as error:  # the library raises anything at all for a folder without one
            raise WeightsError(
                f"{self.folder}: no tokenizer that can be read ({str(error).partition(chr(10))[0]}); put the model's "
                "tokenizer.json and tokenizer_config.json there"
            ) from error

    def __call__(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return ids

    def named(self, role: str) -> str:
        """The special token of a role, such as boi_token, by the names that the library's processors use.

        Raises:
            WeightsError: the tokenizer has none.
        """
        token = getattr(self._tokenizer, role, None)
        if not isinstance(token, str) or len(self(token)) != 1:
            raise WeightsError(f"{self.folder}: its tokenizer has no {role}; is it another model's?")
        return token
