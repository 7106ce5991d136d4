"""Options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

Weights = Annotated[
    str | None,
    typer.Option(
        metavar="DIR", help="Folder with weight files of the scenes family, such as the output of `train`; or: builtin."
    ),
]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="FILE[#ENTRY]", help="A models.yaml and one of its entries (optional if it has only one)."
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N. Default: a GPU if torch can use one.")
]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT. Default: this machine alone.")
]
TrackingUri = Annotated[
    str | None,
    typer.Option(
        metavar="URI", help="MLflow's tracking URI. Default: MLFLOW_TRACKING_URI, else SQLite in the output folder."
    ),
]
Mlflow = Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Log to MLflow.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override one key of the YAML file, with dots between levels. Repeatable."
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
