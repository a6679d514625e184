"""Closes idle connections when a server runs short of them.

gRPC limits how many connections a server accepts, and closes idle ones after minutes. A client that
opens all of them without a call would block all other clients for minutes. Once three quarters are
in use, this closes connections without an authenticated call after two seconds, and idle
connections of a tenant that has more than a quarter.

gRPC offers no list of its connections, so they are found among the open files of the process.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from kernelfarm.service.logs.logger import get_logger

_FILES = Path("/proc/self/fd")
_CHECK_INTERVAL_S = 0.5
_UNAUTHENTICATED_IDLE_S = 2.0
_V4_IN_V6 = "::ffff:"

Peer = tuple[str, int]
"""Address and port."""


@dataclass(slots=True)
class _Caller:
    tenant: str
    calls: int = 0


class Connections:
    """The connections of one server, which accepts at most `most`."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._ports: frozenset[int] = frozenset()
        self._callers: dict[str, _Caller] = {}
        self._first_seen_s: dict[Peer, float] = {}

    def listen(self, addresses: Iterable[str]) -> None:
        """Sets the addresses of the listeners; connections over unix sockets are not checked."""
        found = (a.rpartition(":")[2] for a in addresses if not a.startswith("unix:"))
        self._ports = frozenset(int(port) for port in found if port.isdigit())

    def begin(self, peer: str, tenant: str) -> None:
        """Counts an authenticated call that begins on a connection."""
        caller = self._callers.get(peer)
        if caller is None or caller.tenant != tenant:
            caller = self._callers[peer] = _Caller(tenant)
        caller.calls += 1

    def end(self, peer: str) -> None:
        """Counts the end of the call."""
        caller = self._callers.get(peer)
        if caller is not None:
            caller.calls -= 1

    async def run(self) -> None:
        """Checks the connections periodically, until it is cancelled."""
        while _FILES.is_dir() and self._ports:
            await asyncio.sleep(_CHECK_INTERVAL_S)
            if self._is_near_limit():
                self.close_idle()
            else:
                self._first_seen_s.clear()

    def close_idle(self) -> int:
        """Closes surplus connections; returns how many.

        These are connections without an authenticated call, and idle ones of tenants with too many.
        """
        now_s, most_per_tenant = self._clock(), max(1, self._most // 4)
        callers = {_peer_of(peer): caller for peer, caller in self._callers.items()}
        idle = Counter(caller.tenant for caller in callers.values())
        seen: dict[Peer, float] = {}
        closed = 0
        for peer, connection in _inbound(self._ports):
            seen[peer] = first_s = self._first_seen_s.get(peer, now_s)
            caller = callers.get(peer)
            if caller is None:
                is_surplus = now_s - first_s >= _UNAUTHENTICATED_IDLE_S
            else:
                is_surplus = caller.calls <= 0 and idle[caller.tenant] > most_per_tenant
                idle[caller.tenant] -= is_surplus
            if is_surplus:
                with suppress(OSError):  # it was closed already
                    connection.shutdown(socket.SHUT_RDWR)
                closed += 1
        self._first_seen_s = seen
        self._callers = {
            name: caller
            for name, caller in self._callers.items()
            if caller.calls > 0 or _peer_of(name) in seen
        }
        if closed:
            get_logger().warning("connections_closed", reason="IDLE", closed=closed, of=len(seen))
        return closed

    def _is_near_limit(self) -> bool:
        files = len(os.listdir(_FILES))
        return files > self._most * 3 // 4 or len(self._callers) > 2 * self._most


def _inbound(ports: frozenset[int]) -> Iterator[tuple[Peer, socket.socket]]:
    """The accepted TCP connections; each is a duplicate that is closed before the next."""
    for name in os.listdir(_FILES):
        try:
            if not os.readlink(_FILES / name).startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(name)))
        except OSError:  # it was closed
            continue
        with duplicate:
            peer = _tcp_peer(duplicate, ports)
            if peer is not None:
                yield peer, duplicate


def _tcp_peer(connection: socket.socket, ports: frozenset[int]) -> Peer | None:
    if connection.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        if connection.getsockname()[1] not in ports:
            return None
        host, port = connection.getpeername()[:2]
    except OSError:  # it is a listener, or is closed
        return None
    return host.removeprefix(_V4_IN_V6), port


def _peer_of(peer: str) -> Peer:
    """The peer of gRPC's name: `ipv4:127.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return host.strip("[]").removeprefix(_V4_IN_V6), int(port) if port.isdigit() else 0
