"""`specfrontier doctor`: check this machine, the checkpoints of a models.yaml, or the needs of a sweep."""

from __future__ import annotations

import json
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
_WITHOUT_GPU = " There is no GPU: the built-in model is fast enough on a CPU, the papers' models are not."
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="MODELS", help="Check a models.yaml (FILE or FILE#ENTRY), or a folder of weights."
    ),
]
Plan = Annotated[
    str | None,
    typer.Option(metavar="SPACE", help="Estimate the memory, images and hours of a sweep, without running it."),
]
BatchSize = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="For --models: images drawn at once.")]
Gpus = Annotated[int | None, typer.Option(metavar="N", min=1, help="For --plan. Default: this machine's, else 1.")]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        metavar="GIB", min=1.0, max=1e6, callback=o.finite, help="Of each GPU. Default: this machine's, else 80."
    ),
]
Bandwidth = Annotated[
    float | None,
    typer.Option(
        "--gpu-bandwidth", metavar="GB/S", min=1e-3, callback=o.finite,
        help="Default: typical for a GPU with that memory.",
    ),
]  # fmt: skip
Compute = Annotated[
    float | None,
    typer.Option(
        "--gpu-compute", metavar="TFLOP/S", min=1e-3, callback=o.finite,
        help="In 16 bits. Default: typical for a GPU with that memory.",
    ),
]  # fmt: skip
Accepted = Annotated[
    float,
    typer.Option(
        "--accepted-length", metavar="X", min=1.0, callback=o.finite, help="Mean accepted length that --plan assumes."
    ),
]


def doctor(
    models: ModelsFile = None,
    plan: Plan = None,
    batch: BatchSize = 1,
    gpus: Gpus = None,
    gpu_memory: GpuMemory = None,
    gpu_bandwidth: Bandwidth = None,
    gpu_compute: Compute = None,
    accepted_length: Accepted = 2.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check this machine and the built-in weights; with --models, checkpoints; with --plan, the needs of a sweep.

    Exits with 1 if something that `generate` or `launch` needs is missing or broken, or does not fit.
    """
    from orchestrator.doctor import machine

    with ends_with(WRONG_USAGE):
        if plan is not None:
            from orchestrator.doctor import plan as plans
            from orchestrator.doctor import workload
            from search_spaces.sweep import SweepConfig

            here = machine.torch_facts()["devices"]
            memory = gpu_memory or (here[0]["memory_bytes"] / workload.GIB if here else 80.0)
            sweep = SweepConfig.read(plan, {} if models is None else {"models.file": models})
            gpu = workload.gpu_of(memory, gpu_bandwidth, gpu_compute)
            with sweep.locate_errors():
                shapes = workload.models_for_plan(sweep)
                findings = plans.plan(sweep, shapes, gpus or len(here) or 1, gpu, accepted_length)
            lines = plans.describe_plan(findings)
        elif models is not None:
            from orchestrator.doctor import checkup

            findings = checkup.check_models(models, batch)
            lines = checkup.describe_checkup(findings)
        else:
            findings = machine.examine()
            lines = _describe(findings)
    is_ok = not findings["problems"] if plan is None else findings["fits"]
    typer.echo(json.dumps(findings, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    if not is_ok:
        raise typer.Exit(FAILED)


def _describe(findings: dict[str, Any]) -> list[str]:
    """The findings as lines of text."""
    from workers.runtime.memory import format_bytes

    machine, torch = findings["machine"], findings["torch"]
    free = f", {format_bytes(machine['free_bytes'])} free" if machine["free_bytes"] else ""
    facts = [
        ("machine", f"{machine['system']}, Python {findings['python']}"),
        ("cores", f"{machine['cores']}, torch uses {torch['threads']}"),
        ("memory", format_bytes(machine["memory_bytes"]) + free),
        ("torch", f"{torch['version']} ({torch['build']})"),
        *(("GPU", f"{device['name']}, {format_bytes(device['memory_bytes'])}") for device in torch["devices"]),
        *(() if torch["devices"] else [("GPU", "none that torch can use")]),
        ("kernels", describe_kernels(torch)),
        ("CUDA graphs", "yes" if torch["cuda_graphs"] else "no, each operation is launched alone"),
        *((name, found or "not installed") for name, found in findings["libraries"].items()),
        *((name, found or "not installed") for name, found in findings["sweeps"]["libraries"].items()),
        ("sweeps", describe_workers(findings["sweeps"]["workers"])),
        ("ray clusters", describe_ray_access(findings["sweeps"]["ray"])),
        ("weights", findings["weights_folder"]),
    ]
    problems = [f"PROBLEM: {problem}" for problem in findings["problems"]]
    return [
        f"specfrontier {findings['specfrontier']}",
        *(f"{name:<13} {fact}" for name, fact in facts),
        *(f"  {_describe_weight(weight)}" for weight in findings["weights"]),
        "",
        *(problems or [f"No problems found.{'' if torch['devices'] else _WITHOUT_GPU}"]),
    ]


def describe_kernels(torch: dict[str, Any]) -> str:
    """Which code walks over draft trees and makes random bits."""
    if torch["kernels"] == "triton":
        return "Triton's"
    return "Triton's do not run on this GPU, so trees take longer" if torch["devices"] else "plain torch, on a CPU"


def describe_workers(workers: dict[str, Any]) -> str:
    """The workers of a sweep on this machine."""
    if workers["gpus"]:
        names = ", ".join(dict.fromkeys(workers["gpus"]))
        return f"{workers['count']} workers here, one per GPU ({names})"
    return f"{workers['count']} workers here, one per core (no GPU); --address uses a cluster"


def describe_ray_access(ray: dict[str, Any]) -> str:
    """How this machine authenticates with Ray clusters."""
    mode, token = ray["mode"], ray["token"]
    if mode == "token":
        return f"joined with the token in {token}" if token else "RAY_AUTH_MODE=token is set, but no token is found"
    if token is None:
        return "joined without a token (no ~/.ray/auth_token)"
    use = "launch --address uses it" if mode is None else f"RAY_AUTH_MODE={mode} leaves it unused"
    return f"a token is in {token}: {use}; `ray` commands need RAY_AUTH_MODE=token for clusters that require it"


def _describe_weight(weight: dict[str, Any]) -> str:
    from workers.runtime.memory import format_bytes

    if weight["state"] != "complete":
        return f"{weight['file']:<28} {weight['state'].upper()}"
    held = f"{format_bytes(weight['bytes']):>9}  {weight['parameters']:>10,} parameters"
    return f"{weight['file']:<28} {held}  sha256 {weight['hash']}…"
