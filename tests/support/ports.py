"""Ports of loopback for servers that have to be given one."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """A port that this process has bound, so that the system gives it to no other process.

    Servers that set SO_REUSEADDR or SO_REUSEPORT, as Redis and gRPC do, can still listen on it, one
    after another. While none does, connections are refused.
    """
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield int(held.getsockname()[1])
