"""`specfrontier doctor`: check this machine, the checkpoints of a models.yaml, or the needs of a sweep."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from orchestrator import options as o
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with

EPILOG = """\b
Examples:
  specfrontier doctor
  specfrontier doctor --models models.yaml
  specfrontier doctor --plan my_sweep.yaml --models models.yaml --gpus 8 --gpu-memory 24
"""
_TYPICAL = "Default: typical for a GPU with that memory."


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The options that say what is examined; without --models and --plan, this machine."""

    models: Annotated[
        str | None,
        typer.Option(metavar="MODELS", help="Check a models.yaml (FILE or FILE#ENTRY), or a folder of weights."),
    ] = None
    plan: Annotated[
        str | None,
        typer.Option(metavar="SPACE", help="Estimate the memory, images and hours of a sweep, without running it."),
    ] = None
    batch: Annotated[int, typer.Option(metavar="N", min=1, help="For --models: images drawn at once.")] = 1
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="For --plan. Default: this machine's, else 1.")
    ] = None
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            metavar="GIB", min=1.0, max=1e6, callback=o.finite, help="Of each GPU. Default: this machine's, else 80."
        ),
    ] = None
    gpu_bandwidth: Annotated[float | None, typer.Option(metavar="GB/S", min=1e-3, callback=o.finite, help=_TYPICAL)] = (
        None
    )
    gpu_compute: Annotated[
        float | None, typer.Option(metavar="TFLOP/S", min=1e-3, callback=o.finite, help=f"In 16 bits. {_TYPICAL}")
    ] = None
    accepted_length: Annotated[
        float, typer.Option(metavar="X", min=1.0, callback=o.finite, help="Mean accepted length that --plan assumes.")
    ] = 2.0


@o.grouped
def doctor(
    examined: Examined, as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False
) -> None:
    """Check this machine and the built-in weights; with --models, checkpoints; with --plan, the needs of a sweep.

    Exits with 1 if something that `generate` or `launch` needs is missing or broken, or does not fit.
    """
    with ends_with(WRONG_USAGE):
        if examined.plan is not None:
            findings, lines = _plan(examined.plan, examined)
        elif examined.models is not None:
            from orchestrator.doctor import checkup

            findings = checkup.check_models(examined.models, examined.batch)
            lines = checkup.describe_checkup(findings)
        else:
            from orchestrator.doctor import machine

            findings = machine.examine()
            lines = machine.describe_machine(findings)
    is_ok = findings["fits"] if "fits" in findings else not findings["problems"]
    typer.echo(json.dumps(findings, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    if not is_ok:
        raise typer.Exit(FAILED)


def _plan(space: str, options: Examined) -> tuple[dict[str, Any], list[str]]:
    """The plan of a sweep as data and as lines of text."""
    from orchestrator.doctor import machine
    from orchestrator.doctor import plan as plans
    from search_spaces.sweep import SweepConfig

    here = machine.torch_facts()["devices"]
    memory = options.gpu_memory or (here[0]["memory_bytes"] / plans.GIB if here else 80.0)
    sweep = SweepConfig.read(space, {} if options.models is None else {"models.file": options.models})
    gpu = plans.gpu_of(memory, options.gpu_bandwidth, options.gpu_compute)
    with sweep.locate_errors():
        shapes = plans.models_for_plan(sweep)
        findings = plans.plan(sweep, shapes, options.gpus or len(here) or 1, gpu, options.accepted_length)
    return findings, plans.describe_plan(findings)
