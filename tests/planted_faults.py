"""Does the suite catch planted faults? Applies the faults of planted_faults.json to a copy of the
tree, one at a time.

    python -m tests.planted_faults [--only ID ...] [--out FILE]
    python -m tests.planted_faults --check    # only checks that every fault still applies

FILE gets a JSON line per fault; those that it has are skipped.
For each fault it runs the test files that should fail. Exit code 1 if all of them pass, or if a
fault no longer applies. All faults take about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAULTS = Path(__file__).with_suffix(".json")
TEST_TIMEOUT_S = 1500
_NOT_COPIED = shutil.ignore_patterns(".git", ".venv", "__pycache__", ".*_cache", "sweeps")


@dataclass(frozen=True, slots=True)
class Fault:
    """Replaces the only occurrence of `old` in a file by `new`. tests: files of which at least one
    must fail.
    """

    id: str
    file: str
    old: str
    new: str
    tests: Sequence[str]

    def problem(self, tree: Path) -> str | None:
        """Why the fault does not apply to the tree."""
        path = tree / self.file
        count = path.read_text("utf-8").count(self.old) if path.is_file() else 0
        missing = [test for test in self.tests if not (tree / test).is_file()]
        if count != 1:
            return f"{self.file} has the text {count} times instead of once"
        return f"no such test file: {', '.join(missing)}" if missing else None

    def caught_by(self, tree: Path) -> str | None:
        """The first test file that fails with the fault in place; None if all pass."""
        path = tree / self.file
        original = path.read_text("utf-8")
        path.write_text(original.replace(self.old, self.new), "utf-8")
        try:
            return next((test for test in self.tests if _fails(test, tree)), None)
        finally:
            path.write_text(original, "utf-8")


def read_faults(only: Sequence[str] = ()) -> list[Fault]:
    faults = [Fault(**entry) for entry in json.loads(FAULTS.read_text("utf-8"))]
    return [fault for fault in faults if not only or fault.id in only]


def _fails(test: str, tree: Path) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        command,
        cwd=tree,
        env=environment,
        capture_output=True,
        timeout=TEST_TIMEOUT_S,
        check=False,
    )
    if run.returncode not in (0, 1, 2):  # 2: the fault breaks the import
        raise RuntimeError(
            f"{test}: pytest ended with {run.returncode}: {run.stdout[-500:].decode()}"
        )
    return run.returncode != 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Run the tests against planted faults.")
    parser.add_argument("--only", nargs="+", default=[], metavar="ID")
    parser.add_argument(
        "--out", type=Path, help="append results as JSON lines; skip the faults that it has"
    )
    parser.add_argument("--check", action="store_true", help="only check that every fault applies")
    options = parser.parse_args(arguments)
    faults = read_faults(options.only)
    problems = {fault.id: problem for fault in faults if (problem := fault.problem(ROOT))}
    for name, problem in problems.items():
        print(f"{name}: {problem}")
    if options.check or problems:
        return int(bool(problems))
    lines = (
        options.out.read_text("utf-8").splitlines() if options.out and options.out.exists() else []
    )
    results = {entry["id"]: entry["caught_by"] for entry in map(json.loads, lines)}
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder) / "tree", ignore=_NOT_COPIED))
        for fault in faults:
            if fault.id in results:
                continue
            results[fault.id] = fault.caught_by(tree)
            print(f"{fault.id}: {results[fault.id] or 'MISSED'}", flush=True)
            if options.out:
                with options.out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"id": fault.id, "caught_by": results[fault.id]}) + "\n")
    missed = [name for name, test in results.items() if test is None]
    print(
        f"{len(results) - len(missed)} of {len(results)} faults caught; missed: "
        f"{', '.join(missed) or 'none'}"
    )
    return int(bool(missed))


if __name__ == "__main__":
    sys.exit(main())
