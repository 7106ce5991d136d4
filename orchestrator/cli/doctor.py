"""`specfrontier doctor`: check this machine, the checkpoints of a models.yaml, or the needs of a
sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from orchestrator import options as o
from orchestrator.cli.text import show
from orchestrator.errors import FAILED, WRONG_USAGE, ends_with

if TYPE_CHECKING:
    from orchestrator.doctor.gpus import Gpu

EPILOG = """\b
Examples:
  specfrontier doctor
  specfrontier doctor --models models.yaml
  specfrontier doctor --plan my_sweep.yaml --models models.yaml --gpus 8 --gpu-memory 24
"""
_DEFAULT_GIB = 80.0  # of a GPU
_TYPICAL = (
    "Default: that of a data-centre or gaming GPU with about that memory, which the plan names."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Examined:
    """The options that say what is examined; without --models and --plan, this machine."""

    models: str | None = o.option(
        "Check a models.yaml (FILE or FILE#ENTRY), or a folder of weights.", "MODELS"
    )
    plan: str | None = o.option(
        "Estimate the memory, images and hours of a sweep, without running it.", "SPACE"
    )
    batch: int = o.option("For --models: images generated together.", "N", default=1, min=1)
    gpus: int | None = o.option(
        "For --plan: number of GPUs. Default: this machine's. Without a GPU and without these "
        "options, the plan is of this CPU, which is timed.",
        "N",
        min=1,
    )
    gpu_memory: float | None = o.option(
        "For --plan: memory of each GPU. Default: this machine's, else 80.",
        "GIB",
        min=1.0,
        max=1000000.0,
        callback=o.finite,
    )
    gpu_bandwidth: float | None = o.option(
        f"Bandwidth of each GPU. {_TYPICAL}", "GB/S", min=0.001, callback=o.finite
    )
    gpu_compute: float | None = o.option(
        f"Compute of each GPU in 16 bits. {_TYPICAL}", "TFLOP/S", min=0.001, callback=o.finite
    )
    accepted_length: float = o.option(
        "Mean accepted length that --plan assumes, beside 1 (no draft is accepted).",
        "X",
        default=2.0,
        min=1.0,
        callback=o.finite,
    )


@o.grouped
def doctor(
    examined: Examined, as_json: bool = o.flag("Print the findings as JSON.", "--json")
) -> None:
    """Check this machine and the built-in weights; with --models, checkpoints; with --plan, the
    needs of a sweep.

    Exits with 1 if something that `generate` or `launch` needs is missing or broken, or does not
    fit.
    """
    with ends_with(WRONG_USAGE):
        if examined.plan is not None:
            findings, lines = _plan(examined.plan, examined)
            is_ok = findings["fits"] is not False
        elif examined.models is not None:
            from orchestrator.doctor import checkup

            findings = checkup.check_models(examined.models, examined.batch)
            lines = checkup.describe_checkup(findings)
            is_ok = not findings["problems"]
        else:
            from orchestrator.doctor import machine

            findings = machine.examine()
            lines = machine.describe_machine(findings)
            is_ok = not findings["problems"]
    show(findings, lines, as_json=as_json)
    if not is_ok:
        raise typer.Exit(FAILED)


def _plan(space: str, options: Examined) -> tuple[dict[str, Any], list[str]]:
    """The plan of a sweep as data and as lines of text."""
    from orchestrator.doctor import machine
    from orchestrator.doctor import plan as plans
    from search_spaces.sweep import SweepConfig

    here = machine.torch_facts()["devices"]
    changes = {} if options.models is None else {"models.file": options.models}
    sweep = SweepConfig.read(space, changes)
    gpu, count = _workers(options, here)
    with sweep.locate_errors():
        with o.show_notes():
            shapes = plans.models_for_plan(sweep, "cuda" if gpu.has_graphs else "cpu")
        findings = plans.plan(sweep, shapes, count, gpu, options.accepted_length)
    return findings, plans.describe_plan(findings)


def _workers(options: Examined, here: Sequence[Mapping[str, Any]]) -> tuple[Gpu, int]:
    """What the workers of a plan compute with, and their number: GPUs, or the cores of a machine
    without any if no option is about GPUs. here: this machine's GPUs.
    """
    from orchestrator.doctor.cpu import Cpu
    from orchestrator.doctor.gpus import GIB, gpu_of
    from workers.runtime.process import cores

    asked = (options.gpus, options.gpu_memory, options.gpu_bandwidth, options.gpu_compute)
    if not here and asked == (None, None, None, None):
        return Cpu.here(), cores()
    memory = options.gpu_memory
    device = ""
    if not memory and here:
        memory = here[0]["memory_bytes"] / GIB
        device = str(here[0]["name"])
    gpu = gpu_of(memory or _DEFAULT_GIB, options.gpu_bandwidth, options.gpu_compute, device)
    return gpu, options.gpus or len(here) or 1
