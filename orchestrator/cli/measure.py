"""`specfrontier measure`: metrics of a trial from the results of a benchmark's own tool."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import options as o
from orchestrator.cli import query_options as q
from orchestrator.cli.text import show, shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with
from orchestrator.options import AsJson, grouped, option

if TYPE_CHECKING:
    from orchestrator.front.trial import Trial
    from workers.data.prompt_benchmarks import PromptBenchmark

EPILOG = """\b
Examples:
  specfrontier export mine --trial 7 --layout geneval --out images
  specfrontier measure mine 7 --geneval results.jsonl
  specfrontier measure mine 7 --dpg-bench dpg-bench_results.txt --captions prompts.csv
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """The options that name the results."""

    geneval: str | None = option(
        "Results of GenEval's evaluate_images.py.", "JSONL", callback=o.input_path
    )
    dpg_bench: str | None = option(
        "Results of DPG-Bench's compute_dpg_bench.py.", "TXT", callback=o.input_path
    )

    @property
    def given(self) -> tuple[str, str]:
        """The name of the benchmark, and its file. Raises CommandError unless there is one."""
        found = {"geneval": self.geneval, "dpg_bench": self.dpg_bench}
        given = [(name, file) for name, file in found.items() if file is not None]
        if len(given) != 1:
            raise CommandError("give one of --geneval and --dpg-bench", WRONG_USAGE)
        return given[0]


@grouped
@q.query_errors()
def measure(
    sweep: q.OneSweep,
    number: Annotated[int, typer.Argument(metavar="N", help="The number of a trial.", min=0)],
    results: Results,
    captions: str | None = option(
        "The benchmark's prompts, of which the sweep's captions are. Default: the sweep's file.",
        "FILE",
        callback=o.input_path,
    ),
    as_json: AsJson = False,
) -> None:
    """Add what a benchmark's own tool says of a trial's images to the trial's metrics.

    The images are those that `specfrontier export --layout` has written. All of them must have a
    result, and a result of any other image is refused. The metric is in every table, front and
    report from then on, with an error over captions; results of the same images are replaced.
    """
    from orchestrator.cli.prompt_images import prompts_of, scored_images
    from orchestrator.front.front import front_of
    from orchestrator.store import launches
    from orchestrator.store.scores import metric_of, write_scores
    from orchestrator.store.sweep import Sweep
    from orchestrator.views.tables import write_tables
    from workers.data.prompt_benchmarks import PROMPT_BENCHMARKS

    name, file = results.given
    benchmark = PROMPT_BENCHMARKS[name]
    opened = q.open_sweep(sweep)
    storage = opened.storage
    if (launch := launches.find_launch(storage)).is_running:
        raise CommandError(
            f"{storage.display_name}: {launch.text}; measure it when it has ended", FAILED
        )
    own = opened.identity.metrics.get(name)
    if own is not None and own.meaning != metric_of(benchmark, name).meaning:
        raise CommandError(
            f"sweep {opened.name} has a metric {name} of its own, which would be replaced",
            WRONG_USAGE,
        )
    trial = front_of([opened], feasible=False).trial(number)
    prompts = prompts_of(trial, benchmark, captions)
    with ends_with(WRONG_USAGE):
        scores = benchmark.read_results(Path(file))
    write_scores(storage, benchmark, trial.record, scored_images(trial, prompts, scores, file))
    found = Sweep.open(storage)
    write_tables(found)
    _show(front_of([found], feasible=False).trial(number), benchmark, as_json=as_json)


def _show(trial: Trial, benchmark: PromptBenchmark, *, as_json: bool) -> None:
    """Print the values, and which commands show them."""
    from orchestrator.store import files

    storage = trial.sweep.storage
    values = {
        name: entry
        for name, entry in trial.metrics.items()
        if name == benchmark.name or name.startswith(f"{benchmark.name}_")
    }
    facts = {
        "sweep": trial.sweep.name,
        "number": trial.number,
        "metrics": {
            name: {"value": entry.value, "error": entry.known_error, "images": entry.n}
            for name, entry in values.items()
        },
    }
    rows = [[name, str(entry), str(entry.n)] for name, entry in values.items()]
    lines = [trial.heading, "", shown_table(["metric", "value", "images"], rows, right=[1, 2]), ""]
    lines.append(f"the front: {files.command(storage, 'pareto', '--y', benchmark.name)}")
    if storage.exists(files.REPORT):
        lines.append(f"the report page: {files.command(storage, 'report')}")
    if storage.exists(files.MLFLOW_PLACE):
        lines.append(f"update MLflow: {files.command(storage, 'sync')}")
    show(facts, lines, as_json=as_json)
