"""The speed of the cache by real gateways, compared with bare gRPC and bare Redis servers.

    python -m benchmarks.cache [--rounds 9] [--seconds 0.4] [--entries 20000] [--markdown FILE]
                               [--tables hits ports graphs invalidation]

All servers of a table run at once and are called round robin, so that other load affects them
alike. Callers and servers share the machine's cores: ratios mean more than times. The exit status
is 1 if a hit misses its bar for any number of callers.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

from benchmarks.cache.graphs import time_graphs
from benchmarks.cache.hits import ECHO, MEMORY, STORE, Row, table, time_hits
from benchmarks.cache.invalidation import time_invalidation
from benchmarks.cache.shared_port import time_shared_port
from benchmarks.machine import machine
from tests.support.gateways import Bench, publish, running_store

CONTENT_BYTES = (4 * 1024, 64 * 1024)
BARS = {MEMORY: 2.0, STORE: 3.0}
"""Largest p50 as a multiple of the echo's p50, for every number of callers."""
TABLES = ("hits", "ports", "graphs", "invalidation")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--entries", type=int, default=20_000)
    parser.add_argument("--markdown", type=Path, help="writes the tables there too")
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=TABLES)
    options = parser.parse_args()
    lines = [f"Machine: {machine()}.", ""]
    is_met = True
    with running_store() as bench:
        keys = {size: asyncio.run(publish(bench, 1, size))[0] for size in CONTENT_BYTES}
        if "hits" in options.tables:
            for content_bytes, key in keys.items():
                rows = time_hits(bench, key, options.rounds, options.seconds)
                lines += [f"## Hits of {content_bytes // 1024} KiB", "", *table(rows), ""]
                is_met &= all(is_within_bars(rows))
        for name, reported in others(bench, keys[CONTENT_BYTES[0]], options):
            lines += [f"## {name}", "", *reported, ""]
    lines += [f"Load average at the end: {os.getloadavg()[0]:.1f}."]
    text = "\n".join(lines)
    print(text)
    if options.markdown:
        options.markdown.write_text(text + "\n")
    return 0 if is_met else 1


def others(
    bench: Bench, key: bytes, options: argparse.Namespace
) -> Iterator[tuple[str, list[str]]]:
    """The other requested tables, by name."""
    if "ports" in options.tables:
        shared = time_shared_port(bench, key, options.rounds, options.seconds)
        yield "Gateways on one port", shared
    if "graphs" in options.tables:
        graphs = asyncio.run(time_graphs(bench, options.rounds))
        yield "Hits of clients that send their graph", graphs
    if "invalidation" in options.tables:
        yield "Invalidation", asyncio.run(time_invalidation(bench, options.entries))


def is_within_bars(rows: list[Row]) -> Iterator[bool]:
    """For each subject with a bar and each number of callers, True if the p50 meets the bar."""
    echoes = {row.callers: row for row in rows if row.subject == ECHO}
    for row in rows:
        if row.subject in BARS:
            yield row.ratio_to(echoes[row.callers]) <= BARS[row.subject]


if __name__ == "__main__":
    raise SystemExit(main())
