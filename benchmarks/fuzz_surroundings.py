"""Hostile surroundings: files and services of other users, inputs in unusual forms, and received
sweeps.

Each case is a valid command in random surroundings: a study, a folder or a database of another
user, an address of Ray or a proxy that does not respond, a URI, captions with unusual line breaks,
checkpoints whose tensors have a prefix, a plot or table with some ending. Verdicts: refused (exit
code 1 or 2, the message names the cause, and nothing has changed), accepted (exit code 0, where
this is right, and the right result), and what must not be.
"""

from __future__ import annotations

import csv
import io
import json
import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, chdir
from functools import partial
from pathlib import Path
from typing import Final, Literal
from unittest import mock

import optuna
from ray._private import services
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from benchmarks.fuzz_cases import Case, Maker
from benchmarks.fuzz_files import Pristine, Tally
from benchmarks.fuzz_inputs import run, set_up
from benchmarks.fuzz_readers import MAX_SECONDS, NAME, Outcome, digests, timed
from benchmarks.fuzz_received import RECEIVED
from benchmarks.fuzz_user_data import USER_DATA
from tests.fakes.odd_servers import HTTP, REDIS, odd_server
from workers.data.captions import read_captions

MAX_LAUNCH_SECONDS = 15.0  # of a launch that cannot work
_CHECK = ("launch", "space.yaml", "--check")
_GENERATE = ("generate", "a large red circle", "--models", "weights", "--seed", "3")
_DIRECTIONS: Final = ("maximize", "minimize")  # of the sweep's objectives
# of str.splitlines alone
LINE_BREAKS = ("\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e")


def foreign_study(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A study in the storage that the sweep is given: of the sweep's name or another, with or
    without trials.
    """
    path = place / rng.choice(["studies.db", "studies.log"])
    url = f"sqlite:///{path}" if path.suffix == ".db" else str(path)
    backend = (
        optuna.storages.journal.JournalFileBackend(str(path)) if path.suffix == ".log" else None
    )
    directions: tuple[Literal["maximize", "minimize"], ...] = rng.choice(
        [_DIRECTIONS, ("minimize",), ("minimize", "minimize"), ("maximize", "minimize", "minimize")]
    )
    name = rng.choice([NAME, NAME, "another"])
    study = optuna.create_study(
        study_name=name,
        storage=url if backend is None else optuna.storages.JournalStorage(backend),
        directions=list(directions),
    )
    trials = rng.randrange(3)
    for _number in range(trials):
        study.tell(
            study.ask({"x": optuna.distributions.FloatDistribution(0.0, 1.0)}),
            [1.0] * len(directions),
        )
    if owned := rng.randrange(3) == 0:
        study.set_user_attr("owner", "another user")
    is_free = name != NAME or not (trials or owned or directions != _DIRECTIONS)
    return Case((*_CHECK, "--out", "new", "--study", url), is_free, is_free, NAME)


def foreign_folder(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A folder of the sweep's name with files of another user."""
    folder = place / "new" / NAME
    name, data = rng.choice(
        [
            ("trials/00000.json", b'{"trial": 0, "loss": 0.1}'),
            ("trials/checkpoint.pt", b"\x80\x04"),
            ("shards/train-00000-of-00010.parquet", b"PAR1"),
            ("identity.json", b'{"passport": 12}'),
            ("sweep.yaml", b"method: grid\nparameters: {lr: {values: [0.1]}}\n"),
        ]
    )
    (folder / name).parent.mkdir(parents=True)
    (folder / name).write_bytes(data)
    return Case((*_CHECK, "--out", "new"), named=NAME)


def shared_database(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """One database for Optuna and MLflow, which both keep their version in a table of one name."""
    url = f"sqlite:///{place / 'both.db'}"
    if rng.randrange(2):
        return Case(
            (*_CHECK, "--out", "new", "--study", url),
            named="--study",
            environment={"MLFLOW_TRACKING_URI": url},
        )
    return Case(
        (*_CHECK, "--out", "new", "--study", url, "--tracking-uri", url), named="--tracking-uri"
    )


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def dead_cluster(rng: random.Random, place: Path, stack: ExitStack) -> Case:
    """An address of a Ray cluster at which there is none, by an option, a variable, or the file of
    the last cluster.
    """
    address = f"{rng.choice(['127.0.0.1', 'localhost', '[::1]'])}:{free_port()}"
    if rng.randrange(2):
        address = stack.enter_context(odd_server(rng.choice([b"", HTTP, REDIS]))).address
    environment = {
        key: f"http://127.0.0.1:{free_port()}"
        for key in rng.choice([(), ("http_proxy", "HTTP_PROXY")])
    }
    how = rng.randrange(3)
    if how == 0:
        return Case(
            (*_CHECK, "--out", "new", "--address", address), named=address, environment=environment
        )
    if how == 1:
        environment["RAY_ADDRESS"] = address
        return Case(
            (*_CHECK, "--out", "new", "--address", "auto"),
            named="RAY_ADDRESS",
            environment=environment,
        )
    # other users' clusters
    stack.enter_context(mock.patch.object(services, "find_gcs_addresses", return_value=set()))
    folder = place / "ray"
    (folder / "ray").mkdir(parents=True)
    (folder / "ray" / "ray_current_cluster").write_text(address)
    environment["RAY_TMPDIR"] = str(folder)
    return Case(
        (*_CHECK, "--out", "new", "--address", "auto"),
        named="ray_current_cluster",
        environment=environment,
    )


def unusable_ray_folder(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A folder for Ray's files that has a path too long for sockets, does not exist, or is a
    file.
    """
    folder = rng.choice([place / ("d" * 100), place / "nowhere", place / "file"])
    if folder.name.startswith("d"):
        folder.mkdir()
    return Case(
        (*_CHECK, "--out", "new"), named="RAY_TMPDIR", environment={"RAY_TMPDIR": str(folder)}
    )


def quoted_uri(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A bucket's URI with a character that a URI has only in its quoted form."""
    character, quoted = rng.choice(
        [(" ", "%20"), ("|", "%7C"), ("^", "%5E"), ("é", "%C3%A9"), ("<", "%3C")]
    )
    return Case((*_CHECK, "--out", f"s3://bucket/my{character}sweeps"), named=quoted)


def line_breaks(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """Captions with line breaks that only some readers know: every command reads the same
    captions.
    """
    captions = [f"a large{rng.choice(LINE_BREAKS)}red circle {number}" for number in range(3)]
    ending = rng.choice([".txt", ".csv", ".tsv", ".jsonl"])
    end = rng.choice(["\n", "\r\n"])
    text = io.StringIO(newline="")
    if ending == ".csv":
        rows = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL)
        rows.writerows([["caption"], *([caption] for caption in captions)])
    elif ending == ".jsonl":
        text.write(
            "".join(
                json.dumps({"caption": caption}, ensure_ascii=False) + end for caption in captions
            )
        )
    else:
        text.write(
            "".join(line + end for line in (["caption"] if ending == ".tsv" else []) + captions)
        )
    source = place / f"captions{ending}"
    source.write_bytes(text.getvalue().encode())
    expected = [" ".join(caption.split()) for caption in captions]

    def check() -> bool:
        read = [
            caption.text
            for caption in sorted(read_captions(source), key=lambda caption: caption.id)
        ]
        images = json.loads((place / "new" / "statistics.json").read_text())["images"]
        return read == expected == [image["caption"] for image in images]

    return Case(
        ("generate", "--captions", str(source), "--models", "weights", "--out", "new"),
        True,
        True,
        check=check,
    )


def renamed_tensors(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A checkpoint that was saved from a wrapped module: all tensors, or some of them, have a
    prefix.
    """
    prefix = rng.choice(_PREFIXES)
    share = rng.choice((1.0, 1.0, 0.5))
    file = place / "weights" / rng.choice(["target.safetensors", "eagle.safetensors"])
    with safe_open(file, "np") as opened:
        metadata = opened.metadata()
    tensors = {
        prefix * (rng.random() < share) + name: tensor for name, tensor in load_file(file).items()
    }
    save_file(tensors, file, metadata)

    def check() -> bool:
        new, expected = (
            {picture.name: picture.read_bytes() for picture in (place / name).glob("*.png")}
            for name in ("new", "expected")
        )
        return new == expected != {}

    return Case(
        (*_GENERATE, "--preset", "eagle1", "--out", "new"), True, named=file.name, check=check
    )


_PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "module._orig_mod.",
    "a.b.c.",
    ".",
    "module",
    "transformer.",
)
_MAGIC = {
    "png": b"\x89PNG",
    "pdf": b"%PDF",
    "svg": b"<?xml",
    "parquet": b"PAR1",
    "csv": b"sweep",
    "json": b"[",
}


def output_endings(rng: random.Random, place: Path, _: ExitStack) -> Case:
    """A plot or table whose name ends in a format, which decides what is written."""
    option, known = rng.choice(
        [("--plot", ("png", "pdf", "svg")), ("--table", ("csv", "parquet", "json"))]
    )
    ending = rng.choice([*known, "jpg", "xlsx", "npy", "tar"])
    file = place / f"front.{ending}"

    def check() -> bool:
        return file.read_bytes().lstrip().startswith(_MAGIC[ending])

    passes = ending in known
    return Case(
        ("pareto", f"sweeps/{NAME}", option, str(file)), passes, passes, f".{ending}", check=check
    )


MAKERS: Mapping[str, Maker] = {
    "studies": foreign_study,
    "folders": foreign_folder,
    "databases": shared_database,
    "Ray addresses": dead_cluster,
    "Ray folders": unusable_ray_folder,
    "URIs": quoted_uri,
    "line breaks": line_breaks,
    "prefixes": renamed_tensors,
    "endings": output_endings,
    **USER_DATA,
    **RECEIVED,
}


def verdict(case: Case, got: Outcome, *, is_unchanged: bool) -> str:
    """See the module."""
    if got.crashed:
        return "traceback"
    if got.code == 0:
        if not case.may_pass:
            return "adopted"
        is_right = case.check() and case.output in " ".join(f"{got.text} {got.data}".split())
        return "accepted" if is_right else "wrong result"
    if case.must_pass or got.code not in (1, 2) or "Error" not in got.text:
        return "unexplained"
    if case.words[0] == "launch" and got.seconds > MAX_LAUNCH_SECONDS:
        return "slow"
    if not is_unchanged:
        return "left something behind"
    return "refused" if case.named in " ".join(got.text.split()) else "unnamed"


def run_process(case: Case) -> tuple[int, str, None]:
    """Run the command in a process of its own, with the case's standard streams closed."""
    closed = " ".join(f"{stream}>&-" for stream in case.closed)
    program = [sys.executable, "-c", "from orchestrator.cli.app import main; main()", *case.words]
    shell = ["bash", "-c", f'exec "$@" {closed}', "bash", *program]
    result = subprocess.run(shell, capture_output=True, text=True, timeout=MAX_SECONDS, check=False)
    return result.returncode, result.stderr + result.stdout, None


def fuzz_surroundings(
    pristine: Pristine, count: int, seed: int, makers: Mapping[str, Maker] = MAKERS
) -> dict[str, Tally]:
    """`count` cases, the kinds in turn."""
    rng = random.Random(seed)
    tallies = {name: Tally() for name in makers}
    place = pristine.folder / "place"
    for number in range(count):
        name = list(makers)[number % len(makers)]
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        set_up(pristine, place)
        with ExitStack() as stack:
            stack.enter_context(chdir(place))
            if name == "prefixes":
                run((*_GENERATE, "--preset", "eagle1", "--out", "expected"))
            case = makers[name](rng, place, stack)
            before = digests(place)
            stack.enter_context(mock.patch.dict(os.environ, case.environment))
            # MLflow keeps connections of its own
            needs_process = case.closed or case.words[0] == "sync"
            run_case = partial(run_process, case) if needs_process else partial(run, case.words)
            got = timed(run_case)
            result = verdict(case, got, is_unchanged=digests(place) == before)
        words: Sequence[str] = [word[:120] for word in case.words]
        about = f"{' '.join(words)!r} {dict(case.environment)}: code {got.code}, {got.text[-500:]}"
        tallies[name].cases += 1
        tallies[name].add(result, got.seconds, about)
    return tallies
