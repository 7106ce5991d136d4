"""The walk of a setting from a sweep's YAML file to its front: the forms that it takes, and the modules it crosses.

    python -m benchmarks.walk [--forms 6] [--modules 20]

A small sweep of a random model runs in this process, and every call of a function of the product is watched for
arguments that are the setting. Two kinds of modules are not counted: those that are given any plain data, and those
that show a setting (reports, names, log lines). Modules that only see the setting's trial are listed apart. The exit
code is 1 if there are more forms or modules than these.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.structure import PRODUCT
from orchestrator.results.trials import TrialRecord
from search_spaces.space_tree import Leaf
from search_spaces.trial import DecodingConfig
from tests.fakes.command_line import specfrontier
from tests.fakes.local_pool import local_launches
from tests.fakes.tiny_models import tiny_scenes

DELTA = 0.1234  # no other number of the sweep is this one
SWEEP = """
name: walked
models: WEIGHTS
captions: {source: scenes, count: 2}
reference: {source: none}
metrics: [step_compression, caption_accuracy]
objectives: [step_compression, caption_accuracy]
search: {sampler: random}
budget: {trials: 2}
space:
  drafter: eagle
  tree: {policy: chain, length: 2}
  acceptance: {neighbourhood: additive, k: 7, delta: 0.1234}
"""
HELPERS = (
    "search_spaces.params", "search_spaces.documents", "workers.data.checked_json", "orchestrator.results.checked_text",
)  # fmt: skip
SHOWING = (
    "workers.runtime.logs", "orchestrator.results.names", "orchestrator.results.text", "orchestrator.views",
    "orchestrator.report", "orchestrator.run.progress", "orchestrator.cli",
)  # fmt: skip
PLAIN, LEAVES, CONFIG, TRIAL, ROW = "plain data", "leaves of the space", "DecodingConfig", "TrialRecord", "table row"
Crossed = dict[str, dict[str, None]]  # forms by module, both in order of their first use


def form_of(value: Any) -> str | None:
    """The form in which a value is the setting; None if it is not."""
    if isinstance(value, TrialRecord):
        return TRIAL if form_of(value.config) else None
    if isinstance(value, DecodingConfig):
        return CONFIG if getattr(value.acceptance.neighbourhood, "delta", None) == DELTA else None
    if isinstance(value, Leaf):
        return LEAVES if DELTA in value.domain.corners else None
    if isinstance(value, dict):
        section = value.get("acceptance")
        if isinstance(section, dict) and section.get("delta") == DELTA:
            return PLAIN
        return ROW if value.get("acceptance.delta") == DELTA else next(filter(None, map(form_of, value.values())), None)
    return next(filter(None, map(form_of, value)), None) if isinstance(value, list | tuple) else None


@contextmanager
def watched_calls() -> Iterator[Crossed]:
    """The modules whose functions are given the setting while the block runs."""
    found: Crossed = {}

    def watch(frame: FrameType, event: str, _: object) -> None:
        module, code = str(frame.f_globals.get("__name__")), frame.f_code
        if event != "call" or module.partition(".")[0] not in PRODUCT or code.co_filename == "<string>":
            return  # the last is a dataclass's own constructor
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        for name in names[code.co_name == "__init__" :]:  # a new object has no fields yet
            if (form := form_of(frame.f_locals.get(name))) and not module.startswith((*HELPERS, *SHOWING)):
                found.setdefault(module, {})[form] = None

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield found
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk() -> Crossed:
    """Launch the sweep and print its front.

    Raises:
        RuntimeError: one of the two commands failed.
    """
    with tempfile.TemporaryDirectory() as folder, chdir(folder), local_launches(), watched_calls() as found:
        Path("walked.yaml").write_text(SWEEP.replace("WEIGHTS", str(tiny_scenes(Path("weights").absolute()))))
        for command in (("launch", "walked.yaml"), ("pareto", "sweeps/walked")):
            if (result := specfrontier(*command)).code:
                raise RuntimeError(result.err)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--forms", type=int, default=6)
    parser.add_argument("--modules", type=int, default=20)
    most, found = parser.parse_args(), walk()
    given = {module: forms for module, forms in found.items() if set(forms) != {TRIAL}}
    for number, (module, forms) in enumerate(given.items(), 1):
        print(f"{number:>2}  {module:<34}{', '.join(forms)}")
    print("by the trial:", ", ".join(module for module in found if module not in given))
    taken = ["YAML", *dict.fromkeys(form for entry in found.values() for form in entry)]
    print(f"{len(taken)} forms: {', '.join(taken)}; {len(given)} modules")
    sys.exit(len(taken) > most.forms or len(given) > most.modules)


if __name__ == "__main__":
    main()
