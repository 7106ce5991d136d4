"""Hostile inputs: options and files that make no sense, for every command; each must end in a
sentence, soon.
"""

from __future__ import annotations

import copy
import random
import shutil
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import chdir
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from benchmarks.fuzz_commands import COMMANDS, NUMBERS, REFUSED, TEXTS
from benchmarks.fuzz_files import Pristine, Tally
from benchmarks.fuzz_readers import NAME, Outcome, digests, timed
from tests.fakes.command_line import specfrontier

_JUNK: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    10**23,
    1e400,
    float("nan"),
    -1e-300,
    "",
    "x" * 3000,
    "1e5",
    [],
    {},
    [[]],
    {"": 1},
    [None],
    {"low": 5, "high": 1},
    {"low": 0, "high": 10**23},
    {"values": []},
    {"values": [float("nan")]},
    ["a"] * 2000,
    {"low": 1, "high": 2, "log": "yes"},
    "../x",
    "\0",
)


def png_bomb() -> bytes:
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


def set_up(pristine: Pristine, place: Path) -> None:
    """The folder in which the commands run: a sweep, its space, weights, images, and files that are
    something else.
    """
    for name in ("sweeps", "weights"):
        shutil.copytree(pristine.folder / name, place / name)
    shutil.copytree(place / "sweeps" / NAME, place / "sweeps" / "second")
    text = (pristine.folder / "space.yaml").read_text()
    (place / "space.yaml").write_text(text.replace(str(pristine.folder / "weights"), "weights"))
    (place / "deep.json").write_text("[" * 100_000)
    (place / "file").write_text("x")
    (place / "images").mkdir()
    for number in range(70):
        Image.new("RGB", (48, 48), (number, 0, 0)).save(place / "images" / f"{number:02d}.png")


def paths(document: Any, prefix: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in plain data."""
    entries = (
        document.items()
        if isinstance(document, dict)
        else enumerate(document)
        if isinstance(document, list)
        else ()
    )
    return [
        found for key, value in entries for found in [(*prefix, key), *paths(value, (*prefix, key))]
    ]


def mutated(document: Any, rng: random.Random) -> str:
    """A YAML document with one value replaced, removed, or with an unknown key beside it."""
    changed = copy.deepcopy(document)
    path = rng.choice(paths(changed))
    place = changed
    for key in path[:-1]:
        place = place[key]
    action = rng.randrange(6)
    if action == 0 and isinstance(place, dict):
        place["unknown"] = rng.choice(_JUNK)
    elif action == 1:
        del place[path[-1]]
    else:
        place[path[-1]] = rng.choice(_JUNK)
    return yaml.safe_dump(changed, sort_keys=False)


def torn(data: bytes, rng: random.Random) -> bytes:
    """Bytes that are cut, or have some bits flipped."""
    if rng.randrange(2):
        return data[: rng.randrange(len(data))]
    changed = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


_BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
)
_CAPTION_FILES = {
    "c.txt": b"\xff\xfe\x00a\n",
    "c.csv": b'caption\n"never closed\n',
    "d.csv": b"nothing,here\n1,2\n",
    "c.tsv": b"",
    "c.jsonl": b"[" * 50_000,
    "d.jsonl": b'{"caption": 5}\n',
    "c.json": b'{"annotations": [{"caption": null}]}',
    "c.parquet": b"PAR1PAR1",
    "c.exe": b"MZ",
    "d.txt": b"a" * 3_000_000 + b"\n",
    "e.txt": b"a large red circle\n\n\n" * 3,
    "e.jsonl": b'{"caption": "a", "id": NaN}\n',
}


def file_case(rng: random.Random, place: Path) -> tuple[str, ...]:
    """Write a hostile file; returns the command that reads it."""
    space = yaml.safe_load((place / "space.yaml").read_text())
    config = {
        "drafter": "eagle", "tree": {"policy": "dynamic", "depth": 3, "width": 2, "nodes": 6},
        "acceptance": {"neighbourhood": "additive", "k": 10, "delta": 0.1},
        "sampling": {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "cfg": 1.0},
    }  # fmt: skip
    entry = {"tiny": {"family": "scenes", "folder": "weights", "dtype": "float32", "metrics": {}}}
    hostile, generate = place / "hostile.yaml", COMMANDS["generate"].words
    check = ("launch", "hostile.yaml", "--check", "--out", "new")
    makers: Sequence[Callable[[], tuple[str, ...]]] = (
        lambda: write(hostile, mutated(space, rng).encode(), *check),
        lambda: write(hostile, mutated(space, rng).encode(), *check),
        lambda: write(hostile, torn((place / "space.yaml").read_bytes(), rng), *check),
        lambda: write(
            hostile,
            rng.choice([_BOMB, "&a [*a]", "a: 1\na: 2", "? [x]\n: 1", "", "- " * 900]).encode(),
            *check,
        ),
        lambda: write(
            hostile, mutated(config, rng).encode(), *generate, "--config", "hostile.yaml"
        ),
        lambda: write(
            hostile,
            mutated(entry, rng).encode(),
            *generate[:2],
            "--out",
            "new",
            "--models",
            "hostile.yaml",
        ),
        lambda: captions(rng, place),
        lambda: write(place / "images" / "00.png", png_bomb(), *COMMANDS["reference"].words),
        lambda: write(
            place / "images" / "00.png",
            torn((place / "images" / "01.png").read_bytes(), rng),
            *COMMANDS["reference"].words,
        ),
        lambda: header(rng, place),
    )
    return rng.choice(makers)()


def write(path: Path, data: bytes, *words: str) -> tuple[str, ...]:
    path.write_bytes(data)
    return words


def captions(rng: random.Random, place: Path) -> tuple[str, ...]:
    name = rng.choice(sorted(_CAPTION_FILES))
    commands: Sequence[tuple[str, ...]] = (
        ("generate", "--models", "weights", "--out", "new", "--captions", name),
        ("launch", "space.yaml", "--check", "--out", "new", "--set", f"captions.source={name}"),
    )
    return write(place / name, _CAPTION_FILES[name], *rng.choice(commands))


def header(rng: random.Random, place: Path) -> tuple[str, ...]:
    """Damage the header of a file of weights: its names, types and shapes."""
    file = place / "weights" / "target.safetensors"
    data = file.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    return write(
        file, torn(data[:end], rng)[:end].ljust(end) + data[end:], *COMMANDS["generate"].words
    )


def option_case(rng: random.Random, command: str) -> tuple[str, ...]:
    """A command whose option, or first argument, has a hostile value."""
    found = COMMANDS[command]
    options = [
        *((name, TEXTS) for name in found.texts),
        *((name, NUMBERS) for name in found.numbers),
        ("", TEXTS),
    ]
    option, values = rng.choice(options)
    value = rng.choice(values)
    if option:
        return (*found.words, option, value)
    return (found.words[0], value, *found.words[2:])


def verdict(got: Outcome, is_unchanged: bool) -> str:
    """refused: with exit code 1 or 2, an error in words, and nothing left behind."""
    if got.crashed:
        return "traceback"
    if got.code == 0:
        return "accepted"
    if got.code not in (1, 2) or "Error" not in got.text:
        return "unexplained"
    return "refused" if is_unchanged else "left something behind"


def run(words: tuple[str, ...]) -> tuple[int, str, Any]:
    result = specfrontier(*words)
    return result.code, result.err, result.out


def run_process(words: tuple[str, ...]) -> Outcome:
    """The same in a process of its own."""
    command = [sys.executable, "-c", "from orchestrator.cli.app import main; main()", *words]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return Outcome(result.returncode, result.stderr, None, "Traceback" in result.stderr)


def check_commands(pristine: Pristine, place: Path) -> None:
    """Check that the commands are valid as they are, so that it is the hostile input that is
    refused.
    """
    place.mkdir(parents=True)
    set_up(pristine, place)
    for name, command in COMMANDS.items():
        with chdir(place):
            got = timed(partial(run, command.words))
        if got.crashed or (got.code != 0) != (name in REFUSED):
            raise AssertionError(f"{name}: {got.code}, {got.text}")


def fuzz_inputs(pristine: Pristine, count: int, seed: int, processes: int = 0) -> dict[str, Tally]:
    """`count` hostile inputs, a third of them files; `processes` of those that are refused run in a
    process too.
    """
    rng = random.Random(seed)
    tallies = {command: Tally() for command in COMMANDS}
    place = pristine.folder / "place" / "inner" / "deep"
    check_commands(pristine, place)
    for number in range(count):
        shutil.rmtree(place.parents[1], ignore_errors=True)
        place.mkdir(parents=True)
        set_up(pristine, place)
        command = sorted(COMMANDS)[number % len(COMMANDS)]
        round_number = number // len(COMMANDS)  # every command gets options in two rounds of three
        words = file_case(rng, place) if round_number % 3 == 0 else option_case(rng, command)
        before = digests(place.parents[1])
        with chdir(place):
            got = timed(partial(run, words))
            is_unchanged = digests(place.parents[1]) == before
            result = verdict(got, is_unchanged)
            about = f"{' '.join(word[:80] for word in words)!r}: code {got.code}, {got.text[-500:]}"
            if result == "refused" and processes > 0 and number % 7 == 0:
                processes -= 1
                again = run_process(words)
                if (again.code, again.crashed) != (got.code, False):
                    result, about = (
                        "differs in a process",
                        f"{about} | {again.code}: {again.text[-300:]}",
                    )
        tallies[words[0]].cases += 1
        tallies[words[0]].add(result, got.seconds, about)
    return tallies
