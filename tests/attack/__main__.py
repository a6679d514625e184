"""Latencies of one tenant while another tenant attacks, compared with those of an idle farm.

    python -m tests.attack [--seconds 60] [--idle-seconds 45] [--only NAME ...] [--json FILE]

Each attack has a new farm: first the victim calls alone, then victim and attacker at once, then the
victim alone again until it receives a new program. The exit status is 1 if a limit is exceeded. The
attacker shares the machine's cores with farm and victim; the table shows its own processor time,
for which the farm is not responsible.
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

from tests.attack.attacks import ATTACKS, attack_named
from tests.attack.measure import GIB, SERVICE_S, Result, Row, measure
from tests.attack.victim import LIMIT_S


def table(results: list[Result]) -> Iterator[str]:
    """Markdown tables: the victim's latencies, then calls of the attacker and load of the farm."""
    yield (
        "| attack (fault) | call | idle p50, p99 ms (calls) | attacked p50, p99 ms (calls) |"
        " p99 ratio | limit | failed | holds |"
    )
    yield "|---|---|---:|---:|---:|---:|---|---|"
    for result in results:
        for row in result.rows:
            yield _line(result, row)
    yield ""
    yield (
        "| attack | attacker's calls | attacker's CPU s | farm GiB before, most, after |"
        " s to service | restarts | load before |"
    )
    yield "|---|---|---:|---:|---:|---:|---:|"
    for result in results:
        yield _summary(result)


def _line(result: Result, row: Row) -> str:
    failures = ", ".join(f"{count} {name}" for name, count in row.failures.items()) or "none"
    return (
        f"| {result.attack} ({result.fault}) | {row.kind} |"
        f" {1e3 * row.idle_p50_s:.1f}, {1e3 * row.idle_p99_s:.1f} ({row.idle_calls}) |"
        f" {1e3 * row.p50_s:.1f}, {1e3 * row.p99_s:.1f} ({row.calls}) |"
        f" {row.ratio:.1f} | {row.limit:.0f} | {failures} | {'yes' if row.holds else 'NO'} |"
    )


def _summary(result: Result) -> str:
    calls = ", ".join(f"{count} {name}" for name, count in result.attacker_calls.items())
    sizes = (result.rss_before_bytes, result.rss_most_bytes, result.rss_after_bytes)
    memory = ", ".join(f"{size / GIB:.2f}" for size in sizes)
    service = f"{result.service_s:.1f}" if result.service_s is not None else f"> {SERVICE_S:.0f}"
    return (
        f"| {result.attack} | {calls} | {result.attacker_cpu_s:.1f} | {memory} | {service} |"
        f" {result.restarts} | {result.load:.1f} |"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--idle-seconds", type=float, default=45.0)
    parser.add_argument("--only", nargs="+", help="names of attacks")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm ends too
    chosen = [attack_named(name) for name in options.only] if options.only else ATTACKS
    results: list[Result] = []
    for attack in chosen:
        with tempfile.TemporaryDirectory(prefix="kernelfarm-attack-") as folder:
            results.append(measure(attack, options.seconds, options.idle_seconds, Path(folder)))
        print("\n".join(_line(results[-1], row) for row in results[-1].rows), flush=True)
        print(_summary(results[-1]), flush=True)
        if options.json:
            reported = json.dumps([asdict(result) for result in results], indent=2)
            options.json.write_text(reported)
    print("\n".join(table(results)))
    print(f"A call without an answer within {LIMIT_S:.0f} s counts as {LIMIT_S:.0f} s.")
    return 0 if all(result.holds for result in results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
