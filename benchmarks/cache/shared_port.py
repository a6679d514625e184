"""Hits per second of one, two and four gateways on one port."""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.cache.calls import GrpcCall
from benchmarks.cache.hits import Row, Subject, answer_bytes, time_once
from tests.support.gateways import LOOKUP, Bench, lookup_request, running_gateways

GATEWAYS = (1, 2, 4)
CALLERS = 64
_CALLER_PROCESSES = 2
# Each gateway stores the program in memory at its first look-up.
_WARMING_CALLERS = 32


def time_shared_port(bench: Bench, key: bytes, rounds: int, seconds: float) -> list[str]:
    """A Markdown table."""
    lines = [
        "| gateways | hits/s | hits/s each | CPU us/hit | p50 us | p99 us |",
        "|---:|---:|---:|---:|---:|---:|",
    ]
    for gateways in GATEWAYS:
        with running_gateways(bench, gateways) as (address, pids):
            make = partial(GrpcCall, LOOKUP, lookup_request(key), answer_bytes(address, key))
            subject = Subject("gateways", address, make, pids)
            time_once(Row("warming", _WARMING_CALLERS), subject, seconds)
            row = Row("gateways", CALLERS)
            for _ in range(rounds):
                time_once(row, subject, seconds, _CALLER_PROCESSES)
        hits = statistics.median(row.calls_per_s)
        lines.append(
            f"| {gateways} | {hits:.0f} | {hits / gateways:.0f} |"
            f" {statistics.median(row.server_cpu_us):.0f} |"
            f" {statistics.median(row.p50_us):.0f} | {statistics.median(row.p99_us):.0f} |"
        )
    return lines
