"""`specfrontier reference`: from a folder of images to a file that sweeps use; errors are one
line.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import typer
from PIL import Image
from torch import Tensor

import workers.data.reference
from orchestrator.cli.reference import EPILOG, reference
from orchestrator.errors import CommandError
from tests.fakes.png_files import broken_chunk_type
from workers.data.reference import read_reference
from workers.metrics.features import load_features
from workers.metrics.networks import EXTRACTORS, Extractor, ExtractorFactory
from workers.models.checkpoint_files import content_hash
from workers.models.families.scenes import BUILTIN


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More noise images than the built-in net has features."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(70):
        pixels = torch.randint(0, 256, (50, 60, 3), generator=torch.Generator().manual_seed(number))
        Image.fromarray(pixels.byte().numpy()).save(folder / f"{number}.png")
    return folder


def run(*arguments: str) -> None:
    """The command with typer's parsing; its exceptions propagate."""
    app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    app.command(epilog=EPILOG)(reference)
    app(list(arguments), standalone_mode=False)


def test_a_folder_becomes_a_reference(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, net = tmp_path / "new" / "mine.parquet", load_features()
    run(str(photos), "--out", str(out), "--device", "cpu")
    printed = capsys.readouterr()
    made = read_reference(out, extractors=[net])
    assert (
        printed.out
        == f"{out}: 70 images of {made.facts['source']}, 64 features of {net.identity}\n"
    )
    assert printed.err == "", "no progress without a terminal"
    assert made.features[0].shape == (70, 64)
    run(str(photos), "--out", str(out), "--count", "66", "--json", "--device", "cpu")
    facts = json.loads(capsys.readouterr().out)
    assert facts == {"file": str(out), "width": 64, **read_reference(out).facts, "left_out": ""}
    assert facts["count"] == 66
    assert facts["resize"] == "centre square, Pillow Lanczos to 48 x 48"


def test_what_is_left_out_is_printed(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Half of the pictures have an ending that is not read; the others are links to folders and
    files.
    """
    folder, out = tmp_path / "set", tmp_path / "r.parquet"
    folder.mkdir()
    (folder / "linked").symlink_to(photos)
    for number in range(70):
        (folder / f"{number}.tif").write_bytes(b"x")
    run(str(folder), "--out", str(out), "--device", "cpu")
    assert capsys.readouterr().out.endswith("; left out: 70 .tif\n")
    assert read_reference(out).facts["count"] == 70
    run(str(folder), "--out", str(out), "--count", "66", "--json", "--device", "cpu")
    assert json.loads(capsys.readouterr().out)["left_out"] == "70 .tif"


def test_a_broken_image_is_named_before_any_features(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "set"
    shutil.copytree(photos, folder)
    broken_chunk_type(folder / "99.png")
    monkeypatch.setattr(workers.data.reference, "build_reference", None)
    with pytest.raises(CommandError, match=r"99\.png: not a readable image") as raised:
        run(str(folder), "--out", str(tmp_path / "r.parquet"), "--device", "cpu")
    assert raised.value.code == 2


class Colours(Extractor):
    """An extractor of three features, as a user's weight file gives it."""

    side, width = 20, 3

    def extract(self, images: Tensor) -> Tensor:
        return images.mean((2, 3))


def test_extractors_of_the_users_files(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Those of an entry of a models.yaml; one result has the features of both."""
    loaded: list[tuple[str, str]] = []

    def entry(key: str, role: str) -> ExtractorFactory:
        def load(path: Path) -> Colours:
            loaded.append((key, path.name))
            return Colours()

        return ExtractorFactory(key=key, role=role, architecture=key, load=load)

    entries = {"inception": entry("inception", "features"), "vgg": entry("vgg", "manifold")}
    monkeypatch.setattr(EXTRACTORS, "_entries", entries)
    out = tmp_path / "mine.parquet"
    files = [tmp_path / "a.pth", tmp_path / "b.pth"]
    for file in files:
        file.touch()
    metrics = {"inception": str(files[0]), "vgg": str(files[1])}
    models = tmp_path / "models.yaml"
    models.write_text(
        json.dumps({"mine": {"family": "scenes", "folder": str(BUILTIN), "metrics": metrics}})
    )
    options = (
        "--models",
        str(models),
        "--out",
        str(out),
        "--device",
        "cpu",
    )
    run(str(photos), *options, "--json")
    facts = json.loads(capsys.readouterr().out)
    assert loaded == [("inception", "a.pth"), ("vgg", "b.pth")]
    identities = {
        key: f"{key}@{content_hash(file)}"
        for key, file in zip(("inception", "vgg"), files, strict=True)
    }
    assert facts["identity"] == identities["inception"]
    assert facts["also"] == {"vgg": identities["vgg"]}
    assert facts["resize"] == "centre square, Pillow Lanczos to 20 x 20"
    both = [Colours(), Colours()]
    for each, (name, identity) in zip(both, identities.items(), strict=True):
        each.name, each.identity = name, identity
    assert [features.shape for features in read_reference(out, extractors=both).features] == [
        (70, 3)
    ] * 2


def test_progress_on_a_terminal(
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(workers.data.reference, "_BATCH", 40)
    run(str(photos), "--out", str(tmp_path / "a.parquet"), "--device", "cpu")
    assert capsys.readouterr().err == "\r40 of 70 images\r70 of 70 images\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("nowhere",), 2, "nowhere: no such folder"),
        (
            ("PHOTOS", "--out", "reference.csv"),
            2,
            r"--out reference\.csv: give a file name that ends in \.parquet",
        ),
        (
            ("PHOTOS", "--out", "s3://KEYID:hunter22@lab/a.csv"),
            2,
            r"--out s3://.*lab/a\.csv: .*\.parquet",
        ),
        (("PHOTOS", "--device", "gpu"), 2, "--device gpu"),
        (("PHOTOS", "--models", "nowhere"), 2, "nowhere: no such file or folder"),
        (("PHOTOS", "--models", "MODELS#missing"), 1, r"nowhere\.pth: no such file"),
        (("PHOTOS", "--models", "MODELS#picture"), 1, r"the ending '\.png' is not supported"),
        (("PHOTOS", "--models", "MODELS#both"), 1, "exclude each other"),
        (("scenes",), 2, "set count"),
        (
            ("PHOTOS", "--out", "nope://KEYID:hunter22@host/a.parquet"),
            2,
            r"^--out nope://host: cannot be used",
        ),
        (
            ("PHOTOS", "--out", "PHOTOS/0.png/a.parquet"),
            2,
            r"0\.png: is a file in the place of a folder",
        ),
    ],
)
def test_wrong_usage(
    arguments: tuple[str, ...],
    code: int,
    message: str,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"PHOTOS": str(photos), "MODELS": str(wrong_models(photos))}
    words = list(arguments)
    for name, place in places.items():
        words = [word.replace(name, place) for word in words]
    with pytest.raises(CommandError, match=message) as raised:
        run(*words)
    assert raised.value.code == code
    assert "hunter22" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def wrong_models(photos: Path) -> Path:
    """A models.yaml whose entries name networks that cannot be used."""
    files = {
        "missing": {"inception": "nowhere.pth"},
        "picture": {"inception": str(photos / "0.png")},
        "both": {"inception": "a.pth", "inception_tf": "a.pth"},
    }
    entries = {
        name: {"family": "scenes", "folder": str(BUILTIN), "metrics": metrics}
        for name, metrics in files.items()
    }
    path = photos.parent / "wrong.yaml"
    path.write_text(json.dumps(entries))
    return path


def test_an_interrupt_leaves_no_file(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers.data.reference, "build_reference", interrupted)
    with pytest.raises(CommandError, match="nothing was written") as raised:
        run(str(photos), "--out", str(tmp_path / "a.parquet"))
    assert raised.value.code == 130
    assert list(tmp_path.iterdir()) == []
