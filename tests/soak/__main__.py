"""Checks that a farm's memory stays flat over many requests.

    python -m tests.soak [--requests 100000] [--samples 100] [--json FILE]

The load is hits, new programs, refused calls of every kind and watches that reconnect, at full
rate. The cache's server and the gateway's memory have small limits, which the first half of the run
fills: later growth is not that of a cache. The growth of each process tree over the whole run is
estimated by the median slope in the second half. The exit status is 1 if one grows by more than 5
MB and 2 %, or by more than 5 open files or threads, or if a call ends with an unexpected status.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from tests.soak.run import soak, unexpected_statuses
from tests.support.memory_samples import MIB, Growth


def table(growths: list[Growth]) -> Iterator[str]:
    """A Markdown table: the resources of each process tree, and their growth."""
    yield (
        "| part | USS MB: first, half, last | RSS MB | grows by MB | open files | threads | flat |"
    )
    yield "|---|---:|---:|---:|---:|---:|---|"
    for growth in growths:
        sizes = (growth.first_uss_bytes, growth.middle_uss_bytes, growth.last_uss_bytes)
        yield (
            f"| {growth.part} | {', '.join(f'{size / MIB:.1f}' for size in sizes)} |"
            f" {growth.last_rss_bytes / MIB:.1f} | {growth.grown_bytes / MIB:+.2f} |"
            f" {growth.grown_files:+.1f} | {growth.grown_threads:+.1f} |"
            f" {'yes' if growth.is_flat else 'NO'} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--samples", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm ends too
    with tempfile.TemporaryDirectory(prefix="kernelfarm-soak-") as folder:
        growths, statuses = soak(options.requests, options.samples, Path(folder))
    print("\n".join(table(growths)))
    print(f"calls: {statuses}")
    unexpected = unexpected_statuses(statuses)
    if unexpected:
        print(f"unexpected: {', '.join(unexpected)}")
    if options.json:
        reported = {"growth": [asdict(growth) for growth in growths], "calls": statuses}
        options.json.write_text(json.dumps(reported, indent=2))
    return 0 if not unexpected and all(growth.is_flat for growth in growths) else 1


if __name__ == "__main__":
    raise SystemExit(main())
