"""One rule for the types and layouts of weights: read, converted with a note, or refused by file
and type; headers say the same as values do.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.fakes.tiny_llamagen import write_models
from workers.loading.models import Models
from workers.loading.models_yaml import load_entry, load_on_meta, read_entry
from workers.metrics import features
from workers.metrics.features import load_features
from workers.models.checkpoint_files import (
    WeightsError,
    add_note,
    collect_notes,
    load_tensors,
    shapes_only,
)

CPU = torch.device("cpu")
PARTS = ("transformer", "vq", "text", "drafters.eagle")
CONVERTED = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float64,
)
REFUSED = (
    torch.float8_e8m0fnu,
    torch.int8,
    torch.uint8,
    torch.uint32,
    torch.int64,
    torch.bool,
    torch.complex64,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("made"))


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Path:
    """A models.yaml whose files may be changed."""
    return Path(shutil.copytree(made.parent, tmp_path / "mine")) / made.name


def change(
    models: Path, part: str, convert: Callable[[Tensor], Tensor], extra: tuple[str, ...] = ()
) -> Path:
    """Replace the floating tensors of a part's file, and add `extra` ones; returns the path that
    messages name.
    """
    path = Path(read_entry(models, "captions").files[part])
    if path.suffix == ".pt":
        content = torch.load(path)
        content["model"] = {name: convert(value) for name, value in content["model"].items()}
        content["model"] |= {name: torch.ones(1) for name in extra}
        torch.save(content, path)
        return path
    file = path / "model.safetensors" if path.is_dir() else path
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = {name: convert(value) for name, value in load_file(file).items()}
    save_file(tensors | {name: torch.ones(1) for name in extra}, file, metadata)
    return path


def outcomes(models: Path) -> tuple[list[object], Models | None]:
    """What loading says, by headers alone and with values: notes, or the refusal; and the loaded
    models.
    """
    entry, loaded, said = read_entry(models, "captions"), None, list[object]()
    for load in (load_on_meta, lambda entry: load_entry(entry, CPU)):
        try:
            with collect_notes() as notes:
                loaded = load(entry)
            said.append(list(notes))
        except WeightsError as error:
            said.append(str(error))
            loaded = None
    return said, loaded


def weights(models: Models) -> dict[str, Tensor]:
    """All weights of target, drafter and text encoder by name."""
    found = {f"target.{name}": value for name, value in models.target.state_dict().items()}
    found |= {
        f"eagle.{name}": value for name, value in models.drafters["eagle"].state_dict().items()
    }
    encoder = cast("Any", models.target.conditioner)._encoder[0]
    return found | {f"text.{name}": value for name, value in encoder._model.state_dict().items()}


def every_part_and_type(dtypes: Sequence[torch.dtype]) -> list[Any]:
    """Each type in the transformer's file, and each part with one type or another."""
    cases = [*(("transformer", dtype) for dtype in dtypes), *zip(PARTS[1:], dtypes, strict=False)]
    return [pytest.param(part, dtype, id=f"{part} {dtype}") for part, dtype in cases]


@pytest.mark.parametrize(("part", "dtype"), every_part_and_type(CONVERTED))
def test_weights_are_converted_with_a_note(copy: Path, part: str, dtype: torch.dtype) -> None:
    path = change(copy, part, lambda value: value.to(dtype))
    (checked, said), models = outcomes(copy)
    assert checked == said
    assert isinstance(said, list)
    (note,) = said
    assert note.startswith(f"{path}: ")
    assert str(dtype) in note
    found = weights(models)  # type: ignore[arg-type]
    assert {value.dtype for value in found.values() if value.is_floating_point()} == {torch.float32}
    # what the types hold, as a user would convert it
    change(copy, part, lambda value: value.double().float())
    expected = weights(load_entry(read_entry(copy, "captions"), CPU))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize(("part", "dtype"), every_part_and_type(REFUSED))
def test_other_types_are_refused_by_file_and_type(
    copy: Path, part: str, dtype: torch.dtype
) -> None:
    path = change(copy, part, lambda value: value.to(dtype))
    (checked, said), _ = outcomes(copy)
    assert checked == said
    assert re.search(
        rf"{re.escape(str(path))}: \S+ has the (quantised )?type {re.escape(str(dtype))}; give ",
        str(said),
    )


@pytest.mark.parametrize(
    ("part", "scale"),
    [
        ("transformer", "weight_scale"),
        ("vq", "weight_scale_inv"),
        ("text", "scale_weight"),
        ("drafters.eagle", "input_scale"),
    ],
)
def test_eight_bits_with_scales_are_refused(copy: Path, part: str, scale: str) -> None:
    """Without the scales, the numbers would be wrong."""
    path = change(
        copy, part, lambda value: value.to(torch.float8_e4m3fn), (f"layers.0.attention.wo.{scale}",)
    )
    (checked, said), _ = outcomes(copy)
    assert checked == said
    for word in (
        f"{path}: ",
        "torch.float8_e4m3fn",
        f"layers.0.attention.wo.{scale}",
        "original weights",
    ):
        assert word in str(said)


def test_a_quantised_folder_of_transformers_is_refused(copy: Path) -> None:
    config = Path(read_entry(copy, "captions").files["text"]) / "config.json"
    keys = json.loads(config.read_text())
    config.write_text(json.dumps(keys | {"quantization_config": {"quant_method": "fp8"}}))
    (checked, said), _ = outcomes(copy)
    assert checked == said
    assert f"{config}: quantised" in str(said)


def test_a_folder_of_transformers_may_name_its_type(copy: Path) -> None:
    path = change(copy, "text", lambda value: value.to(torch.float8_e5m2))
    keys = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(keys | {"dtype": "float8_e5m2"}))
    (checked, said), models = outcomes(copy)
    assert checked == said
    assert models is not None


def test_metric_nets_follow_the_same_rule(tmp_path: Path) -> None:
    path = tmp_path / features.BUILTIN.name
    with safe_open(features.BUILTIN, framework="pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(features.BUILTIN)

    def write(dtype: torch.dtype) -> None:
        whole = {
            name: value.to(dtype) if value.is_floating_point() else value
            for name, value in tensors.items()
        }
        save_file(whole, path, metadata)

    write(torch.float8_e4m3fnuz)
    with collect_notes() as notes:
        net = load_features(path)
    assert [str(torch.float8_e4m3fnuz) in note for note in notes] == [True]
    name, weight = next(
        (name, value) for name, value in net.state_dict().items() if name.endswith("weight")
    )
    assert torch.equal(weight, tensors[name].to(torch.float8_e4m3fnuz).float())
    write(torch.int8)
    with pytest.raises(
        WeightsError, match=rf"{re.escape(str(path))}: .*quantised type torch\.int8"
    ):
        load_features(path)


#: Tensors that are no arrays of numbers, and what the refusal says.
LAYOUTS: dict[str, tuple[Callable[[], Tensor], str]] = {
    "coo": (lambda: torch.eye(4).to_sparse(), "sparse_coo"),
    "csr": (lambda: torch.eye(4).to_sparse_csr(), "sparse_csr"),
    "bsr": (lambda: torch.eye(4).to_sparse_bsr((2, 2)), "sparse_bsr"),
    "nested": (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]), "nested"),
    "per tensor": (
        lambda: torch.quantize_per_tensor(torch.eye(4), 0.1, 0, torch.qint8),
        "torch.qint8",
    ),
    "meta": (lambda: torch.empty(4, 4, device="meta"), "no values"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("shapes", [False, True])
def test_layouts_without_numbers_are_refused(tmp_path: Path, name: str, shapes: bool) -> None:
    make, word = LAYOUTS[name]
    torch.save({"model": {"a.weight": torch.ones(2), "b.weight": make()}}, tmp_path / "x.pt")
    with (
        shapes_only() if shapes else nullcontext(),
        pytest.raises(WeightsError, match=rf"x\.pt: b\.weight .*{re.escape(word)}"),
    ):
        load_tensors(tmp_path / "x.pt")


def test_a_sparse_tensor_is_a_problem_of_its_entry(copy: Path) -> None:
    path = change(
        copy, "transformer", lambda value: value.to_sparse() if value.dim() == 2 else value
    )
    (checked, said), _ = outcomes(copy)
    assert checked == said
    assert f"{path}: tok_embeddings.weight is a sparse_coo tensor" in str(said)


#: Dense tensors in other memory layouts, which hold the same numbers.
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "transposed": lambda value: value.t().contiguous().t() if value.dim() == 2 else value,
    "a slice of a larger one": lambda value: torch.stack([value, value + 1], -1)[..., 0],
    "parameters": torch.nn.Parameter,
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_parameters_are_read(copy: Path, name: str) -> None:
    before = weights(load_entry(read_entry(copy, "captions"), CPU))
    change(copy, "transformer", VIEWS[name])
    (checked, said), models = outcomes(copy)
    assert checked == said == []
    after = weights(models)  # type: ignore[arg-type]
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert all(value.is_contiguous() and not value.requires_grad for value in after.values())


def test_shared_storage_and_expanded_tensors_are_read(tmp_path: Path) -> None:
    row = torch.arange(3.0)
    torch.save({"a": row.expand(4, 3), "b": row, "c": row[1:]}, tmp_path / "x.pt")
    found = load_tensors(tmp_path / "x.pt")
    assert found["a"].tolist() == [[0, 1, 2]] * 4
    assert found["c"].tolist() == [1, 2]


def test_a_type_without_a_name_in_torch_is_named(tmp_path: Path) -> None:
    header = json.dumps(
        {"a": {"dtype": "F6_E2M3", "shape": [4, 4], "data_offsets": [0, 12]}}
    ).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(12))
    with pytest.raises(
        WeightsError, match=r"x\.safetensors: .*F6_E2M3.*; give the original weights"
    ):
        load_tensors(path)


def test_notes_are_warnings_without_a_collector() -> None:
    with pytest.warns(UserWarning, match="x.pt: y"):
        add_note("x.pt: y")
    with collect_notes() as notes:
        add_note("x.pt: y")
        add_note("x.pt: y")
    assert list(notes) == ["x.pt: y"]
