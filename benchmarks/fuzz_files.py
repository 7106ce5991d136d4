"""Damaged files of a store: every kind of file with a flipped bit or cut short, then the commands
that read it.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import chdir, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.fuzz_readers import KINDS, NAME, Kind, Outcome, log_to_mlflow, timed
from orchestrator.store.files import DRIVER_LOCK
from tests.fakes.real_sweeps import SweepRun

GOOD = ("refused", "rebuilt", "harmless", "accepted")
_SWEEP = f"""
name: {NAME}
models: WEIGHTS
captions: {{source: scenes, count: 70, seed: 1}}
reference: {{source: scenes, count: 96, seed: 2}}
quality: {{batch: 35, shard: 35}}
timing: {{batch: 1, images: 2, repetitions: 1}}
sampling: {{temperature: 1.0, top_k: 0, top_p: 1.0, cfg: 1.0}}
metrics: [step_compression, fid, speedup]
objectives: [step_compression, fid]
search: {{sampler: replay, parallel: 1, seed: 0, options: {{pool: 4, captions: 2}}}}
budget: {{trials: 3}}
space:
  drafter: eagle
  tree: {{policy: chain, length: {{low: 2, high: 3}}}}
  acceptance:
    neighbourhood: additive
    k: {{low: 2, high: 100, log: true}}
    delta: {{low: 0.02, high: 0.5}}
"""


@dataclass(slots=True)
class Tally:
    """Of one kind of file: its cases, how often each verdict was given (a case may have several
    readers), the slowest command, and examples of what must not be."""

    cases: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    examples: list[str] = field(default_factory=list)

    def add(self, verdict: str, seconds: float, about: str) -> None:
        self.verdicts[verdict] += 1
        self.slowest_s = max(self.slowest_s, seconds)
        if verdict not in GOOD:
            self.examples.append(f"{verdict}: {about}")


@dataclass(frozen=True, slots=True)
class Damage:
    """One bit flipped, or the file cut (bit None), at a byte."""

    name: str
    position: int
    bit: int | None

    def apply(self, root: Path) -> None:
        path = root / self.name
        data = bytearray(path.read_bytes())
        if self.bit is None:
            del data[self.position :]
        else:
            data[self.position] ^= 1 << self.bit
        path.write_bytes(data)

    def __str__(self) -> str:
        what = "cut" if self.bit is None else f"bit {self.bit}"
        return f"{self.name}, {what} at byte {self.position}"


@dataclass(frozen=True, slots=True)
class Pristine:
    """The store that is damaged in copies. folder: of sweeps/, space.yaml and weights/. measure:
    the file with the metrics of the last trial. Only copies for the kind "measures" have it; others
    compute them from shards.
    """

    folder: Path
    measure: str

    @contextmanager
    def copy(self, kind: str) -> Iterator[Path]:
        """A copy's folder of sweeps. It has the same path each time, since pages and databases
        contain it.
        """
        work = self.folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(self.folder / "sweeps", work / "sweeps")
        shutil.copy(self.folder / "space.yaml", work)
        if kind != "measures":
            (work / "sweeps" / self.measure).unlink()
        with chdir(work):
            yield work / "sweeps"

    def damages(self, kind: str, count: int, rng: random.Random) -> list[Damage]:
        """Random ones; every third is a cut. An empty file has none."""
        root = self.folder / "sweeps"
        names = sorted(
            str(path.relative_to(root))
            for path in root.glob(KINDS[kind].pattern)
            if path.stat().st_size
        )
        names = [self.measure] if kind == "measures" else names
        found = []
        for number in range(count if names else 0):
            name = rng.choice(names)
            position = rng.randrange((root / name).stat().st_size)
            found.append(Damage(name, position, rng.randrange(8) if number % 3 else None))
        return found


def make_pristine(folder: Path, *, logged: bool = True) -> Pristine:
    """Run a sweep of a tiny model for three trials; then the shards of a fourth, as a killed driver
    leaves them.

    logged: to MLflow.
    """
    run = SweepRun(folder, _SWEEP)
    run.run_locally("--no-mlflow")
    longer = folder / "longer"
    shutil.copytree(run.store, longer / NAME)
    SweepRun(folder, _SWEEP).run_locally(
        "--no-mlflow", "--resume", "--trials", "4", "--out", str(longer)
    )
    for new in sorted(
        [*(longer / NAME / "shards").iterdir(), *(longer / NAME / "timings").iterdir()]
    ):
        shutil.copy(new, run.store / new.parent.name)
    (measure,) = {p.name for p in (longer / NAME / "measures").iterdir()} - {
        p.name for p in (run.store / "measures").iterdir()
    }
    shutil.copy(longer / NAME / "measures" / measure, run.store / "measures")
    shutil.rmtree(longer)
    (run.store / DRIVER_LOCK).write_text(
        '{"pid": 1, "host": "here", "since": "2026-01-02T03:00:00.000+00:00"}'
    )
    if logged:
        code, text, _ = log_to_mlflow(run.store)
        assert code == 0, text
    return Pristine(folder, f"{NAME}/measures/{measure}")


def judge(expected: Outcome, got: Outcome, name: str) -> str:
    """The verdict on what a command did with a damaged file.

    refused: it names the file and fails. rebuilt: it names the file and goes on. harmless: nothing
    is said, and the data are equal. silent: nothing is said, and the data differ. unnamed: it fails
    without the file's name.
    """
    if got.crashed:
        return "traceback"
    said = Path(name).name in "".join(got.text.split())
    if got.code != expected.code:
        return "refused" if said and got.code in (1, 2) else "unnamed"
    if got.data == expected.data:
        return "rebuilt" if said else "harmless"
    return "rebuilt" if said else "silent"


def fuzz_files(
    pristine: Pristine,
    count: int,
    seed: int,
    *,
    kinds: Mapping[str, Kind] = KINDS,
    every: int = 10,
) -> dict[str, Tally]:
    """`count` damages over all kinds; those with slow readers alone get a third of the others'
    share. every: of how many cases one is also read by the slow readers.
    """
    rng = random.Random(seed)
    weights = {name: 3 if kind.quick else 1 for name, kind in kinds.items()}
    expected: dict[tuple[str, bool], Outcome] = {}
    tallies = {name: Tally() for name in kinds}
    for name, kind in kinds.items():
        share = -(-count * weights[name] // sum(weights.values()))
        for number, damage in enumerate(pristine.damages(name, share, rng)):
            tallies[name].cases += 1
            for reader in kind.readers(number, every):
                key = (reader.__name__, name == "measures")
                if key not in expected:
                    with pristine.copy(name) as root:
                        expected[key] = timed(partial(reader, root / NAME))
                    if expected[key].crashed:
                        raise AssertionError(expected[key].text)
                with pristine.copy(name) as root:
                    damage.apply(root)
                    got = timed(partial(reader, root / NAME))
                verdict = judge(expected[key], got, damage.name)
                tallies[name].add(
                    verdict, got.seconds, f"{damage}, {reader.__name__}: {got.text[-600:]}"
                )
        print(
            f"{name}: {dict(tallies[name].verdicts)}, slowest {tallies[name].slowest_s:.1f} s",
            flush=True,
        )
    return tallies
