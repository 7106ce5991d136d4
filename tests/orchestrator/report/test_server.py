"""`report --serve`: what is answered to whom, and when the page is made again."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.errors import FAILED, WRONG_USAGE
from orchestrator.report import server as report_server
from orchestrator.report.server import HOST, ReportServer, version_of
from orchestrator.store.locks import driver_lock
from orchestrator.store.records import trial_file
from tests.fakes.command_line import error_of
from tests.fakes.synthetic_sweeps import write_sweep
from tests.fakes.waiting import HANG_S
from workers.data.storage import Storage

COMMAND = (sys.executable, "-c", "from orchestrator.cli.app import main; main()", "report")


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str


def ask(port: int, path: str = "/", method: str = "GET", **headers: str) -> Answer:
    connection = http.client.HTTPConnection(HOST, port)
    connection.request(
        method, path, headers={name.replace("_", "-"): value for name, value in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return Answer(answer.status, dict(answer.headers), body)


@contextmanager
def serving(versions: list[str], made: list[str]) -> Iterator[int]:
    """A server whose version is the last of `versions`; `made` gets each version that a page is
    made of.
    """

    def make(version: str) -> str:
        made.append(version)
        if version == "broken":
            raise ValueError("trials/00001.json: damaged")
        return f"<p>page {version}</p>"

    with ReportServer(0, lambda: versions[-1], make) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def test_a_page_is_made_once_for_each_version() -> None:
    versions, made = ["a"], list[str]()
    with serving(versions, made) as port:
        first = ask(port)
        assert (first.status, first.body) == (200, "<p>page a</p>")
        assert ask(port).body == first.body
        again = ask(port, If_None_Match=first.headers["ETag"])
        assert (again.status, again.body) == (304, "")
        assert json.loads(ask(port, "/version").body) == {"version": "a"}
        assert made == ["a"]
        versions.append("b")
        assert json.loads(ask(port, "/version").body) == {"version": "b"}
        assert made == ["a"], "the version alone makes no page"
        assert ask(port, If_None_Match=first.headers["ETag"]).body == "<p>page b</p>"
        assert made == ["a", "b"]


def test_a_page_that_cannot_be_made_is_made_again_later() -> None:
    versions, made = ["broken"], list[str]()
    with serving(versions, made) as port:
        failed = ask(port)
        assert (failed.status, failed.body) == (500, "trials/00001.json: damaged")
        assert "text/plain" in failed.headers["Content-Type"]
        versions.append("whole")
        assert ask(port).body == "<p>page whole</p>"


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "OPTIONS"])
def test_only_get_is_answered(method: str) -> None:
    made = list[str]()
    with serving(["a"], made) as port:
        assert ask(port, method=method).status == 501
    assert made == []


def test_pages_of_other_sites_and_other_paths_get_nothing() -> None:
    made = list[str]()
    with serving(["a"], made) as port:
        assert ask(port, Host=f"evil.example:{port}").status == 403
        assert ask(port, "/version", Host=f"{HOST}.evil.example:{port}").status == 403
        assert ask(port, Host=f"localhost:{port}").status == 200
        for path in ("/report.html", "/../identity.json", "/trials/00000.json", "/?x"):
            assert ask(port, path).status == 404
        headers = ask(port).headers
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == (
            "DENY",
            "nosniff",
        )
        assert "Access-Control-Allow-Origin" not in headers
    assert made == ["a"]


def test_the_version_changes_with_trials_and_with_the_end_of_the_launch(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=4)
    storage = Storage(tmp_path)
    found = [version_of(storage)]
    assert version_of(storage) == found[0]
    last = (tmp_path / trial_file(3)).read_bytes()
    (tmp_path / trial_file(3)).unlink()
    found.append(version_of(storage))
    # a trial that is revived has another record of the same name
    (tmp_path / trial_file(3)).write_bytes(last)
    found.append(version_of(storage))
    with driver_lock(storage):
        found.append(version_of(storage))
    assert len(set(found)) == 4


def test_the_command_serves_to_this_machine_until_ctrl_c(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=4)
    before = {path.name for path in tmp_path.iterdir()}
    words = [*COMMAND, str(tmp_path), "--serve"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = re.fullmatch(rf"http://{re.escape(HOST)}:(\d+)/\n", process.stdout.readline())
        assert address is not None
        port = int(address[1])
        page = ask(port)
        assert page.status == 200
        version = json.loads(ask(port, "/version").body)["version"]
        assert f'"version":"{version}"' in page.body
        assert "connect-src 'self'" in page.body
        in_use = error_of("report", str(tmp_path), "--serve", "--port", str(port), code=FAILED)
        assert f"--port {port}" in in_use
        process.send_signal(signal.SIGINT)
        _, error = process.communicate()
    assert (process.returncode, error) == (0, "")
    assert {path.name for path in tmp_path.iterdir()} == before, "nothing is written"


def test_options_that_do_not_go_together(tmp_path: Path) -> None:
    write_sweep(tmp_path, trials=2)
    assert "--out" in error_of(
        "report", str(tmp_path), "--serve", "--out", "page.html", code=WRONG_USAGE
    )
    assert "--serve" in error_of("report", str(tmp_path), "--port", "5001", code=WRONG_USAGE)


REQUEST = "GET {} HTTP/1.1\r\nHost: 127.0.0.1:{}\r\n\r\n"


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a server has done with a connection."""
    event, end = threading.Event(), ReportServer.shutdown_request

    def note(server: ReportServer, request: socket.socket) -> None:
        end(server, request)
        event.set()

    monkeypatch.setattr(ReportServer, "shutdown_request", note)
    return event


@pytest.mark.parametrize("path", ["/", "/version"])
def test_a_load_that_the_browser_cancels_is_no_error(
    path: str, ended: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    asked, gone = threading.Event(), threading.Event()

    def version() -> str:
        asked.set()
        assert gone.wait(HANG_S)
        return "v" * 10_000_000 if path == "/version" else "v"

    with ReportServer(0, version, lambda _: "p" * 10_000_000) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        with socket.create_connection((HOST, server.server_port)) as reader:
            # closing resets
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            reader.sendall(REQUEST.format(path, server.server_port).encode())
            assert asked.wait(HANG_S)
        gone.set()
        assert ended.wait(HANG_S)
        server.shutdown()
        thread.join()
    assert capsys.readouterr().err == ""


def test_a_fault_of_the_server_is_shown(
    ended: threading.Event, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = ["a"]
    with serving(versions, []) as port:
        versions.clear()
        with socket.create_connection((HOST, port)) as reader:
            reader.sendall(REQUEST.format("/version", port).encode())
            assert ended.wait(HANG_S)
    assert "IndexError" in capsys.readouterr().err


def test_a_connection_without_a_request_is_closed(
    ended: threading.Event, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_server.REQUEST_TIMEOUT_S <= 60
    monkeypatch.setattr(report_server._Handler, "timeout", 0.01)
    with serving(["a"], []) as port, socket.create_connection((HOST, port)) as reader:
        with suppress(ConnectionError):  # on a busy machine it is closed before this is sent
            reader.sendall(b"GET / HTTP/1.1\r\n")
            assert ended.wait(HANG_S)
            assert reader.recv(1) == b""
        assert ended.wait(HANG_S)
        monkeypatch.undo()
        assert ask(port).status == 200, "others are answered"
    assert capsys.readouterr().err == ""
