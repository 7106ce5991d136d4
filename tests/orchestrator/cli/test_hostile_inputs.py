"""Inputs without sense: one sentence with the fix, soon, and no file or folder left behind."""

from __future__ import annotations

import struct
import time
import zlib
from pathlib import Path

import pytest

from orchestrator.outputs import check_writable, output_folder
from tests.fakes.command_line import specfrontier
from tests.fakes.synthetic_sweeps import write_sweep

CAPTION = "a large red circle"
# a hundred times what any of them takes: no input makes a command compute for long
MAX_CPU_S = 120.0
EAGLE_CHAIN = ("--set", "drafter=eagle", "--set", "tree.policy=chain", "--set")


def bomb() -> bytes:
    """A PNG of 30000 x 30000 pixels in a few bytes."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", 30000, 30000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_sweep(tmp_path / "sweep", 3, name="demo", failed=())
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text('{"a":' * 100_000)
    (tmp_path / "images").mkdir()
    for number in range(70):
        (tmp_path / "images" / f"{number}.png").write_bytes(bomb())
    (tmp_path / "file").write_text("x")
    (tmp_path / "long.txt").write_text("a" * 3_000_000)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("generate", CAPTION, *EAGLE_CHAIN, f"tree.length={10**23}"), ("tree.length", "[1, 256]")),
        (("generate", CAPTION, *EAGLE_CHAIN, "tree.length=100000000"), ("tree.length", "[1, 256]")),
        (
            ("generate", CAPTION, "--preset", "eagle2", "--set", "tree.depth=1000000000"),
            ("tree.depth", "[1, 256]"),
        ),
        (
            ("generate", CAPTION, "--preset", "eagle2", "--set", "tree.width=1000000000"),
            ("tree.width", "[1, 256]"),
        ),
        (
            ("generate", CAPTION, "--preset", "adt", "--set", "tree.start_depth=1000000000"),
            ("tree.start_depth",),
        ),
        (
            ("generate", CAPTION, "--preset", "lantern", "--set", f"acceptance.k={10**23}"),
            ("acceptance.k", "at most"),
        ),
        (("generate", CAPTION, "--seed", "-1"), ("--seed",)),
        (("generate", CAPTION, "--seed", str(10**23)), ("--seed",)),
        (("generate", CAPTION, "--samples", str(10**12)), ("--samples",)),
        (("generate", CAPTION, "--threads", str(10**23)), ("--threads",)),
        (("generate", "--captions", "long.txt"), ("1000", "characters")),
        (("doctor", "--plan", "quickstart", "--gpu-memory", "1e400"), ("--gpu-memory",)),
        (("doctor", "--plan", "quickstart", "--gpu-memory", "nan"), ("--gpu-memory",)),
        (("doctor", "--plan", "quickstart", "--gpu-bandwidth", "0"), ("--gpu-bandwidth",)),
        (("doctor", "--plan", "quickstart", "--gpu-compute", "-0.0"), ("--gpu-compute",)),
        (
            ("doctor", "--plan", "quickstart", "--accepted-length", "inf"),
            ("--accepted-length", "finite"),
        ),
        (("generate", CAPTION, "--out", ""), ("--out is empty",)),
        (("generate", CAPTION, "--out", "/proc/there"), ("/proc", "--out")),
        (("generate", CAPTION, "--out", "file/there"), ("file", "--out")),
        (("generate", CAPTION, "--models", "model", "--out", "new/deeper"), ("model",)),
        (
            ("generate", CAPTION, "--set", "sampling.top_k=2000000000", "--out", "new"),
            ("sampling.top_k",),
        ),
        (("launch", "quickstart", "--check", "--out", ""), ("--out is empty",)),
        (("launch", "quickstart", "--check", "--out", "/proc/there"), ("/proc", "--out")),
        (("launch", "quickstart", "--check", "--seed", "-1"), ("seed", "-1")),
        (
            ("launch", "quickstart", "--check", "--cpus-per-worker", "inf"),
            ("--cpus-per-worker", "finite"),
        ),
        (
            ("launch", "quickstart", "--check", "--cpus-per-worker", "1e9"),
            ("--cpus-per-worker", "this machine has"),
        ),
        (
            ("launch", "quickstart", "--check", "--gpus-per-worker", "99"),
            ("--gpus-per-worker", "this machine has"),
        ),
        (
            ("launch", "quickstart", "--check", "--workers", "1000000000"),
            ("--workers", "this machine has"),
        ),
        (
            ("launch", "quickstart", "--check", "--set", "captions.count=1000000000"),
            ("captions.count", "[1, 1000000]"),
        ),
        (
            ("launch", "quickstart", "--check", "--set", "captions.source=deep.jsonl"),
            ("deep.jsonl, line 1", "nested"),
        ),
        (
            ("launch", "quickstart", "--check", "--set", "reference.source=images"),
            ("images/0.png", "remove it"),
        ),
        (
            ("reference", "images", "--out", "r.parquet"),
            (".png: not a readable image", "remove it"),
        ),
        (("reference", "images", "--out", ""), ("--out is empty",)),
        (
            ("train", "eagle", "--captions", "scenes", "--steps", "1", "--out", ""),
            ("--out is empty",),
        ),
        (("train", "eagle", "--captions", "scenes", "--steps", "1", "--seed", "-1"), ("--seed",)),
        (
            ("train", "eagle", "--captions", "deep.jsonl", "--out", "new/deeper"),
            ("deep.jsonl, line 1", "nested"),
        ),
        (("predict", "quickstart", "--out", ""), ("--out is empty",)),
        (("report", "sweep", "--out", ""), ("--out is empty",)),
        (("pareto", "sweep", "--best", "fid<="), ("'fid<='", "missing after <=", "drift <= 2")),
    ],
    ids=lambda value: " ".join(value)[:60],
)
def test_refused_in_a_sentence(place: Path, words: tuple[str, ...], parts: tuple[str, ...]) -> None:
    before, start = sorted(place.rglob("*")), time.process_time()
    result = specfrontier(*words)
    assert result.code in (1, 2), result.out
    assert time.process_time() - start < MAX_CPU_S
    assert "Traceback" not in result.err
    message = " ".join(result.err.replace("│", " ").split())
    for part in parts:
        assert part in message
    assert sorted(place.rglob("*")) == before


def test_an_error_that_quotes_a_name_does_not_control_the_terminal() -> None:
    result = specfrontier("generate", "a red \x1b[2J\x9b2Jcircle")
    assert result.code == 2
    assert not {"\x1b", "\x9b"} & set(result.err)


def test_an_output_folder_is_removed_only_if_it_is_new_and_empty(tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    for folder, kept in (
        (tmp_path / "old", True),
        (tmp_path / "new" / "deeper", False),
        (tmp_path / "full", True),
    ):
        with pytest.raises(KeyboardInterrupt), output_folder(folder):  # noqa: PT012
            assert folder.is_dir()
            if folder.name == "full":
                (folder / "image.png").write_bytes(b"")
            raise KeyboardInterrupt
        assert folder.exists() == kept
    assert not (tmp_path / "new").exists()
    with output_folder(tmp_path / "done"):
        pass
    assert (tmp_path / "done").is_dir()


def test_a_check_leaves_nothing(tmp_path: Path) -> None:
    check_writable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
