"""`specfrontier doctor`: what this machine has, which weights are there and whole, and what a sweep will need."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from orchestrator.errors import FAILED, WRONG_USAGE, ends_with

EPILOG = """\b
Examples:
  specfrontier doctor
  specfrontier doctor --models models.yaml
  specfrontier doctor --plan my_sweep.yaml --models models.yaml --gpus 8 --gpu-memory 24
"""
ModelsFile = Annotated[
    str | None,
    typer.Option(
        "--models", metavar="MODELS", help="Check a models.yaml (FILE or FILE#ENTRY), or a folder of weights."
    ),
]
Plan = Annotated[
    str | None, typer.Option(metavar="SPACE", help="Say what a sweep will need: memory, images, hours. Runs nothing.")
]
BatchSize = Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Of --models: images drawn at once.")]
Gpus = Annotated[int | None, typer.Option(metavar="N", min=1, help="Of --plan. Default: this machine's, else 1.")]
GpuMemory = Annotated[
    float | None, typer.Option(metavar="GIB", min=1.0, help="Of each GPU. Default: this machine's, else 80.")
]
Bandwidth = Annotated[
    float | None, typer.Option("--gpu-bandwidth", metavar="GB/S", help="Default: of a usual GPU of that memory.")
]
Compute = Annotated[
    float | None, typer.Option("--gpu-compute", metavar="TFLOP/S", help="In 16 bits. Default: of a usual GPU.")
]
Accepted = Annotated[
    float, typer.Option("--accepted-length", metavar="X", min=1.0, help="Tokens that a pass emits, assumed by --plan.")
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
    """Say what this machine has, which built-in weights are there and whole, and what is missing; or check the
    checkpoints of a models.yaml; or say what a sweep will need.

    Exits with 1 if something that `generate` or `launch` needs is missing or broken, or does not fit.
    """
    if plan is not None:
        memory, bandwidth, compute = gpu_memory, gpu_bandwidth, gpu_compute
        findings, lines = planned(plan, models, gpus, memory, bandwidth, compute, accepted_length)
        well = findings["fits"]
    elif models is not None:
        findings, lines = checked(models, batch)
        well = not findings["problems"]
    else:
        from orchestrator.doctor.machine import examine

        findings = examine()
        lines, well = in_words(findings), not findings["problems"]
    typer.echo(json.dumps(findings, indent=2, ensure_ascii=False) if as_json else "\n".join(lines))
    if not well:
        raise typer.Exit(FAILED)


def checked(models: str, batch: int) -> tuple[dict[str, Any], list[str]]:
    """Findings on a models.yaml, as data and in words.

    Raises:
        CommandError: the file itself is wrong.
    """
    from orchestrator.doctor.checkup import check_models, describe_checkup

    with ends_with(WRONG_USAGE):
        found = check_models(models, batch)
    return found, describe_checkup(found)


def planned(
    space: str,
    models: str | None,
    gpus: int | None,
    memory: float | None,
    bandwidth: float | None,
    compute: float | None,
    accepted: float,
) -> tuple[dict[str, Any], list[str]]:
    """What a sweep will need, as data and in words.

    Raises:
        CommandError: the space or the models.yaml is wrong, or nothing determines the models' architecture.
    """
    from orchestrator.doctor.machine import torch_facts
    from orchestrator.doctor.plan import GIB, describe_plan, gpu_of, models_for_plan, plan
    from search_spaces.sweep import SweepConfig

    here = torch_facts()["devices"]
    gigabytes = memory or (here[0]["memory_bytes"] / GIB if here else 80.0)
    with ends_with(WRONG_USAGE):
        sweep = SweepConfig.read(space, {} if models is None else {"models.file": models})
        gpu = gpu_of(gigabytes, bandwidth, compute)
        found = plan(sweep, models_for_plan(sweep), gpus or len(here) or 1, gpu, accepted)
    return found, describe_plan(found)


def in_words(findings: dict[str, Any]) -> list[str]:
    """The findings as lines for a person."""
    from workers.runtime.memory import format_bytes

    machine, torch = findings["machine"], findings["torch"]
    free = f", {format_bytes(machine['free_bytes'])} free" if machine["free_bytes"] else ""
    facts = [
        ("machine", f"{machine['system']}, Python {findings['python']}"),
        ("cores", f"{machine['cores']}, of which torch uses {torch['threads']}"),
        ("memory", format_bytes(machine["memory_bytes"]) + free),
        ("torch", f"{torch['version']} ({torch['build']})"),
        *(("GPU", f"{device['name']}, {format_bytes(device['memory_bytes'])}") for device in torch["devices"]),
        *(() if torch["devices"] else [("GPU", "none that torch can use: everything runs on the CPU")]),
        *((name, found or "not installed") for name, found in findings["libraries"].items()),
        *((name, found or "not installed") for name, found in findings["sweeps"]["libraries"].items()),
        ("sweeps", sweeps_in_words(findings["sweeps"]["workers"])),
        ("ray clusters", access_in_words(findings["sweeps"]["ray"])),
        ("weights", findings["weights_folder"]),
    ]
    problems = [f"PROBLEM: {problem}" for problem in findings["problems"]]
    return [
        f"specfrontier {findings['specfrontier']}",
        *(f"{name:<13} {fact}" for name, fact in facts),
        *(f"  {describe(weight)}" for weight in findings["weights"]),
        "",
        *(problems or ["Nothing is missing."]),
    ]


def sweeps_in_words(workers: dict[str, Any]) -> str:
    """On what a sweep would run here."""
    if workers["gpus"]:
        names = ", ".join(dict.fromkeys(workers["gpus"]))
        return f"{workers['count']} workers here, each on a GPU of its own ({names})"
    return f"{workers['count']} workers here, each on a core (no GPU); --address takes them from a cluster"


def access_in_words(ray: dict[str, Any]) -> str:
    """Whether Ray's commands need to be told that clusters ask for a token."""
    mode, token = ray["mode"], ray["token"]
    if mode == "token":
        return f"joined with the token in {token}" if token else "RAY_AUTH_MODE=token is set, but no token is found"
    if token is None:
        return "joined without a token (no ~/.ray/auth_token)"
    by_itself = "launch --address uses it by itself" if mode is None else f"RAY_AUTH_MODE={mode} leaves it unused"
    return f"a token is in {token}: {by_itself}; `ray` commands need RAY_AUTH_MODE=token for clusters that ask for it"


def describe(weight: dict[str, Any]) -> str:
    from workers.runtime.memory import format_bytes

    if weight["state"] != "complete":
        return f"{weight['file']:<28} {weight['state'].upper()}"
    held = f"{format_bytes(weight['bytes']):>9}  {weight['parameters']:>10,} parameters"
    return f"{weight['file']:<28} {held}  sha256 {weight['hash']}…"
