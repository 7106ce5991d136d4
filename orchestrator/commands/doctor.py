"""`specfrontier doctor`: what this machine has, which built-in weights are there and whole, and what is missing."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from orchestrator.errors import FAILED


def doctor(as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False) -> None:
    """Say what this machine has, which built-in weights are there and whole, and what is missing.

    Exits with 1 if something that `generate` or `launch` needs is missing or broken.
    """
    from orchestrator.machine import examine

    findings = examine()
    typer.echo(json.dumps(findings, indent=2) if as_json else "\n".join(in_words(findings)))
    if findings["problems"]:
        raise typer.Exit(FAILED)


def in_words(findings: dict[str, Any]) -> list[str]:
    """The findings as lines for a person."""
    machine, torch = findings["machine"], findings["torch"]
    free = f", {size(machine['free_bytes'])} free" if machine["free_bytes"] else ""
    facts = [
        ("machine", f"{machine['system']}, Python {findings['python']}"),
        ("cores", f"{machine['cores']}, of which torch uses {torch['threads']}"),
        ("memory", size(machine["memory_bytes"]) + free),
        ("torch", f"{torch['version']} ({torch['build']})"),
        *(("GPU", f"{device['name']}, {size(device['memory_bytes'])}") for device in torch["devices"]),
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
    if weight["state"] != "whole":
        return f"{weight['file']:<28} {weight['state'].upper()}"
    held = f"{size(weight['bytes']):>9}  {weight['numbers']:>10,} numbers"
    return f"{weight['file']:<28} {held}  sha256 {weight['hash']}…"


def size(count: int | None) -> str:
    """A number of bytes for people, in powers of 1024."""
    if count is None:
        return "unknown"
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
