"""Another tenant's waiting times while one tenant attacks, beside those of an idle farm.

    python -m tests.attack [--seconds 60] [--idle-seconds 45] [--only NAME ...] [--json FILE]

Each attack meets a fresh farm: first the victim alone, then the victim and the attacker at once,
then the victim alone again until it has a new program. It ends with 1 if a limit is exceeded. The
attacker shares the machine's cores with farm and victim; the table tells the processor time that it
took itself, which is no fault of the farm's.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.attack.attacks import ATTACKS, Attack, attack_named
from tests.attack.victim import HIT_KINDS, KINDS, LIMIT_S, Victim, Waits
from tests.support.attacked_farm import Attacked, attacked_farm, kill_children

MOST_OF_HITS = 2.0
MOST_OF_NEW = 4.0
SERVICE_S = 30.0
MOST_RSS_BYTES = 8 << 30
_GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """One kind of call, without and with an attack; seconds."""

    kind: str
    idle_calls: int
    idle_p50_s: float
    idle_p99_s: float
    calls: int
    p50_s: float
    p99_s: float
    failures: dict[str, int]
    limit: float

    @property
    def ratio(self) -> float:
        """Of the 99th percentiles."""
        return self.p99_s / self.idle_p99_s

    @property
    def holds(self) -> bool:
        """True within the limit, with every call answered."""
        return self.ratio <= self.limit and not self.failures


@dataclass(frozen=True)
class Result:
    """One attack: the victim's rows, the attacker's calls by status, what the farm did."""

    attack: str
    fault: int
    rows: tuple[Row, ...]
    attacker_calls: dict[str, int]
    attacker_cpu_s: float
    rss_before_bytes: int
    rss_most_bytes: int
    rss_after_bytes: int
    service_s: float | None
    restarts: int
    load: float

    @property
    def holds(self) -> bool:
        """True if nothing of the victim's was hurt beyond the limits."""
        return self.service_s is not None and all(row.holds for row in self.rows)


@dataclass
class _Told:
    """What the attacker told at its end."""

    calls: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0


class _Memory:
    """Watches the farm's memory; a farm that takes too much is ended, to spare the machine."""

    def __init__(self, attacked: Attacked) -> None:
        self._attacked = attacked
        self._is_over = threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._watch)

    @contextmanager
    def watched(self) -> Iterator[_Memory]:
        """Watches for as long as the context lasts."""
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.5):
            self.most_bytes = max(self.most_bytes, self._attacked.rss_bytes())
            if self.most_bytes > MOST_RSS_BYTES:
                print(f"the farm takes {self.most_bytes / _GIB:.1f} GiB: ended", file=sys.stderr)
                kill_children(self._attacked.farm)
                return


def measure(attack: Attack, seconds: float, idle_seconds: float, folder: Path) -> Result:
    """One attack on a fresh farm."""
    vendors = "cpu,cuda"
    with attacked_farm(folder, vendors) as attacked:
        victim = Victim(attacked.farm.endpoint, attacked.victim)
        victim.prepare()
        # Watched as during the attack: what watches takes the victim's interpreter, too.
        with _Memory(attacked).watched():
            idle = victim.measure(idle_seconds)
        before = attacked.rss_bytes()
        load = os.getloadavg()[0]
        with (
            _Memory(attacked).watched() as memory,
            _attacking(attacked, attack, seconds) as reported,
        ):
            during = victim.measure(seconds)
        service_s = victim.serves_within(SERVICE_S)
        children = attacked.farm.status()["children"].values()
        return Result(
            attack=attack.name,
            fault=attack.fault,
            rows=tuple(_row(kind, idle[kind], during[kind]) for kind in KINDS),
            attacker_calls=reported.calls,
            attacker_cpu_s=reported.cpu_s,
            rss_before_bytes=before,
            rss_most_bytes=memory.most_bytes,
            rss_after_bytes=attacked.rss_bytes(),
            service_s=service_s,
            restarts=sum(child["restarts"] for child in children),
            load=load,
        )


@contextmanager
def _attacking(attacked: Attacked, attack: Attack, seconds: float) -> Iterator[_Told]:
    """Attacks from another process; what it told is there after the context."""
    reported = _Told()
    command = [sys.executable, "-m", "tests.attack.attacker"]
    process = subprocess.Popen(
        [*command, attacked.farm.endpoint, attack.name, str(seconds)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(attacked.attackers[attack.credential] + "\n")
        process.stdin.close()
        process.stdin = None
        yield reported
        answer = json.loads(process.communicate(timeout=seconds + attack.timeout_s)[0])
        reported.calls, reported.cpu_s = answer["calls"], answer["cpu_s"]
    finally:
        process.kill()
        process.wait()


def _row(kind: str, idle: Waits, during: Waits) -> Row:
    return Row(
        kind=kind,
        idle_calls=len(idle.seconds),
        idle_p50_s=idle.median(),
        idle_p99_s=idle.percentile(99),
        calls=len(during.seconds),
        p50_s=during.median(),
        p99_s=during.percentile(99),
        failures=dict(during.failures),
        limit=MOST_OF_HITS if kind in HIT_KINDS else MOST_OF_NEW,
    )


def table(results: list[Result]) -> Iterator[str]:
    """Markdown: the victim's waits, then what attacker and farm did."""
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
    memory = ", ".join(f"{size / _GIB:.2f}" for size in sizes)
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
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the farm is ended, too
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
