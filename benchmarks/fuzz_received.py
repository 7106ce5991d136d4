"""Sweep folders that somebody else has made: links that leave the folder, files that block, fields
with a payload.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from benchmarks.fuzz_cases import Case, Maker
from benchmarks.fuzz_readers import NAME, digests
from workers.data.checked_json import dump_checked, load_checked

_SECRET = "the content of a file elsewhere"
_STORE = f"sweeps/{NAME}"
_COMMANDS: tuple[tuple[str, ...], ...] = (
    ("status", _STORE),
    ("pareto", _STORE, "--all"),
    ("compare", _STORE, "sweeps/second"),
    ("report", _STORE, "--out", "new.html"),
    ("export", _STORE, "--trial", "0", "--out", "new"),
    ("launch", "space.yaml", "--check", "--resume"),
)
_SYNC = ("sync", _STORE)


def _command(rng: random.Random, place: Path) -> tuple[str, ...]:
    """A command that reads the sweep. One that logs it needs a database: making one takes many
    seconds.
    """
    has_database = (place / "sweeps" / "mlflow.db").exists()
    return rng.choice([*_COMMANDS, _SYNC] if has_database else _COMMANDS)


def _files(store: Path) -> list[Path]:
    return sorted(path for path in store.rglob("*") if path.is_file())


def linked_files(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A file or folder of the sweep that is a link to one elsewhere: nothing is read or written
    there.
    """
    outside = place / "outside"
    outside.mkdir()
    (outside / "secret").write_text(_SECRET)
    store = place / _STORE
    (store / "mlflow.lock").touch()
    (store / "logs").mkdir(exist_ok=True)
    linked = rng.choice([*_files(store), store / "logs", store / "trials"])
    target = outside if linked.is_dir() else outside / "secret"
    if linked.is_dir():
        for path in linked.iterdir():
            path.rename(outside / path.name)
        linked.rmdir()
    else:
        linked.unlink()
    linked.symlink_to(target)
    before = digests(outside)

    def check() -> bool:
        written = [path for path in place.rglob("*") if path.is_file() and not path.is_symlink()]
        copies = [
            path
            for path in written
            if outside not in path.parents and _SECRET.encode() in path.read_bytes()
        ]
        return digests(outside) == before and not copies

    return Case(_command(rng, place), True, check=check)


def blocking_files(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A named pipe, or a link to a device, in place of a file: no command waits for it or reads it
    without end.
    """
    path = rng.choice([*_files(place / _STORE), place / _STORE / "driver.lock"])
    path.unlink(missing_ok=True)
    if rng.randrange(2):
        os.mkfifo(path)
    else:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/full", "/dev/tty")))
    return Case(_command(rng, place), True)


_PAYLOADS: tuple[object, ...] = (
    "x\n--index-url http://127.0.0.1:1/",
    "`id`",
    "$(touch owned)",
    "<img src=x onerror=alert(1)>",
    "=1+1",
    "{{7*7}}",
    "\x1b[31mred",
    "\\input{owned}",
    "a\0b",
    "x" * 100_000,
    -1,
    10**30,
    [],
    {},
    None,
    True,
    [["a"]] * 3,
)
_TEXTS = frozenset({".txt", ".md", ".html", ".csv", ".yaml", ".py"})
# what no output may hold
_RAW = ("\n--index-url http", "\x1b[31m", "<img src=x onerror=", "\n=1+1")


def forged_fields(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A field of a checked file with a payload, under a checksum that is right."""
    store = place / _STORE
    path = rng.choice([store / "identity.json", *sorted(store.glob("trials/*.json"))])
    document = load_checked(path.read_bytes())
    branch, key = rng.choice(_branches(document))
    branch[key] = rng.choice(_PAYLOADS)
    path.write_bytes(dump_checked(document))
    before = set(place.rglob("*"))

    def check() -> bool:
        new = [found for found in place.rglob("*") if found not in before and found.is_file()]
        texts = [
            found.read_bytes()
            for found in new
            if found.suffix in {".txt", ".md", ".html", ".csv", ".yaml", ".py"}
        ]
        return not (place / "owned").exists() and not any(
            raw.encode() in text for raw in _RAW for text in texts
        )

    return Case(_command(rng, place), True, check=check)


def _branches(document: object) -> list[tuple[dict[str, object], str]]:
    """Every mapping in plain data with each of its keys."""
    if isinstance(document, list):
        return [found for entry in document for found in _branches(entry)]
    if not isinstance(document, dict):
        return []
    below = [found for value in document.values() for found in _branches(value)]
    return [*((document, key) for key in document), *below]


def nested_documents(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A document of the sweep that nests without end or is far too long."""
    store = place / _STORE
    path = rng.choice(
        [store / "sweep.yaml", store / "identity.json", store / "trials" / "00000.json"]
    )
    depth = rng.choice((2_000, 20_000))
    text = rng.choice(["[" * depth, "[" * depth + "]" * depth, json.dumps({"a": ["x"] * 500_000})])
    path.write_text(text)
    return Case(_command(rng, place), True)


RECEIVED: Mapping[str, Maker] = {
    "links": linked_files,
    "blocking files": blocking_files,
    "forged fields": forged_fields,
    "nested documents": nested_documents,
}
