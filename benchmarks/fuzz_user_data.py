"""Data of users in forms that people really have: image folders, weights, numbers, paths, streams,
tracking servers.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import torch
from PIL import Image, PngImagePlugin
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from benchmarks.fuzz_cases import Case, Maker
from benchmarks.fuzz_readers import NAME
from tests.fakes.odd_servers import HTTP, odd_server

IMAGES = 70  # of the folder `images`
_REFERENCE = ("reference", "images", "--out", "new.parquet")
_GENERATE = ("generate", "a large red circle", "--models", "weights", "--out", "new")
_CHECK = ("launch", "space.yaml", "--check", "--out", "new")


def image_folder(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A folder of images with links, hidden copies, other endings, or a damaged or an unusual
    image.
    """
    folder, first = place / "images", place / "images" / "00.png"
    kind = rng.randrange(9)
    if kind == 0:
        folder.rename(place / "elsewhere")
        folder.symlink_to("elsewhere")
    elif kind == 1:
        (folder / "below").mkdir()
        for path in sorted(folder.glob("6*.png")):
            path.rename(folder / "below" / path.name)
        (folder / "below" / "back").symlink_to("..")
    elif kind == 2:
        (folder / "lost.png").symlink_to("nowhere.png")
        return Case(_REFERENCE, named="lost.png")
    elif kind == 3:
        hidden = folder / rng.choice((".ipynb_checkpoints", "__MACOSX", ".cache"))
        hidden.mkdir()
        shutil.copy(first, hidden)
    elif kind == 4:
        ending = rng.choice((".heic", ".avif", ".tiff"))
        (folder / f"other{ending}").write_bytes(b"x")
        return Case(_REFERENCE, True, True, output=ending)
    elif kind == 5:
        first.rename(folder / "00.PNG")
    elif kind == 6:
        data = bytearray(first.read_bytes())
        data[rng.choice((12, 37))] = 0xFF  # the type of the first chunk, or of the second
        first.write_bytes(data)
        return Case(_REFERENCE, named="00.png")
    elif kind == 7:
        text = PngImagePlugin.PngInfo()
        text.add_text("parameters", "x" * 3_000_000, zip=True)
        Image.new("RGB", (48, 48)).save(first, pnginfo=text)
    else:
        Image.new("RGB", (48, 48)).save(first, icc_profile=bytes(2_000_000))
    return Case(_REFERENCE, True, True, output=f"{IMAGES} images")


_TYPES = (
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def weight_types(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """One tensor, or all tensors, of a file of weights in another type: converted, or refused by
    file and type.
    """
    file = (
        place
        / "weights"
        / rng.choice(["target.safetensors", "tokenizer.safetensors", "eagle.safetensors"])
    )
    with safe_open(file, "pt") as opened:
        metadata = opened.metadata()
    tensors = load_file(file)
    dtype = rng.choice(_TYPES)
    names = rng.choice([sorted(tensors), [rng.choice(sorted(tensors))]])
    save_file(tensors | {name: tensors[name].to(dtype) for name in names}, file, metadata)
    command = rng.choice([(*_GENERATE, "--preset", "eagle1"), _CHECK])
    return Case(command, True, named=file.name)


_NUMBERS = (
    ("1:30", None),
    ("0200", None),
    ("0o40", None),
    ("1_0", None),
    ("12:30:45", None),
    ("0b11", None),
    ("2", 2),
    ("+2", 2),
    ("0x2", 2),
)


def yaml_numbers(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A number that YAML 1.1 reads as another than it looks like."""
    text, value = rng.choice(_NUMBERS)
    key = rng.choice(("trials", "hours"))
    command: tuple[str, ...] = _CHECK
    if rng.randrange(2):
        command = (*_CHECK, "--set", f"budget.{key}={text}")
    else:
        document = (place / "space.yaml").read_text()
        changed, count = re.subn(
            r"^budget: .*$", f"budget: {{{key}: {text}}}", document, flags=re.MULTILINE
        )
        if count != 1:
            raise AssertionError(document)
        (place / "space.yaml").write_text(changed)
    passes = value is not None
    return Case(command, passes, passes, named=f"budget.{key}")


def home_paths(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A path below the home folder that the shell did not expand, or a URI where only a path can
    be.
    """
    home = place / "home"
    home.mkdir()
    environment = {"HOME": str(home)}
    kind = rng.randrange(4)
    if kind == 0:
        (home / "captions.txt").write_text("a large red circle\n")
        return Case(
            (*_GENERATE[:1], "--captions=~/captions.txt", *_GENERATE[2:]),
            True,
            True,
            environment=environment,
        )
    if kind == 1:
        return Case((*_GENERATE[:-1], "s3://bucket/images"), named="--out", environment=environment)

    def is_at_home() -> bool:
        return any(home.iterdir()) and not (place / "~").exists()

    command = (
        (*_GENERATE[:-1], "~/images")
        if kind == 2
        else ("report", f"sweeps/{NAME}", "--out=~/page.html")
    )
    return Case(command, True, True, environment=environment, check=is_at_home)


def closed_streams(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """Standard streams that are closed, as in a job without a terminal."""
    closed = rng.choice([(0,), (1,), (2,), (0, 1), (0, 1, 2)])
    if rng.randrange(3) == 0:
        needs_input = (*_GENERATE[:1], "--captions", "-", *_GENERATE[2:])
        return Case(needs_input, named="standard input", closed=(0,))
    command = rng.choice([("pareto", f"sweeps/{NAME}"), ("status", f"sweeps/{NAME}"), _CHECK])
    return Case(command, True, True, closed=closed)


_ANSWERS = {
    "503": HTTP,
    "401": b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "HTML": (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9\r\nConnection: "
        b"close\r\n\r\n<p>no</p>"
    ),
    "silence": b"",
    "no HTTP": b"-ERR unknown command\r\n",
}


def tracking_servers(rng: random.Random, place: Path, stack: ExitStack) -> Case:
    """A tracking server that fails; `sync` must say so and forget nothing."""
    server = stack.enter_context(odd_server(_ANSWERS[rng.choice(sorted(_ANSWERS))]))
    uri = f"http://{server.address}"
    (place / "sweeps" / NAME / "mlflow.lock").touch()  # which every sync makes
    environment = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}  # less than the limit of a command
    return Case(("sync", f"sweeps/{NAME}", "--uri", uri), named=uri, environment=environment)


USER_DATA: Mapping[str, Maker] = {
    "image folders": image_folder,
    "weight types": weight_types,
    "YAML numbers": yaml_numbers,
    "home paths": home_paths,
    "closed streams": closed_streams,
    "tracking servers": tracking_servers,
}
