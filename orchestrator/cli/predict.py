"""`specfrontier predict`: settings sampled from a space, predicted from a few recorded images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import options as o
from orchestrator.cli.query_options import Space, open_sweep
from orchestrator.cli.text import say, show, shown_table
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with, in_memory
from orchestrator.outputs import output_folder, table_bytes, write_output
from orchestrator.text import counted

if TYPE_CHECKING:
    import torch

    from orchestrator.replay.predict import PredictedSpace
    from orchestrator.store.sweep import Sweep
    from search_spaces.sweep import SweepConfig

EPILOG = """\b
Examples:
  specfrontier predict quickstart
  specfrontier predict quickstart --from quickstart
  specfrontier predict joint --models models.yaml#llamagen-xl --settings 5000 --captions 64 --out predicted
"""
TABLE = "predictions.parquet"
PLOT = "predictions.png"
_VALUES = ("mean_accepted_length", "speedup", "excess")


@o.grouped
def predict(
    space: Space,
    settings: int = o.option("Settings sampled from the space.", "N", default=2000, min=1),
    captions: int = o.option(
        "Images recorded for each drafter and kind of tree.", "N", default=24, min=2
    ),
    out: str = o.option(
        "Output folder; created if missing.", "DIR", default="predicted", callback=o.output_path
    ),
    measured: str | None = o.option(
        "A sweep of the same models; its trials correct the predictions.", "SWEEP", "--from"
    ),
    assignments: o.Assignments = None,
    models: o.Models = None,
    device: o.Device = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Predict the front of a search space without running it: accepted length, speed-up and excess
    acceptance of settings that are sampled from it.

    The exact rule runs once for each drafter and kind of tree, and its passes are recorded; every
    rule and every smaller tree is then applied to the recorded passes. "excess" is the probability
    mass that a rule accepts beyond the exact one, and "total_variation" the distance of the emitted
    tokens' distribution to the target's, both per token. Writes predictions.parquet and
    predictions.png. Adjacency trees and Jacobi windows, whose drafts depend on the rule, are
    predicted approximately; temperature 0 cannot be predicted.
    """
    from search_spaces.sweep import SweepConfig
    from search_spaces.trial import parse_assignments

    folder = Path(out)
    with ends_with(WRONG_USAGE):
        sweep = SweepConfig.read(space, o.model_keys(models) | parse_assignments(assignments or []))
        corrections = None if measured is None else open_sweep(measured)
    o.say_on_terminal("loading the models")
    from workers.decoding.engine import DecodingError  # after the checks: this imports torch

    chosen = o.pick_device(device)
    with (
        output_folder(folder),
        ends_with(FAILED, DecodingError),
        in_memory("; try fewer --captions, or another --device"),
        ends_with(WRONG_USAGE),
        sweep.locate_errors(),
    ):
        predicted = _predict(sweep, settings, captions, chosen, corrections)
    with ends_with(FAILED):
        _write(predicted, folder)
    from orchestrator.shown.status import session_problems

    facts = _to_mapping(predicted, folder) | {
        "notes": [] if corrections is None else session_problems(corrections)
    }
    show(facts, _describe(predicted, folder), as_json=as_json)


def _predict(
    sweep: SweepConfig, count: int, images: int, device: torch.device, trials: Sweep | None
) -> PredictedSpace:
    """Sample `count` settings of a space and predict them from `images` recorded images. Raises
    ValueError, OSError.
    """
    from orchestrator.launch.checks import check_configs
    from orchestrator.launch.inspection import in_section, models_entry
    from orchestrator.replay.predict import predict_space
    from workers.data.captions import read_captions
    from workers.loading.models import Capabilities
    from workers.loading.models_yaml import load_entry

    with o.show_notes():
        models = load_entry(models_entry(sweep), device)
    capabilities = Capabilities.of(models)
    sweep = sweep.resolve(capabilities.sampling)
    check_configs(sweep, capabilities)
    with in_section("captions"):
        captions = read_captions(**sweep.captions.to_mapping())[:images]
    return predict_space(sweep, models, captions, count=count, log=say, trials=trials)


def _write(predicted: PredictedSpace, folder: Path) -> None:
    """Write the table of all settings, and their plot."""
    from orchestrator.shown.plots import scatter_plot
    from orchestrator.store.names import family

    write_output(str(folder / TABLE), table_bytes(predicted.table(), ".parquet"))
    values = [setting.prediction.values for setting in predicted.settings]
    points = [(entry["speedup"].value, entry["excess"].value) for entry in values]
    families = [family(setting.config) for setting in predicted.settings]
    labels = ("predicted speedup [x]", "predicted excess acceptance per token")
    write_output(str(folder / PLOT), scatter_plot(points, families, labels))


def _describe(predicted: PredictedSpace, folder: Path) -> list[str]:
    """The predicted front as lines of text."""
    rows = []
    names = predicted.names.alike(setting.config for setting in predicted.front)
    for setting in predicted.front:
        estimates = [setting.prediction.values[name] for name in _VALUES]
        rows.append([names.name(setting.config), *map(str, estimates)])
    lines: list[str] = [shown_table(["setting", *_VALUES], rows, right=range(1, 1 + len(_VALUES)))]
    front, everything = len(predicted.front), len(predicted.settings)
    lines.append(
        f"the predicted front: {front} of {counted(everything, 'setting')}; all in "
        f"{folder / TABLE}, {PLOT}"
    )
    approximate = sum(setting.prediction.approximate for setting in predicted.settings)
    if approximate:
        lines.append(
            f"{counted(approximate, 'setting')} predicted approximately: their drafts depend on "
            "the rule"
        )
    if predicted.corrected_by:
        lines.append(f"corrected by {counted(predicted.corrected_by, 'trial')}")
    lines += [
        f"not predicted: {counted(count, 'setting')}: {why}"
        for why, count in predicted.left_out.items()
    ]
    return lines


def _to_mapping(predicted: PredictedSpace, folder: Path) -> dict[str, object]:
    """The predicted front in the table's order; the table has the other settings."""
    return {
        "settings": len(predicted.settings),
        "not_predicted": dict(predicted.left_out),
        "corrected_by": predicted.corrected_by,
        "front": [
            {
                "setting": predicted.names.name(setting.config),
                "label": predicted.labels.get(setting.config, ""),
                "config": setting.config.to_mapping(),
                "approximate": setting.prediction.approximate,
                **{
                    n: {"value": e.value, "error": e.error, "n": e.n}
                    for n, e in setting.prediction.values.items()
                },
            }
            for setting in predicted.front
        ],
        "written": {"table": str(folder / TABLE), "plot": str(folder / PLOT)},
    }
