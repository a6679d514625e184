"""Hits compared with a bare gRPC echo and a bare Redis GET, called round robin."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from benchmarks.cache.callers import Call, Load, measure
from benchmarks.cache.calls import GrpcCall, RedisGet
from benchmarks.cache.echo import METHOD
from kernelfarm.cache.connection import connect
from tests.support.gateways import (
    LOOKUP,
    Bench,
    cpu_seconds,
    listeners,
    looked_up,
    lookup_request,
    running_gateways,
)
from tests.support.ports import reserved_port

ECHO, MEMORY, STORE, GET = "echo", "hit in memory", "hit in Redis", "Redis GET"
CALLERS = (1, 16, 64)


@dataclass(frozen=True, slots=True)
class Subject:
    """A called server: its address, the call, and its processes."""

    name: str
    address: str
    make: Callable[[], Call]
    pids: tuple[int, ...]


@dataclass(slots=True)
class Row:
    """The results of a subject with `callers` callers, one entry for each round; times in us."""

    subject: str
    callers: int
    p50_us: list[float] = field(default_factory=list)
    p99_us: list[float] = field(default_factory=list)
    calls_per_s: list[float] = field(default_factory=list)
    server_cpu_us: list[float] = field(default_factory=list)
    caller_cpu_us: list[float] = field(default_factory=list)

    def ratio_to(self, other: Row) -> float:
        """The p50 as a multiple of the other's, the median over rounds."""
        return statistics.median(
            mine / theirs for mine, theirs in zip(self.p50_us, other.p50_us, strict=True)
        )


def time_hits(bench: Bench, key: bytes, rounds: int, seconds: float) -> list[Row]:
    """Rows for every subject and number of callers."""
    with subjects(bench, key) as called:
        rows = [Row(subject.name, callers) for callers in CALLERS for subject in called]
        for _ in range(rounds):
            for row, subject in zip(rows, called * len(CALLERS), strict=True):
                time_once(row, subject, seconds)
    return rows


@contextlib.contextmanager
def subjects(bench: Bench, key: bytes) -> Iterator[list[Subject]]:
    """Echo, two gateways (one without memory) and the store, with responses of equal size."""
    with (
        running_gateways(bench) as (warm, warm_pids),
        running_gateways(bench, gateway_cache_bytes="0") as (bare, bare_pids),
    ):
        sizes = {address: answer_bytes(address, key) for address in (warm, bare)}
        (size_bytes,) = set(sizes.values())
        with running_echo(size_bytes) as (echo, echo_pids), connect(bench.store.url) as client:
            client.set("beside", bytes(size_bytes))
            request = lookup_request(key)
            look_up = partial(GrpcCall, LOOKUP, request, size_bytes)
            get_address = bench.store.url.replace("unix://", "unix:")
            yield [
                Subject(ECHO, echo, partial(GrpcCall, METHOD, request, size_bytes), echo_pids),
                Subject(MEMORY, warm, look_up, warm_pids),
                Subject(STORE, bare, look_up, bare_pids),
                Subject(
                    GET,
                    get_address,
                    partial(RedisGet, "beside", size_bytes),
                    (bench.store.process.pid,),
                ),
            ]


def time_once(row: Row, subject: Subject, seconds: float, processes: int = 1) -> None:
    """Adds one round to a row."""
    load = Load(subject.address, subject.make, row.callers, seconds)
    cpu_s = cpu_seconds(subject.pids)
    measured = measure(load, processes)
    calls = len(measured.latencies_s)
    latencies = sorted(measured.latencies_s)
    row.p50_us.append(1e6 * latencies[calls // 2])
    row.p99_us.append(1e6 * latencies[calls * 99 // 100])
    row.calls_per_s.append(calls / measured.elapsed_s)
    row.server_cpu_us.append(1e6 * (cpu_seconds(subject.pids) - cpu_s) / calls)
    row.caller_cpu_us.append(1e6 * measured.callers_cpu_s / calls)


def answer_bytes(address: str, key: bytes) -> int:
    """The size of a hit, from memory if the gateway has any."""
    answers = [looked_up(address, key) for _ in range(2)]
    if answers[1] is None:
        raise RuntimeError("a published program was not found")
    return answers[1].ByteSize()


@contextlib.contextmanager
def running_echo(size_bytes: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A bare server; its address and process."""
    with reserved_port() as port:
        address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "benchmarks.cache.echo", address, str(size_bytes)]
        process = subprocess.Popen(command)
        try:
            while not listeners(address):
                if process.poll() is not None:
                    raise RuntimeError("the echo server did not start")
                time.sleep(0.02)
            yield address, (process.pid,)
        finally:
            process.kill()
            process.wait()


def table(rows: Sequence[Row]) -> list[str]:
    """A Markdown table."""
    lines = [
        "| callers | called | p50 us | p99 us | p50, times echo's | calls/s |"
        " server's CPU us/call | callers' CPU us/call |",
        "|---:|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        echo = next(r for r in rows if r.subject == ECHO and r.callers == row.callers)
        figures = (row.p50_us, row.p99_us, row.calls_per_s, row.server_cpu_us, row.caller_cpu_us)
        p50, p99, rate, server, caller = (statistics.median(figure) for figure in figures)
        lines.append(
            f"| {row.callers} | {row.subject} | {p50:.0f} | {p99:.0f} | {row.ratio_to(echo):.2f} |"
            f" {rate:.0f} | {server:.0f} | {caller:.0f} |"
        )
    return lines
