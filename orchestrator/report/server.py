"""The report of a sweep as a page that a browser of this machine loads and that follows the
sweep.
"""

from __future__ import annotations

import hashlib
import json
import sys
import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from orchestrator.errors import explain
from orchestrator.store import files, launches
from workers.data.shards import TIMINGS
from workers.data.storage import Storage

HOST = "127.0.0.1"
REQUEST_TIMEOUT_S = 30.0  # for each read from a reader and each write to it


def version_of(storage: Storage) -> str:
    """What the page of a sweep is of: changes with its trials, its timing sessions and the end of
    its launch.
    """
    state = (
        launches.find_launch(storage).is_running,
        [_files(storage, folder) for folder in (files.TRIALS, TIMINGS)],
    )
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def _files(storage: Storage, folder: str) -> dict[str, float]:
    """The files of a folder and when each was written."""
    path = storage.path(folder)
    if path is None:
        return storage.modified(folder)
    return {name: (path / name).lstat().st_mtime_ns for name in storage.names(folder)}


class ReportServer(ThreadingHTTPServer):
    """Serves the page at / and its version at /version, to this machine only and by GET only.

    make: the page of a version. It is called when a reader asks for a page and the version is
    another.
    """

    daemon_threads = True

    def __init__(self, port: int, version: Callable[[], str], make: Callable[[str], str]) -> None:
        super().__init__((HOST, port), _Handler)
        self._version = version
        self._make = make
        self._lock = threading.Lock()
        self._page: tuple[str, bytes] = ("", b"")

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: object, client_address: object) -> None:
        """Nothing for a reader who has gone or does not go on: a browser cancels loads."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]

    def version(self) -> str:
        return self._version()

    def page(self) -> tuple[str, bytes]:
        """The version and the page of it. One reader at a time has it made."""
        with self._lock:
            if (version := self._version()) != self._page[0]:
                self._page = version, self._make(version).encode()
            return self._page


class _Handler(BaseHTTPRequestHandler):
    server: ReportServer
    timeout = REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        hosts = {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in hosts:  # a page of another site whose name leads here
            return self.send_error(HTTPStatus.FORBIDDEN)
        try:
            if self.path == "/version":
                body = json.dumps({"version": self.server.version()}).encode()
                return self._answer(HTTPStatus.OK, body, "application/json")
            if self.path != "/":
                return self.send_error(HTTPStatus.NOT_FOUND)
            version, page = self.server.page()
        except (ValueError, OSError) as error:  # a file that is damaged, or a storage that is away
            return self._answer(
                HTTPStatus.INTERNAL_SERVER_ERROR, explain(error).encode(), "text/plain"
            )
        tag = f'"{version}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, b"", "text/html", tag)
        return self._answer(HTTPStatus.OK, page, "text/html", tag)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str, tag: str = "") -> None:
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "ETag": tag,
            "Cache-Control": "no-cache",
            "X-Content-Type-Options": "nosniff",
            "X-Frame-Options": "DENY",
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the terminal has the address and the problems."""
