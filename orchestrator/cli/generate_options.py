"""The options of `generate`: which key of a setting each one writes, and its help."""

from __future__ import annotations

from typing import Annotated

import typer

Captions = Annotated[
    list[str] | None,
    typer.Argument(metavar="CAPTION", help="What to draw; quote each caption.", show_default=False),
]
CaptionsFile = Annotated[
    str | None, typer.Option("--captions", metavar="FILE", help="A file with one caption a line; - for standard input.")
]
Preset = Annotated[
    str | None, typer.Option(metavar="NAME", help="A method by name, with its paper's parameters (see --list-presets).")
]
ListPresets = Annotated[bool, typer.Option("--list-presets", help="List the presets and end.")]
ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config", metavar="YAML", help="A setting from a file, such as the config.yaml that generate writes."
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key of the setting, e.g. --set acceptance.divergence=jsd. Repeatable.",
    ),
]

Drafter = Annotated[str | None, typer.Option(metavar="KIND", help="none, eagle, medusa, independent or jacobi.")]
Tree = Annotated[
    str | None, typer.Option(metavar="KIND", help="none, chain, static, static:NAME, dynamic or adjacency.")
]
Depth = Annotated[int | None, typer.Option(metavar="N", help="Levels of the draft tree; the length of a chain.")]
Width = Annotated[int | None, typer.Option(metavar="N", help="Children of a node that a dynamic tree considers.")]
Nodes = Annotated[int | None, typer.Option(metavar="N", help="Drafted nodes of a dynamic tree.")]
Neighbourhood = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="none, additive (LANTERN), multiplicative (LANTERN++) or grouped (GSD)."),
]
K = Annotated[
    int | None, typer.Option("--k", metavar="N", help="Size of the neighbourhood, the token itself included.")
]
Delta = Annotated[float | None, typer.Option(metavar="X", help="Additive bound.")]
Lambda = Annotated[float | None, typer.Option("--lambda", metavar="X", help="Multiplicative bound.")]
Schedule = Annotated[
    str | None,
    typer.Option(metavar="KIND", help="constant, linear or exponential: how the budget falls along the draft."),
]
Budget = Annotated[float | None, typer.Option(metavar="X", help="Mean relaxation budget; 1 is exact.")]
Resampling = Annotated[
    str | None, typer.Option(metavar="KIND", help="paper or optimal: what is drawn from after a rejection.")
]
Temperature = Annotated[float | None, typer.Option(metavar="X", help="0 is greedy. Default: the model's own.")]
TopK = Annotated[int | None, typer.Option("--top-k", metavar="N", help="Keep the k likeliest tokens; 0 keeps all.")]
TopP = Annotated[float | None, typer.Option("--top-p", metavar="X", help="Keep the likeliest tokens up to this mass.")]
Cfg = Annotated[float | None, typer.Option(metavar="X", help="Scale of classifier-free guidance; 1 is none.")]

Batch = Annotated[int, typer.Option(metavar="N", min=1, help="Images that are drawn together.")]
Seed = Annotated[int, typer.Option(metavar="N", help="Same seed, same images, whatever the batch.")]
Samples = Annotated[int, typer.Option(metavar="N", min=1, help="Images for each caption.")]
Out = Annotated[str, typer.Option(metavar="DIR", help="Folder for the results; made if it is not there.")]
Weights = Annotated[
    str | None,
    typer.Option(
        metavar="DIR",
        help="Folder of weight files of the scenes family, e.g. what `train` wrote. Default: the built-in ones.",
    ),
]
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models",
        metavar="FILE[#ENTRY]",
        help="A models.yaml, which says where checkpoints lie, and one of its entries (unless it has only one).",
    ),
]
Device = Annotated[
    str | None, typer.Option(metavar="DEVICE", help="cpu, cuda or cuda:N. Default: a GPU if torch can use one.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print statistics.json instead of a summary.")]
