"""Servers on the loopback that are not what a client expects: silent, of another protocol, or a
proxy that refuses.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import grpc
from ray.core.generated import gcs_service_pb2

from orchestrator.cluster.ray_internals import ALIVE_METHOD

HOST = "127.0.0.2"  # Ray takes 127.0.0.1 for the machine's own address
HTTP = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
REDIS = b"-ERR unknown command\r\n"


class OddServer:
    """Sends `answer` to whoever connects and says something; nothing if it is empty. requests: what
    was said.
    """

    def __init__(self, answer: bytes) -> None:
        self._answer, self._open = answer, list[socket.socket]()
        self._socket = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._socket.getsockname()[1]}"
        self.requests: list[bytes] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._socket.accept()
                self._open.append(client)
                threading.Thread(target=self._reply, args=(client,), daemon=True).start()

    def _reply(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if said := client.recv(65536):
                self.requests.append(said)
                if self._answer:
                    client.sendall(self._answer)
                    client.close()

    def close(self) -> None:
        for opened in (self._socket, *self._open):
            opened.close()


@contextmanager
def odd_server(answer: bytes = b"") -> Iterator[OddServer]:
    server = OddServer(answer)
    try:
        yield server
    finally:
        server.close()


@contextmanager
def fake_gcs(version: str, token: str = "", *, alive: bool = False) -> Iterator[str]:
    """The address of a server that answers as the GCS of a cluster with this version of Ray.

    token: that calls need. alive: whether every node that is asked for belongs to it.
    """

    def check_alive(request: object, context: grpc.ServicerContext) -> object:
        given = dict(context.invocation_metadata()).get("authorization", "")
        if token and given != f"Bearer {token}":
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "no valid token")
        nodes = gcs_service_pb2.CheckAliveRequest.FromString(request).node_ids  # type: ignore[attr-defined]
        reply = gcs_service_pb2.CheckAliveReply(  # type: ignore[attr-defined]
            ray_version=version, raylet_alive=[alive] * len(nodes)
        )
        return reply.SerializeToString()

    service, _, method = ALIVE_METHOD[1:].partition("/")
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {method: grpc.unary_unary_rpc_method_handler(check_alive)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield f"{HOST}:{port}"
    finally:
        server.stop(0)
