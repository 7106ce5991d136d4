"""An address at which an MLflow server comes and goes, leaves requests unanswered, or fails in one
of five ways.
"""

from __future__ import annotations

import http.server
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager

from tests.fakes.ports import HOST, claim_port
from tests.fakes.waiting import HANG_S

PAGE = (
    b"<!DOCTYPE html><html><head><title>Sign in</title></head><body>\n<p>Please sign "
    b"in</p></body></html>"
)
# How a server fails: its status and body; None if it answers late (slow) or never (hang).
FAULTS: dict[str, tuple[int, bytes] | None] = {
    "503": (503, b""),
    "401": (401, b'{"error_code": "UNAUTHENTICATED", "message": "You are not authenticated."}'),
    "html": (200, PAGE),
    "hang": None,
    "slow": None,
}


class Address:
    """An address of this machine that is kept while a server there comes and goes."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        # beside connections that are closing
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = claim_port()
        self.socket.bind((HOST, port))  # the kernel would take back one that it had chosen
        self.url = f"http://{HOST}:{port}"

    def close(self) -> None:
        self.socket.close()


class Forwarding(http.server.BaseHTTPRequestHandler):
    """Forwards requests to a server, and drops the answers to some of those that create runs.

    fault: one of `FAULTS`, "" for none. healed: set when a late answer may be sent.
    """

    target, dropped, created, fault = "", frozenset[int](), 0, ""
    healed = threading.Event()

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        fault = self.fault
        if fault and (answer_now := FAULTS[fault]):
            self._answer(*answer_now, "text/html")
            return
        if fault:
            assert self.healed.wait(HANG_S)
            if fault == "hang":
                self.close_connection = True
                return
        kept = {
            key: value
            for key, value in self.headers.items()
            if key.lower() not in ("host", "content-length")
        }
        request = urllib.request.Request(self.target + self.path, body, kept, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                code, data, kind = (
                    answer.status,
                    answer.read(),
                    answer.headers.get("Content-Type", ""),
                )
        except urllib.error.HTTPError as error:
            code, data, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        if self.path.endswith("/runs/create"):
            type(self).created += 1
            if self.created in self.dropped:
                self.close_connection = True
                return
        self._answer(code, data, kind)

    def _answer(self, code: int, data: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward


@contextmanager
def proxy(target: str, *dropped: int, at: Address | None = None) -> Iterator[str]:
    """The address of a proxy to `target` that drops the answers to the given creations of runs
    (counted from 1).
    """
    if at is None:
        with closing(Address()) as address, proxy(target, *dropped, at=address) as url:
            yield url
        return
    handler = type(
        "Handler", (Forwarding,), {"target": target, "dropped": frozenset(dropped), "created": 0}
    )
    with http.server.ThreadingHTTPServer((HOST, 0), handler, bind_and_activate=False) as forwarding:
        forwarding.socket.close()
        forwarding.socket = at.socket.dup()
        forwarding.server_activate()
        threading.Thread(target=forwarding.serve_forever, daemon=True).start()
        yield at.url
        assert handler.created >= max(dropped, default=0)  # type: ignore[attr-defined]
        forwarding.shutdown()
        # connections are refused, and the port stays taken
        forwarding.socket.shutdown(socket.SHUT_RDWR)


class FailingServer:
    """A proxy to an MLflow server that can fail (see `FAULTS`) and heal again."""

    def __init__(self, address: str, handler: type[Forwarding]) -> None:
        self.address, self._handler = address, handler

    def fail(self, fault: str) -> None:
        self._handler.healed.clear()
        self._handler.fault = fault

    def heal(self) -> None:
        self._handler.fault = ""
        self._handler.healed.set()


@contextmanager
def failing_proxy(target: str) -> Iterator[FailingServer]:
    """A proxy to `target` that does not fail yet."""
    handler = type("Handler", (Forwarding,), {"target": target, "healed": threading.Event()})
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as forwarding:
        threading.Thread(target=forwarding.serve_forever, daemon=True).start()
        server = FailingServer(f"http://{HOST}:{forwarding.server_address[1]}", handler)
        try:
            yield server
        finally:
            server.heal()
            forwarding.shutdown()
