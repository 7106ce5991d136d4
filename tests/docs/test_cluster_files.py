"""The files of docs/cluster: linted, and held against the code. Neither Docker nor Slurm nor
Kubernetes runs.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.cli.app import app
from search_spaces.sweep import SweepConfig
from search_spaces.trial import parse_assignments
from tests.fakes.waiting import HANG_S, wait_until
from tests.fakes.wheel import package_files, wheel_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of Ray's command line
ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "cluster"
BIN = Path(sys.executable).parent
DOCKERFILE, SBATCH = FILES / "Dockerfile", FILES / "slurm.sbatch"
JOB: dict[str, Any] = yaml.safe_load((FILES / "rayjob.yaml").read_text())
# The keys of KubeRay's ray.io/v1 that this manifest uses, written down by hand. An unknown one is
# refused.
KEYS = {
    "job": {
        "entrypoint",
        "backoffLimit",
        "shutdownAfterJobFinishes",
        "ttlSecondsAfterFinished",
        "rayClusterSpec",
    },
    "cluster": {
        "rayVersion",
        "enableInTreeAutoscaling",
        "autoscalerOptions",
        "authOptions",
        "headGroupSpec",
        "workerGroupSpecs",
    },
    "head": {"rayStartParams", "template"},
    "worker": {
        "groupName",
        "labels",
        "replicas",
        "minReplicas",
        "maxReplicas",
        "rayStartParams",
        "template",
    },
}


def pinned(name: str) -> str:
    found = re.search(rf"^{name}==(.+)$", (ROOT / "constraints.txt").read_text(), flags=re.M)
    assert found
    return found[1]


def launch_options(words: list[str]) -> dict[str, Any]:
    """The options of a `specfrontier launch` command line, parsed by the command itself."""
    assert words[:2] == ["specfrontier", "launch"]
    command: Any = typer.main.get_command(app)
    context = command.commands["launch"].make_context("launch", words[2:])
    return dict(context.params)


def check_ray_start(arguments: list[str]) -> dict[str, Any]:
    """The options of a `ray start`, parsed by the installed Ray."""
    from ray.scripts.scripts import start

    return dict(start.make_context("start", arguments).params)


@pytest.mark.parametrize(("linter", "path"), [("hadolint", DOCKERFILE), ("shellcheck", SBATCH)])
def test_linters_find_nothing(linter: str, path: Path, tmp_path: Path) -> None:
    command = [BIN / linter, "--no-color"] if linter == "hadolint" else [BIN / linter]
    assert (
        subprocess.run([*command, path], capture_output=True, text=True, check=False).stdout == ""
    )
    faulty = tmp_path / "faulty"
    faulty.write_text(
        path.read_text()
        .replace("FROM python:3.11-slim", "FROM python")
        .replace('"$SPACE"', "$SPACE")
    )
    assert subprocess.run([*command, faulty], capture_output=True, check=False).returncode == 1


def instructions() -> list[list[str]]:
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.M).replace("\\\n", " ")
    return [shlex.split(line) for line in text.splitlines() if line.strip()]


def test_the_image_installs_the_project_from_what_it_copies(tmp_path: Path) -> None:
    """Its COPY and `pip` steps, on an empty folder; the packages that it needs are pinned
    elsewhere.
    """
    admitted = {
        line[1:]
        for line in (FILES / "Dockerfile.dockerignore").read_text().splitlines()
        if line[:1] == "!"
    }
    copied = [source for word, *names in instructions() if word == "COPY" for source in names[:-1]]
    assert set(copied) == admitted
    for name in copied:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        else:
            shutil.copy(ROOT / name, tmp_path / name)
    (install,) = (
        words[1:] for words in instructions() if words[:4] == ["RUN", "python", "-m", "pip"]
    )
    assert install[3:] == ["install", "--no-cache-dir", ".[sweep]", "-c", "constraints.txt"]
    names = set(zipfile.ZipFile(wheel_of(tmp_path, tmp_path / "out")).namelist())
    assert package_files(ROOT) <= names, sorted(package_files(ROOT) - names)


def test_the_image_does_not_run_as_root() -> None:
    users = [words[1] for words in instructions() if words[0] == "USER"]
    assert users[-1:] == ["1000"]
    pods = [group["template"]["spec"] for group in groups()]
    assert all(pod["securityContext"] == {"runAsNonRoot": True, "runAsUser": 1000} for pod in pods)


def groups() -> list[dict[str, Any]]:
    cluster = JOB["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_the_ray_job_has_only_keys_that_kuberay_knows() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    head, *workers = groups()
    parts = [("job", JOB["spec"]), ("cluster", JOB["spec"]["rayClusterSpec"]), ("head", head)]
    for kind, part in [*parts, *(("worker", worker) for worker in workers)]:
        assert part.keys() <= KEYS[kind], kind
    assert JOB["spec"]["rayClusterSpec"]["rayVersion"] == pinned("ray")
    for group in groups():
        (container,) = group["template"]["spec"]["containers"]
        assert container["image"] == f"specfrontier:{version()}"
        assert container["resources"]["requests"] == container["resources"]["limits"]
        check_ray_start(
            [
                word
                for key, value in group["rayStartParams"].items()
                for word in (f"--{key}", str(value))
            ]
        )


def version() -> str:
    found = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), flags=re.M)
    assert found
    return found[1]


def test_the_ray_job_runs_a_sweep_whose_nodes_may_come() -> None:
    options = launch_options(shlex.split(JOB["spec"]["entrypoint"]))
    workers = groups()[1:]
    assert options["resume"]
    assert options["out"].startswith("s3://")
    assert options["workers"] == sum(group["maxReplicas"] for group in workers)
    assert options["gpus_per_worker"] == 1
    sweep = SweepConfig.read(options["space"], parse_assignments(options["assignments"]))
    assert [group["labels"] for group in workers if group["labels"] == sweep.timing.nodes]
    for group in workers:
        limits = group["template"]["spec"]["containers"][0]["resources"]["limits"]
        assert limits["nvidia.com/gpu"] == "1"
        assert float(limits["cpu"]) >= options["cpus_per_worker"]


FAKES = {
    "scontrol": (
        'if [ "$1" = show ]; then printf "node1\\nnode2\\nnode3\\n"; else echo "scontrol $*"'
        ' >>"$CALLS"; fi'
    ),
    "srun": 'trap "exit 0" TERM; echo "srun $*" >>"$CALLS"; while :; do sleep 0.05; done',
    "ray": (  # both `srun` have begun
        '[ "$(stat -c %a "$RAY_AUTH_TOKEN_PATH")" = 600 ] && [ "$(grep -c ^srun "$CALLS")" = 2 ]'
        ' && echo "ray $RAY_AUTH_MODE $*" >>"$CALLS"'
    ),
    "specfrontier": (
        'trap "exit 143" TERM; echo "specfrontier $*" >>"$CALLS"; '
        'for i in $(seq $ROUNDS); do sleep 0.05; done; exit "$CODE"'
    ),
}


def start_batch(
    folder: Path, *arguments: str, rounds: int = 1, code: int = 0
) -> subprocess.Popen[bytes]:
    """The batch script with Slurm, Ray and the sweep replaced by scripts that write down how they
    are called.
    """
    for name, body in FAKES.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    environment = {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "HOME": str(folder),
        "CALLS": str(folder / "calls"),
    }
    environment |= {
        "SLURM_JOB_ID": "123",
        "SLURM_JOB_NODELIST": "node[1-3]",
        "SLURM_CPUS_PER_TASK": "8",
    }
    environment |= {
        "SPACE": "my sweep.yaml",
        "OUT": "/shared/sweeps",
        "ROUNDS": str(rounds),
        "CODE": str(code),
    }
    return subprocess.Popen(["bash", SBATCH, *arguments], env=environment)


def calls(folder: Path, program: str) -> list[str]:
    path = folder / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.split()[0] == program]


@pytest.mark.parametrize("code", [0, 1])
def test_a_slurm_job_starts_ray_on_every_node_and_then_the_sweep(code: int, tmp_path: Path) -> None:
    assert start_batch(tmp_path, "--trials", "9", code=code).wait(HANG_S) == code
    (sweep,) = calls(tmp_path, "specfrontier")
    assert (
        sweep
        == "specfrontier launch my sweep.yaml --out /shared/sweeps --address node1:20123 --resume "
        "--trials 9"
    )
    started = [line.partition(" ray start ") for line in calls(tmp_path, "srun")]
    assert sorted(words for words, _, _ in started) == [
        "srun --overlap --nodes=1 --ntasks=1 --nodelist=node1",
        "srun --overlap --nodes=2 --ntasks=2 --exclude=node1",
    ]
    options = [check_ray_start(arguments.split()) for _, _, arguments in started]
    assert {(entry["head"], entry["port"], entry["address"]) for entry in options} == {
        (True, 20123, None),
        (False, None, "node1:20123"),
    }
    assert all(entry["block"] and entry["num_cpus"] == 8 for entry in options)
    assert calls(tmp_path, "ray") == ["ray token status --address=node1:20123"]
    assert calls(tmp_path, "scontrol") == []
    assert not list((tmp_path / ".specfrontier").iterdir()), "the token is gone"


def test_a_slurm_job_at_its_time_limit_stops_the_sweep_and_is_queued_again(tmp_path: Path) -> None:
    job = start_batch(tmp_path, rounds=12_000)
    wait_until(lambda: calls(tmp_path, "specfrontier"))
    job.send_signal(signal.SIGTERM)
    assert job.wait(HANG_S) == 143
    assert calls(tmp_path, "scontrol") == ["scontrol requeue 123"]


def test_the_signal_comes_before_the_time_limit_and_the_job_may_be_queued_again() -> None:
    directives = dict(re.findall(r"^#SBATCH --([a-z-]+)=?(\S*)$", SBATCH.read_text(), flags=re.M))
    assert directives.keys() >= {"requeue", "signal", "time", "nodes", "gpus-per-node"}
    target, _, seconds = directives["signal"].partition("@")
    assert (target, int(seconds) >= 60) == ("B:TERM", True)
