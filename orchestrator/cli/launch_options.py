"""The options of `specfrontier launch`."""

from __future__ import annotations

from typing import Annotated

import typer

Space = Annotated[str, typer.Argument(metavar="SPACE", help="A YAML file, or the name of a ready one.")]
Out = Annotated[str, typer.Option(metavar="DIR|URI", help="Where sweeps are kept; this one in a folder of its name.")]
Name = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sweep. Default: the space's.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with what is there, or begin if nothing is.")]
Trials = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: trials in all.")]
Images = Annotated[int | None, typer.Option(metavar="N", min=1, help="Budget: images, by the time of asking.")]
Hours = Annotated[
    float | None, typer.Option(metavar="H", help="Budget: wall clock of one run (a resumed sweep has them anew).")
]
Sampler = Annotated[str | None, typer.Option(metavar="NAME", help="tpe, nsga2, nsga3, gp, random, qmc or grid.")]
Parallel = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Trials in flight; part of what the search does.")
]
Seed = Annotated[int | None, typer.Option(metavar="N", help="Seed of all images.")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of the sweep, e.g. captions.count=512.")
]
Weights = Annotated[str | None, typer.Option(metavar="DIR", help="Models to sweep. Default: the space's.")]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE[#ENTRY]",
        help="A models.yaml, which says where checkpoints lie; and its entry, unless the space names one.",
    ),
]
Address = Annotated[
    str | None, typer.Option(metavar="ADDRESS", help="Ray cluster: auto or HOST:PORT. Default: this machine alone.")
]
Workers = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Workers. Default: one for each GPU, or for each core.")
]
CpusPerWorker = Annotated[float, typer.Option(metavar="N", min=0.0)]
GpusPerWorker = Annotated[float | None, typer.Option(metavar="N", min=0.0, help="Default: 1 where there are GPUs.")]
Threads = Annotated[int | None, typer.Option(metavar="N", min=1, help="Torch threads of a worker. Default: its cores.")]
Study = Annotated[
    str | None, typer.Option(metavar="URL|FILE", help="Optuna storage. Default: a journal in the sweep's folder.")
]
TrackingUri = Annotated[
    str | None, typer.Option(metavar="URI", help="MLflow. Default: MLFLOW_TRACKING_URI, else SQLite beside the sweeps.")
]
Track = Annotated[bool, typer.Option("--mlflow/--no-mlflow", help="Log to MLflow.")]
Check = Annotated[bool, typer.Option("--check", help="Read everything, say what would run, and stop.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON event a line on standard output.")]
