"""Whether a farm's memory stays flat over many requests.

    python -m tests.soak [--requests 100000] [--samples 100] [--json FILE]

Hits, new programs, refused calls of every kind and watches that connect again, at full rate. The
cache's server and the gateway's memory get small limits, which the first half of the run fills:
what then grows is no cache. The median slope in the second half tells how much each part grows in
the whole run. It ends with 1 if one grows by more than 5 MB and 2 %, or by more than 5 open
files or threads, or if a call ends with a status that it should not have.
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
from tests.soak.samples import MIB, Growth


def table(growths: list[Growth]) -> Iterator[str]:
    """Markdown: what each part holds, and how it grows."""
    yield (
        "| part | PSS MB: first, half, last | RSS MB | grows by MB | open files | threads | flat |"
    )
    yield "|---|---:|---:|---:|---:|---:|---|"
    for growth in growths:
        sizes = (growth.first_pss_bytes, growth.middle_pss_bytes, growth.last_pss_bytes)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm is ended, too
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
