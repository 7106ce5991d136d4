"""Ray clusters: where their addresses come from, what responds there within seconds, and how one is
lost.

Whatever Ray raises becomes one sentence, with the advice for its cause.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest
import ray
from ray._private import services

from orchestrator.cluster import cluster, cluster_guard, ray_internals
from orchestrator.cluster.cluster import ClusterMonitor, connected, requires_token, resolve_address
from orchestrator.cluster.placement import Node, Slots
from orchestrator.cluster.tasks import ClusterLost, PoolError
from tests.fakes.odd_servers import HTTP, REDIS, fake_gcs, odd_server
from tests.fakes.ports import HOST, claim_port

LIMIT_S = 10.0  # for an answer; with the imports of a launch, less than 15
MISMATCH = "Version mismatch: The cluster was started with:\n    Ray: 2.1.0\n    Python: 3.9.0\n"


@pytest.fixture(autouse=True)
def no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster runs here, as far as Ray sees."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: set())
    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]


def write_address_file(folder: Path, address: str) -> Path:
    """As `ray start` does, and a killed head node leaves it."""
    file = folder / "ray" / "ray_current_cluster"
    file.parent.mkdir()
    file.write_text(f"{address}\n")
    return file


def run_raylets(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    monkeypatch.setattr(services, "_find_address_from_flag", lambda flag: set(addresses))


def test_auto_is_resolved_in_rays_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_address_file(tmp_path, "10.0.0.1:1")
    found = resolve_address("auto")
    assert found.address == "10.0.0.1:1" == services.canonicalize_bootstrap_address("auto")
    assert str(file) in found.source
    run_raylets(monkeypatch, "10.0.0.2:2")
    found = resolve_address("auto")
    assert found.address == "10.0.0.2:2" == services.canonicalize_bootstrap_address("auto")
    assert "process" in found.source
    run_raylets(monkeypatch, "10.0.0.2:2", "10.0.0.3:3")
    services.find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    assert (
        resolve_address("auto").address
        == "10.0.0.1:1"
        == services.canonicalize_bootstrap_address("auto")
    )
    file.unlink()
    with pytest.raises(PoolError, match=r"several clusters.*10\.0\.0\.2:2, 10\.0\.0\.3:3"):
        resolve_address("auto")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.4:4")
    found = resolve_address("auto")
    assert found.address == "10.0.0.4:4" == services.canonicalize_bootstrap_address("auto")
    assert "RAY_ADDRESS" in found.source
    assert resolve_address("10.0.0.5:5").address == "10.0.0.5:5", "only auto asks the environment"


def test_no_cluster_for_auto() -> None:
    with pytest.raises(PoolError, match=r"--address auto.*RAY_ADDRESS.*ray_current_cluster"):
        resolve_address("auto")


@pytest.mark.parametrize(
    "address",
    [
        "",
        "local",
        "head",
        "head:",
        "head:0",
        "head:65536",
        ":6379",
        "::1:6379",
        "[::1]",
        "ray://head",
        "a b:1",
        "u@h:1",
    ],
)
def test_what_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--address") as raised:
        resolve_address(address)
    assert "HOST:PORT" in str(raised.value)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)
        with pytest.raises(ValueError, match="RAY_ADDRESS"):
            resolve_address("auto")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(ValueError, match="HOST:PORT") as raised:
        resolve_address("postgresql://me:hunter22@h:1/db")
    assert "hunter22" not in str(raised.value)


def test_the_dashboards_address_is_named() -> None:
    with pytest.raises(ValueError, match="dashboard"):
        resolve_address("http://127.0.0.1:8265")


@pytest.mark.parametrize(
    "address", ["127.0.0.2:1", "[::1]:1", "[fe80::1]:1", "localhost:1", "ray://127.0.0.2:1"]
)
def test_nothing_answers(address: str) -> None:
    with pytest.raises(PoolError, match="no response"):
        requires_token(resolve_address(address))


def test_a_cluster_is_waited_for_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a connection, and for an answer from GCS or Ray client server."""
    assert cluster._CONNECT_TIMEOUT_S + cluster._ANSWER_TIMEOUT_S < LIMIT_S
    monkeypatch.setattr(cluster, "_ANSWER_TIMEOUT_S", 0.25)
    connect = mock.Mock(wraps=socket.create_connection)
    ping = mock.Mock(side_effect=ray_internals.MissingName)
    check = mock.Mock(side_effect=ray_internals.MissingName)
    monkeypatch.setattr(socket, "create_connection", connect)
    monkeypatch.setattr(ray_internals, "ping_client_server", ping)
    monkeypatch.setattr(ray_internals, "check_alive", check)
    with odd_server() as server:
        for scheme in ("", "ray://"):
            assert not requires_token(resolve_address(f"{scheme}{server.address}"))
    assert [call.args[1] for call in connect.call_args_list] == [cluster._CONNECT_TIMEOUT_S] * 2
    assert [call.args[-1] for call in (*check.call_args_list, *ping.call_args_list)] == [0.25, 0.25]


def test_stale_addresses_name_their_source_and_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_address_file(tmp_path, "127.0.0.2:1")
    with pytest.raises(PoolError, match=rf"{file} names 127\.0\.0\.2:1.*remove the file"):
        requires_token(resolve_address("auto"))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.2:2")
    with pytest.raises(PoolError, match=r"RAY_ADDRESS is 127\.0\.0\.2:2.*unset RAY_ADDRESS"):
        requires_token(resolve_address("auto"))


@pytest.mark.parametrize("scheme", ["", "ray://"])
@pytest.mark.parametrize("answer", [b"", HTTP, REDIS], ids=["silent", "http", "redis"])
def test_another_server_answers(answer: bytes, scheme: str) -> None:
    """A silent one too: without a time limit this would hang."""
    with (
        odd_server(answer) as server,
        pytest.raises(PoolError, match=f"{server.address} is not a Ray c"),
    ):
        requires_token(resolve_address(f"{scheme}{server.address}"))


@pytest.mark.parametrize("variable", ["http_proxy", "grpc_proxy", "https_proxy"])
def test_no_proxy_is_asked(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer of a proxy would say nothing about the cluster."""
    for name in ("no_proxy", "NO_PROXY", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    with odd_server(HTTP) as proxy, fake_gcs(ray.__version__, "secret") as address:
        monkeypatch.setenv(variable, f"http://{proxy.address}")
        assert requires_token(resolve_address(address))
        with odd_server(REDIS) as server, pytest.raises(PoolError, match="is not a Ray cluster"):
            requires_token(resolve_address(server.address))
        assert proxy.requests == []


def test_a_cluster_of_another_version() -> None:
    with (
        fake_gcs("2.1.0") as address,
        pytest.raises(PoolError, match=f"Ray 2\\.1\\.0.*{ray.__version__}.*same version"),
    ):
        requires_token(resolve_address(address))


def test_a_machine_outside_of_the_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself would wait for a minute."""
    monkeypatch.setattr(cluster, "_NODE_TIMEOUT_S", 0.2)
    run_raylets(monkeypatch, "ab" * 28)
    with fake_gcs(ray.__version__, alive=True) as address:
        assert not requires_token(resolve_address(address))
    with (
        fake_gcs(ray.__version__) as address,
        pytest.raises(PoolError, match="not a node of the cluster"),
    ):
        requires_token(resolve_address(address))


@pytest.mark.parametrize(
    ("mode", "token", "parts"),
    [
        (None, "", ("requires a token", "RAY_AUTH_TOKEN_PATH")),
        (None, "wrong", ("refuses this user's token", "RAY_AUTH_TOKEN_PATH")),
        ("token", "wrong", ("refuses this user's token", "RAY_AUTH_TOKEN_PATH")),
        ("disabled", "right", ("requires a token", "unset RAY_AUTH_MODE")),
    ],
)
def test_advice_about_tokens(
    mode: str | None,
    token: str,
    parts: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run_raylets(monkeypatch, "ab" * 28)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    if mode is not None:
        monkeypatch.setenv("RAY_AUTH_MODE", mode)
    if token:
        (tmp_path / ".ray").mkdir()
        (tmp_path / ".ray" / "auth_token").write_text(token)
    ray_internals.forget_authentication()
    with (
        fake_gcs(ray.__version__, "right") as address,
        pytest.raises(PoolError, match=f"--address {address}: ") as raised,
        connected(address, Slots(1), 1),
    ):
        raise AssertionError("connected")
    for part in parts:
        assert part in str(raised.value)


@pytest.mark.parametrize(
    ("address", "error", "parts"),
    [
        (
            None,
            Exception("The current node timed out during startup"),
            ("timed out during startup", "memory"),
        ),
        (None, ConnectionError("refused\n at once"), ("refused at once",)),
        ("127.0.0.2:5", RuntimeError(MISMATCH), ("127.0.0.2:5", "Python: 3.9.0", "same versions")),
        ("127.0.0.2:5", ConnectionError("refused"), ("127.0.0.2:5: refused", "`ray status`")),
    ],
)
def test_a_ray_that_does_not_start_ends_in_one_sentence(
    address: str | None, error: Exception, parts: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_TMPDIR")  # pytest's folder is too long for sockets
    with (
        mock.patch("orchestrator.cluster.cluster.requires_token", return_value=False),
        mock.patch("ray.init", side_effect=error) as init,
        pytest.raises(PoolError) as raised,
        connected(address, Slots(1), 1),
    ):
        raise AssertionError("connected")
    message = str(raised.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert ("token" in message) is False, "no token was involved"
    assert init.call_count == 1


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """The folders of the clusters that start, each without its agents: Ray's words then, and what
    its raylet logs.
    """
    folders: list[Path] = []

    def start(_: str, *, _temp_dir: str, **options: object) -> None:
        folders.append(Path(_temp_dir))
        logs = folders[-1] / "session_2026-11-27_15-00-59_077074_17930" / "logs"
        logs.mkdir(parents=True)
        logs.joinpath("raylet.out").write_text(
            "Check failed: Timed out waiting for file /tmp/metrics_agent_port_71\n"
        )
        raise Exception("The current node timed out during startup.")

    monkeypatch.delenv("RAY_TMPDIR")  # pytest's folder is too long for sockets
    with mock.patch("ray.init", side_effect=start):
        yield folders


def test_a_node_whose_agents_are_late_is_started_again(
    starts: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray gives them 15 seconds, too few on a busy machine."""
    start: Any = cast("Any", ray.init).side_effect
    outcomes = iter([start, start, lambda *_, **options: starts.append(Path(options["_temp_dir"]))])
    cast("Any", ray.init).side_effect = lambda *given, **options: next(outcomes)(*given, **options)
    monkeypatch.setattr(cluster, "alive_nodes", lambda: [Node({"CPU": 1.0}, {})])
    before = dict(os.environ)
    with connected(None, Slots(1), 1):
        assert [folder.parent.exists() for folder in starts] == [False, False, True]
        assert os.environ[cluster_guard.MARK] == str(starts[-1].parent)
    assert not starts[-1].parent.exists()
    assert cluster_guard.MARK not in os.environ
    assert before.items() <= os.environ.items()


def test_a_node_whose_agents_never_start_ends_the_launch(starts: list[Path]) -> None:
    with pytest.raises(PoolError, match="its load"), connected(None, Slots(1), 1):
        raise AssertionError("connected")
    assert len(set(starts)) == cluster._START_ATTEMPTS
    assert not any(folder.parent.exists() for folder in starts)


def test_ray_does_not_handle_sigterm(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its handler, SIGTERM and SIGINT at once could end a launch with code 15 and no word."""
    handled: list[str] = []

    def start(*_: object, **options: object) -> None:
        ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))  # type: ignore[no-untyped-call]
        signal.raise_signal(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as Ray's C++ code does

    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setattr(cluster, "alive_nodes", lambda: [Node({"CPU": 1.0}, {})])
    before = signal.signal(signal.SIGTERM, lambda *_: handled.append("ours"))
    try:
        with mock.patch("ray.init", side_effect=start), connected(None, Slots(1), 1):
            signal.raise_signal(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert handled == ["ours"] * 2


@pytest.fixture
def gcs() -> Any:
    """A socket in the place of a GCS, which keeps its port while connections are refused."""
    with socket.create_server((HOST, claim_port())) as server:
        yield server


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The monitor's clock, which stands still."""
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


@pytest.fixture
def monitor(gcs: Any, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> ClusterMonitor:
    address = f"127.0.0.1:{gcs.getsockname()[1]}"
    context = SimpleNamespace(gcs_address=address, get_node_id=lambda: "own")
    monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
    return ClusterMonitor()


def test_a_gcs_that_is_gone_for_a_moment_is_waited_for(
    gcs: Any, monitor: ClusterMonitor, clock: SimpleNamespace
) -> None:
    assert monitor.responds(max_age=0.0)
    gcs.shutdown(socket.SHUT_RDWR)  # connections are refused, and the port stays taken
    clock.now += cluster._PROBE_INTERVAL_S / 2
    assert monitor.responds(), "as of the last second"
    assert not monitor.responds(max_age=0.0)
    gcs.listen()
    clock.now += cluster.GCS_TIMEOUT_S - 1
    assert monitor.responds(max_age=0.0)
    gcs.shutdown(socket.SHUT_RDWR)
    clock.now += cluster.GCS_TIMEOUT_S + 1
    assert not monitor.responds(max_age=0.0), "it responded a moment ago, whatever happened before"
    clock.now += cluster.GCS_TIMEOUT_S + 1
    with pytest.raises(PoolError, match=r"GCS at 127\.0\.0\.1:\d+ has not responded") as lost:
        monitor.responds(max_age=0.0)
    assert not isinstance(lost.value, ClusterLost), "it is not ours to start again"


def test_a_driver_whose_own_node_died_ends(
    monitor: ClusterMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [{"NodeID": "own", "Alive": True}, {"NodeID": "other", "Alive": False}]
    monkeypatch.setattr(ray, "nodes", lambda: nodes)
    monitor.check_node()
    nodes[0]["Alive"] = False
    with pytest.raises(PoolError, match="driver's machine"):
        monitor.check_node()
