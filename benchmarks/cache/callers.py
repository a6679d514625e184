"""Many callers in one process, each with a connection of its own and one call at a time."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Union

from benchmarks.cache.calls import GrpcCall, RedisGet

Call = Union[GrpcCall, RedisGet]
_RECEIVE_BYTES = 1 << 20
_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Load:
    """Calls to repeat: address, number of callers, duration; `make` creates a caller's call."""

    address: str
    make: Callable[[], Call]
    callers: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Measured:
    """Seconds of every call, of the whole run, and of the callers' processor time."""

    latencies_s: list[float]
    elapsed_s: float
    callers_cpu_s: float


def measure(load: Load, processes: int = 1) -> Measured:
    """Runs the callers in some processes; each caller has one call at a time.

    Raises:
        RuntimeError: a call failed.
    """
    shares = [len(range(number, load.callers, processes)) for number in range(processes)]
    shares = [share for share in shares if share]
    if len(shares) == 1:
        return _run(load, shares[0])
    with multiprocessing.get_context("fork").Pool(len(shares)) as pool:
        parts = pool.starmap(_run, [(load, share) for share in shares])
    return Measured(
        [latency for part in parts for latency in part.latencies_s],
        max(part.elapsed_s for part in parts),
        sum(part.callers_cpu_s for part in parts),
    )


def _run(load: Load, callers: int) -> Measured:
    """Runs the callers of one process by one selector."""
    latencies: list[float] = []
    with selectors.DefaultSelector() as selector:
        connections = [_Connection(load) for _ in range(callers)]
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        cpu_s = time.process_time()
        began_s = time.perf_counter()
        ends_s = began_s + load.seconds
        for connection in connections:
            connection.send()
        waiting = callers
        while waiting:
            ready = selector.select(_TIMEOUT_S)
            if not ready:
                raise RuntimeError(f"no answer from {load.address} in {_TIMEOUT_S:.0f} s")
            for key, _ in ready:
                connection = key.data
                latency_s = connection.receive()
                if latency_s is None:
                    continue
                latencies.append(latency_s)
                if time.perf_counter() < ends_s:
                    connection.send()
                else:
                    waiting -= 1
        measured = Measured(latencies, time.perf_counter() - began_s, time.process_time() - cpu_s)
        for connection in connections:
            connection.socket.close()
    return measured


class _Connection:
    """The connection of one caller."""

    def __init__(self, load: Load) -> None:
        self._call = load.make()
        self.socket = connected(load.address)
        self._sent_s = 0.0
        self.socket.sendall(self._call.preface())

    def send(self) -> None:
        """Sends the next call."""
        request = self._call.next_request()
        self._sent_s = time.perf_counter()
        self.socket.sendall(request)

    def receive(self) -> float | None:
        """Receives bytes; returns the call's seconds once its response is complete."""
        data = self.socket.recv(_RECEIVE_BYTES)
        if not data:
            raise RuntimeError(f"process {os.getpid()}: the server closed the connection")
        is_done = self._call.take(data)
        latency_s = time.perf_counter() - self._sent_s
        if replies := self._call.replies():
            self.socket.sendall(replies)
        return latency_s if is_done else None


def connected(address: str) -> socket.socket:
    """A connection to `HOST:PORT` or `unix:PATH`, with TCP_NODELAY."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection
