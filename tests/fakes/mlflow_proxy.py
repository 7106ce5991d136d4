"""An address at which an MLflow server comes and goes, or leaves requests unanswered."""

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


class Address:
    """An address of this machine that is kept while a server there comes and goes."""

    def __init__(self) -> None:
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # beside connections that are closing
        port = claim_port()
        self.socket.bind((HOST, port))  # the kernel would take back one that it had chosen
        self.url = f"http://{HOST}:{port}"

    def close(self) -> None:
        self.socket.close()


class Forwarding(http.server.BaseHTTPRequestHandler):
    """Forwards requests to a server, and drops the answers to some of those that create runs."""

    target, dropped, created = "", frozenset[int](), 0

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing."""

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)) or None
        kept = {key: value for key, value in self.headers.items() if key.lower() not in ("host", "content-length")}
        request = urllib.request.Request(self.target + self.path, body, kept, method=self.command)
        try:
            with urllib.request.urlopen(request, timeout=HANG_S) as answer:
                code, data, kind = answer.status, answer.read(), answer.headers.get("Content-Type", "")
        except urllib.error.HTTPError as error:
            code, data, kind = error.code, error.read(), error.headers.get("Content-Type", "")
        if self.path.endswith("/runs/create"):
            type(self).created += 1
            if self.created in self.dropped:
                self.close_connection = True
                return
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward


@contextmanager
def proxy(target: str, *dropped: int, at: Address | None = None) -> Iterator[str]:
    """The address of a proxy to `target` that drops the answers to the given creations of runs (counted from 1)."""
    if at is None:
        with closing(Address()) as address, proxy(target, *dropped, at=address) as url:
            yield url
        return
    handler = type("Handler", (Forwarding,), {"target": target, "dropped": frozenset(dropped), "created": 0})
    with http.server.ThreadingHTTPServer((HOST, 0), handler, bind_and_activate=False) as forwarding:
        forwarding.socket.close()
        forwarding.socket = at.socket.dup()
        forwarding.server_activate()
        threading.Thread(target=forwarding.serve_forever, daemon=True).start()
        yield at.url
        assert handler.created >= max(dropped, default=0)  # type: ignore[attr-defined]
        forwarding.shutdown()
        forwarding.socket.shutdown(socket.SHUT_RDWR)  # connections are refused, and the port stays taken
