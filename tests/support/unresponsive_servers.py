"""Peers at a farm's address that do not serve: closed ports, and servers that stay silent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import grpc

from kernelfarm.v1 import cache_service_pb2

_SETTINGS = bytes(3) + b"\4" + bytes(5)
"""An empty SETTINGS frame, the first frame of an HTTP/2 server."""

_LISTEN = """
import socket, sys
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
listening.listen()
print("listening", flush=True)
listening.accept()
"""

PEERS = ("closed", "silent", "settings", "stopped", "nameless")


@contextmanager
def peer(kind: str, folder: Path) -> Iterator[str]:
    """The endpoint of a peer of a kind.

    closed      nothing listens there
    silent      accepts connections, and sends nothing
    settings    sends the first frame of HTTP/2, and responds to no call
    stopped     a process behind a unix socket, stopped by SIGSTOP
    nameless    a name that does not resolve
    """
    if kind == "nameless":
        yield "farm.invalid:50051"
    elif kind == "stopped":
        yield from _stopped(folder / "farm.sock")
    else:
        with socket.socket() as listening:
            listening.bind(("127.0.0.1", 0))
            if kind != "closed":
                listening.listen()
                begin = (lambda taken: taken.sendall(_SETTINGS)) if kind == "settings" else id
                threading.Thread(target=_take, args=(listening, begin), daemon=True).start()
            yield f"127.0.0.1:{listening.getsockname()[1]}"
            with suppress(OSError):
                listening.shutdown(socket.SHUT_RDWR)


def _take(listening: socket.socket, begin: Callable[[socket.socket], object]) -> None:
    with ExitStack() as open_sockets, suppress(OSError):
        while True:
            taken, _ = listening.accept()
            open_sockets.enter_context(taken)
            begin(taken)


def _stopped(path: Path) -> Iterator[str]:
    command = [sys.executable, "-c", _LISTEN, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "listening\n"
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield f"unix:{path}"
        finally:
            process.kill()


_INCARNATION = "0" * 32


class MuteFarm(grpc.GenericRpcHandler):
    """Accepts calls, records their methods in `calls`, and responds to none but the watch.

    With `is_live`, each watch receives its first message, after which a client takes the farm for
    available.
    """

    def __init__(self, *, is_live: bool) -> None:
        self.calls: list[str] = []
        self._is_live = is_live
        self._ends = threading.Event()

    @contextmanager
    def served(self) -> Iterator[str]:
        """The endpoint, while it serves."""
        pool = futures.ThreadPoolExecutor(16)
        server = grpc.server(pool, handlers=[self], options=[("grpc.so_reuseport", 0)])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            self._ends.set()
            server.stop(None).wait()
            pool.shutdown()

    def service(self, handler_call_details: Any) -> grpc.RpcMethodHandler:
        """A handler that does not respond."""
        method = handler_call_details.method.rpartition("/")[2]
        if method == "WatchInvalidations":
            return grpc.unary_stream_rpc_method_handler(self._watched)
        self.calls.append(method)
        return grpc.unary_stream_rpc_method_handler(self._unanswered)

    def _unanswered(self, request: bytes, context: Any) -> Iterator[bytes]:
        self._ends.wait()
        yield from ()

    def _watched(self, request: bytes, context: Any) -> Iterator[bytes]:
        if self._is_live:
            reported = cache_service_pb2.WatchInvalidationsResponse(
                resume_token=f"{_INCARNATION}:1", epoch=1, incarnation=_INCARNATION
            )
            yield reported.SerializeToString()
        self._ends.wait()
