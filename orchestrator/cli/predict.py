"""`specfrontier predict`: every setting of a space, predicted from a few recorded images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator import options as o
from orchestrator.cli.tables import safe_text, shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, CommandError, ends_with, in_memory
from orchestrator.options import complete_space
from orchestrator.outputs import output_folder, table_bytes, write_output
from orchestrator.results.text import counted, measured

if TYPE_CHECKING:
    from orchestrator.run.predictions import PredictedSpace

EPILOG = """\b
Examples:
  specfrontier predict quickstart
  specfrontier predict quickstart --recordings recordings --from quickstart
  specfrontier predict joint --models models.yaml#llamagen-xl --settings 5000 --captions 64 --out predicted
"""
TABLE, PLOT = "predictions.parquet", "predictions.png"
_VALUES = ("mean_accepted_length", "speedup", "excess")

Space = Annotated[
    str,
    typer.Argument(metavar="SPACE", help="A YAML file, or the name of a ready space.", autocompletion=complete_space),
]
Settings = Annotated[int, typer.Option(metavar="N", min=1, help="Settings drawn from the space.")]
Captions = Annotated[int, typer.Option(metavar="N", min=2, help="Images recorded for each drafter and kind of tree.")]
Recordings = Annotated[
    str | None, typer.Option(metavar="DIR", help="Folder that keeps the recordings; those that fit are used again.")
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="SWEEP", help="A sweep of the same models; its trials correct the predictions."),
]
Out = Annotated[str, typer.Option(metavar="DIR", callback=o.given_path, help="Output folder; created if missing.")]


def predict(
    space: Space,
    settings: Settings = 2000,
    captions: Captions = 24,
    out: Out = "predicted",
    recordings: Recordings = None,
    trials: From = None,
    assignments: o.Assignments = None,
    models: o.Models = None,
    device: o.Device = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Predict the front of a search space without running it: accepted length, speed-up and cost of every setting.

    The exact rule runs once for each drafter and kind of tree; every rule and every smaller tree is then walked over
    the recorded steps. "excess" is the probability mass that a rule accepts beyond the exact one, and
    "total_variation" the distance of the emitted tokens' distribution to the target's, both per token. Writes
    predictions.parquet and predictions.png. Adjacency trees and Jacobi windows, whose drafts depend on the rule, are
    predicted approximately; temperature 0 cannot be predicted.
    """
    from orchestrator.results.sweep import Sweep
    from search_spaces.overrides import parse_assignments
    from search_spaces.sweep import SweepConfig
    from workers.loading.models_yaml import split_entry

    file, entry = (None, None) if models is None else split_entry(models)
    changes = {key: value for key, value in {"models.file": file, "models.name": entry}.items() if value is not None}
    folder = Path(out)
    with ends_with(WRONG_USAGE):
        sweep = SweepConfig.read(space, changes | parse_assignments(assignments or []))
        finished = None if trials is None else Sweep.open(trials)
    o.say_on_terminal("loading the models")
    from orchestrator.run.predictions import predict_space  # after the checks: this imports torch
    from workers.decoding.engine import DecodingError

    chosen = o.pick_device(device)
    try:
        with (
            output_folder(folder),
            in_memory("; try fewer --captions, or another --device"),
            ends_with(WRONG_USAGE),
            sweep.locate_errors(),
        ):
            predicted = predict_space(
                sweep,
                count=settings,
                captions=captions,
                device=chosen,
                log=lambda line: typer.echo(line, err=True),
                recordings=Path(recordings) if recordings else None,
                trials=finished,
            )
    except DecodingError as error:
        raise CommandError(str(error), FAILED) from error
    with ends_with(FAILED):
        _write(predicted, folder)
    typer.echo(json.dumps(_to_mapping(predicted, folder), indent=2) if as_json else _describe(predicted, folder))


def _write(predicted: PredictedSpace, folder: Path) -> None:
    from orchestrator.results.describe import family
    from orchestrator.results.plots import scatter_plot

    write_output(str(folder / TABLE), table_bytes(predicted.table(), ".parquet"))
    points = [(s.values["speedup"].value, s.values["excess"].value) for s in predicted.settings]
    families = [family(s.config) for s in predicted.settings]
    labels = ("predicted speedup [x]", "predicted excess acceptance per token")
    write_output(str(folder / PLOT), scatter_plot(points, families, labels))


def _describe(predicted: PredictedSpace, folder: Path) -> str:
    rows = [
        [predicted.names.name(s.config), *(measured(s.values[name].value, s.values[name].error) for name in _VALUES)]
        for s in predicted.front
    ]
    lines: list[str] = [shown_table(["setting", *_VALUES], rows, right=range(1, 1 + len(_VALUES)))]
    front, everything = len(predicted.front), len(predicted.settings)
    lines.append(f"the predicted front: {front} of {counted(everything, 'setting')}; all in {folder / TABLE}, {PLOT}")
    approximate = sum(setting.approximate for setting in predicted.settings)
    if approximate:
        lines.append(f"{counted(approximate, 'setting')} predicted approximately: their drafts depend on the rule")
    if predicted.corrected_by:
        lines.append(f"corrected by {counted(predicted.corrected_by, 'trial')}")
    lines += [f"not predicted: {counted(count, 'setting')}: {why}" for why, count in predicted.left_out.items()]
    return safe_text(lines)


def _to_mapping(predicted: PredictedSpace, folder: Path) -> dict[str, object]:
    """The front, best last; the table has the rest."""
    return {
        "settings": len(predicted.settings),
        "not_predicted": predicted.left_out,
        "corrected_by": predicted.corrected_by,
        "front": [
            {
                "setting": predicted.names.name(setting.config),
                "label": setting.label,
                "config": setting.config.to_mapping(),
                "approximate": setting.approximate,
                **{name: {"value": e.value, "error": e.error, "n": e.n} for name, e in setting.values.items()},
            }
            for setting in predicted.front
        ],
        "written": {"table": str(folder / TABLE), "plot": str(folder / PLOT)},
    }
