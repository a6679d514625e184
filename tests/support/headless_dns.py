"""A name server that answers as Kubernetes does for headless Services: with the ready replicas."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_HEADER_BYTES = 12
_RESPONSE_FLAGS = 0x8580
"""A response, authoritative, recursion desired and available, no error."""
_TYPE_A = 1
_CLASS_IN = 1
_TTL_S = 0
_NAME_OF_QUESTION = 0xC000 | _HEADER_BYTES
_DATAGRAM_BYTES = 4096


class HeadlessDns:
    """Names with the IPv4 addresses of their replicas; `target` is how gRPC resolves a name."""

    def __init__(self, listening: socket.socket) -> None:
        self._socket = listening
        self._port = int(listening.getsockname()[1])
        self._addresses: dict[str, list[str]] = {}

    def target(self, name: str, port: int) -> str:
        """The target of a gRPC channel to all replicas of a name."""
        return f"dns://127.0.0.1:{self._port}/{name}:{port}"

    def add(self, name: str, address: str) -> None:
        """Adds a replica that is ready."""
        self._addresses[name] = [*self._addresses.get(name, []), address]

    def remove(self, name: str, address: str) -> None:
        """Removes a replica that ends."""
        self._addresses[name] = [known for known in self._addresses[name] if known != address]

    def answer(self, query: bytes) -> bytes:
        """The response to a query with one question; without addresses for other types than A."""
        name, end = _name(query)
        kind, _ = struct.unpack_from(">HH", query, end)
        found = self._addresses.get(name, []) if kind == _TYPE_A else []
        header = query[:2] + struct.pack(">HHHHH", _RESPONSE_FLAGS, 1, len(found), 0, 0)
        answers = (
            struct.pack(">HHHIH", _NAME_OF_QUESTION, _TYPE_A, _CLASS_IN, _TTL_S, 4)
            + socket.inet_aton(address)
            for address in found
        )
        return b"".join((header, query[_HEADER_BYTES : end + 4], *answers))

    def serve(self) -> None:
        """Answers until the socket is shut down."""
        while True:
            query, sender = self._socket.recvfrom(_DATAGRAM_BYTES)
            if not query:
                return
            self._socket.sendto(self.answer(query), sender)


@contextmanager
def headless_dns() -> Iterator[HeadlessDns]:
    """A name server on loopback, without names."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as listening:
        listening.bind(("127.0.0.1", 0))
        server = HeadlessDns(listening)
        thread = threading.Thread(target=server.serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ending:
                ending.sendto(b"", listening.getsockname())
            thread.join()


def _name(query: bytes) -> tuple[str, int]:
    """The name of the question, and where its type begins."""
    labels, at = [], _HEADER_BYTES
    while size := query[at]:
        labels.append(query[at + 1 : at + 1 + size].decode())
        at += 1 + size
    return ".".join(labels).lower(), at + 1
