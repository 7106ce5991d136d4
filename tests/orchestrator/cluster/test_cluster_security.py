"""A cluster of a local sweep can be reached by its user alone; one at an address gets a token only
if it wants one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ipaddress import ip_address
from pathlib import Path

import grpc
import psutil
import pytest
import ray

from orchestrator.cluster.ray_internals import ALIVE_METHOD
from tests.fakes.odd_servers import HTTP, OddServer, odd_server
from tests.fakes.ports import claim_port
from tests.fakes.ray_starts import start_ray
from tests.fakes.real_sweeps import ROOT, processes, ray_folder
from tests.fakes.waiting import HANG_S

pytestmark = pytest.mark.slow(seconds=30)
ACTOR = """
class Actor:
    def answer(self): return 42
def ask():
    global actor
    actor = ray.remote(Actor).options(num_cpus=1).remote()
    return ray.get(actor.answer.remote(), timeout=600)
"""
ANSWER = f"""
import sys, ray
{ACTOR}
from orchestrator.cluster.cluster import Slots, connected
from orchestrator.cluster.ray_internals import without_services
from tests.fakes.ray_starts import start_ray
def answer():
    print(ask(), ray.get_runtime_context().gcs_address, flush=True)
    sys.stdin.readline()
"""
DRIVER = f"""
{ANSWER}
with connected(None if sys.argv[1] == "local" else sys.argv[1], Slots(1), 1):
    answer()
"""
RAY = """
from ray.scripts.scripts import main
from orchestrator.cluster.ray_internals import without_services
with without_services():
    main()
"""
THREE_CLUSTERS = f"""
{ANSWER}
def in_own():
    with connected(None, Slots(1), 1):
        answer()
in_own()
with without_services():
    start_ray(lambda: ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False))
answer()
ray.shutdown()
in_own()
"""


@contextmanager
def addresses(
    script: str, *arguments: str, environment: Mapping[str, str]
) -> Iterator[Iterator[str]]:
    """The GCS's addresses of clusters that run an actor, one after the other."""
    with subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        stdin, stdout, stderr = process.stdin, process.stdout, process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None

        def read() -> Iterator[str]:
            while line := stdout.readline().split():
                assert line[0] == "42"
                yield line[1]
                stdin.write("\n")
                stdin.flush()

        yield (found := read())
        assert list(found) == [], "no other cluster"
        assert process.wait(HANG_S) == 0, stderr.read()


@contextmanager
def driver(address: str, folder: Path, home: Path, **variables: str) -> Iterator[str]:
    """The GCS's address of a cluster that runs an actor."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("RAY_AUTH")
    }
    environment |= {
        "RAY_TMPDIR": str(folder),
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
    } | variables
    with addresses(DRIVER, address, environment=environment) as found:
        yield next(found)


def code_without_token(address: str) -> grpc.StatusCode:
    """What a cluster answers to a caller who has no token."""
    with grpc.insecure_channel(address) as channel:
        try:
            channel.unary_unary(ALIVE_METHOD)(b"", timeout=HANG_S)
        except grpc.RpcError as error:
            code: grpc.StatusCode = error.code()
            return code
    return grpc.StatusCode.OK


def local_requests(proxy: OddServer) -> list[bytes]:
    """What a proxy was asked for of this machine. (Ray's agents ask for the metadata of clouds.)"""
    local = (b"localhost", b"127.0.0.1", ray.util.get_node_ip_address().encode())  # type: ignore[no-untyped-call]
    return [request for request in proxy.requests if any(host in request for host in local)]


@pytest.fixture
def folder() -> Iterator[Path]:
    with ray_folder() as made:
        yield made


def test_a_local_cluster_listens_on_the_loopback_only_and_wants_a_token(
    folder: Path, tmp_path: Path
) -> None:
    # on another cluster
    job = {"runtime_env": {"working_dir": "gcs://_ray_pkg_0123456789abcdef.zip"}, "metadata": {}}
    variables = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)}
    with (
        odd_server(HTTP) as proxy,
        driver(
            "local", folder, tmp_path, http_proxy=f"http://{proxy.address}", **variables
        ) as address,
    ):
        assert not local_requests(proxy)
        found = processes(folder)
        listeners = {
            (process.name(), entry.laddr.ip)
            for process in found
            for entry in process.net_connections("inet")
            if entry.status == psutil.CONN_LISTEN or entry.type.name == "SOCK_DGRAM"
        }
        programs = {Path(word).name for process in found for word in process.cmdline()}
        assert not programs & {"dashboard.py", "monitor.py", "log_monitor.py"}, (
            "a sweep on one machine needs none"
        )
        assert {"gcs_server", "raylet"} <= {name for name, _ in listeners}
        assert len({name for name, _ in listeners}) >= 4, (
            "agents, the driver and its worker listen too"
        )
        assert not {(name, ip) for name, ip in listeners if not is_loopback(ip)}, (
            "see docs/security.md"
        )
        assert code_without_token(address) == grpc.StatusCode.UNAUTHENTICATED
        (private,) = folder.iterdir()
        assert private.stat().st_mode & 0o077 == 0, "Ray opens what is in there to all users"
        tokens = {
            process.environ().get("RAY_AUTH_TOKEN_PATH")
            for process in found
            if process.name() == "raylet"
        }
        assert tokens == {str(private / "auth_token")}
        token = (private / "auth_token").read_text()
        assert not any(token in " ".join(process.cmdline()) for process in found)
    assert list(tmp_path.iterdir()) == [], "nothing is written to the user's home"
    assert list(folder.iterdir()) == []


def test_a_local_cluster_leaves_no_mode_to_the_next_one_and_wants_a_users_own_token(
    folder: Path, tmp_path: Path
) -> None:
    """A driver that wants tokens refuses the calls of a cluster that has none: its actors are
    cancelled. So is, in Ray, an actor of a driver without tokens if the user has one.
    """
    environment = os.environ | {
        "RAY_TMPDIR": str(folder),
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": "disabled",
    }
    with addresses(THREE_CLUSTERS, environment=environment) as found:
        assert code_without_token(next(found)) == grpc.StatusCode.UNAUTHENTICATED
        assert code_without_token(next(found)) == grpc.StatusCode.OK
        write_token(tmp_path)
        assert code_without_token(next(found)) == grpc.StatusCode.UNAUTHENTICATED
        (private,) = folder.glob("*/ray")
        assert not (private.parent / "auth_token").exists(), "the user's token is used"


def write_token(home: Path) -> None:
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("ab" * 32)


def is_loopback(ip: str) -> bool:
    parsed = ip_address(ip)
    return (getattr(parsed, "ipv4_mapped", None) or parsed).is_loopback


@pytest.mark.parametrize("secured", [False, True])
def test_a_users_token_is_used_where_it_is_wanted(
    secured: bool, folder: Path, tmp_path: Path
) -> None:
    """With a token, the driver would refuse its own workers in a cluster that has none."""
    write_token(tmp_path)
    port = claim_port()
    mode = "token" if secured else "disabled"
    environment = os.environ | {
        "RAY_TMPDIR": str(folder),
        "HOME": str(tmp_path),
        "RAY_AUTH_MODE": mode,
    }
    environment |= {"PYTHONPATH": str(ROOT)}
    options = [
        "--head",
        f"--port={port}",
        "--num-cpus=1",
        "--include-dashboard=false",
        f"--temp-dir={folder}",
    ]
    command = [sys.executable, "-c", RAY, "start", *options, "--object-store-memory=83886080"]
    command += ["--disable-usage-stats", f"--dashboard-agent-listen-port={claim_port()}"]

    def start() -> None:
        for process in processes(folder):  # of an attempt before
            process.kill()
        with (tmp_path / "output").open("w") as output:
            code = subprocess.run(
                command, env=environment, stdout=output, stderr=output, check=False
            ).returncode
        assert code == 0, (tmp_path / "output").read_text()

    start_ray(start)
    with (
        odd_server(HTTP) as proxy,
        driver(
            f"127.0.0.1:{port}", folder, tmp_path, http_proxy=f"http://{proxy.address}"
        ) as address,
    ):
        assert not local_requests(proxy)
        wanted = grpc.StatusCode.UNAUTHENTICATED if secured else grpc.StatusCode.OK
        assert code_without_token(address) == wanted
