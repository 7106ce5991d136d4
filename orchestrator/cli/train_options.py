"""The options of `specfrontier train` that go with --captions."""

from __future__ import annotations

from typing import Annotated

import typer

Captions = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Captions that the target draws and the drafter learns on; or: scenes."),
]
Weights = Annotated[str | None, typer.Option(metavar="DIR", help="The target's folder of weights; or: builtin.")]
ModelsFile = Annotated[
    str | None,
    typer.Option("--models", metavar="FILE[#ENTRY]", help="The target, instead of --weights."),
]
Count = Annotated[int | None, typer.Option(metavar="N", min=2, help="Captions taken. Default: all of them.")]
Batch = Annotated[int | None, typer.Option(metavar="N", min=1, help="Examples of a step, of all workers. Default: 16.")]
Rate = Annotated[float | None, typer.Option(metavar="X", min=0.0, help="Peak learning rate. Default: 0.0001.")]
SaveEvery = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Steps from one checkpoint to the next. Default: 1000.")
]
Workers = Annotated[
    int, typer.Option(metavar="N", min=1, help="Processes that train together on Ray, each with a GPU or a core.")
]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT. Default: this machine alone.")
]
TrackingUri = Annotated[
    str | None, typer.Option(metavar="URI", help="MLflow. Default: MLFLOW_TRACKING_URI, else SQLite beside DIR.")
]
Mlflow = Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Send the curve to MLflow.")]
