"""Measures one attack: a tenant's latencies on an idle farm, and while another tenant attacks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.attacks import Attack
from tests.attack.victim import HIT_KINDS, KINDS, Victim, Waits
from tests.support.attacked_farm import Attacked, attacked_farm
from tests.support.processes import kill_tree

MAX_HIT_RATIO = 2.0
MAX_NEW_RATIO = 4.0
SERVICE_S = 30.0
MAX_RSS_BYTES = 8 << 30
GIB = 1 << 30


@dataclass(frozen=True)
class Row:
    """Latencies of one kind of call, without and with an attack, in seconds."""

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
        """The ratio of the 99th percentiles."""
        return self.p99_s / self.idle_p99_s

    @property
    def holds(self) -> bool:
        """True if the ratio is within the limit and no call failed."""
        return self.ratio <= self.limit and not self.failures


@dataclass(frozen=True)
class Result:
    """One attack: the victim's rows, the attacker's calls by status, and the farm's load."""

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
        """True if all calls of the victim were within the limits."""
        return self.service_s is not None and all(row.holds for row in self.rows)


@dataclass
class _Attacker:
    """The result that the attacker printed at its end."""

    calls: dict[str, int] = field(default_factory=dict)
    cpu_s: float = 0.0


class _Memory:
    """Watches the farm's memory; kills a farm that takes too much, to protect the machine."""

    def __init__(self, attacked: Attacked) -> None:
        self._attacked = attacked
        self._is_over = threading.Event()
        self.most_bytes = 0
        self._thread = threading.Thread(target=self._watch)

    @contextmanager
    def watched(self) -> Iterator[_Memory]:
        """Watches within the context."""
        self._thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            self._thread.join()

    def _watch(self) -> None:
        while not self._is_over.wait(0.5):
            self.most_bytes = max(self.most_bytes, self._attacked.rss_bytes())
            if self.most_bytes > MAX_RSS_BYTES:
                print(f"the farm takes {self.most_bytes / GIB:.1f} GiB: killed", file=sys.stderr)
                kill_tree(self._attacked.farm.process.pid)
                return


def measure(attack: Attack, seconds: float, idle_seconds: float, folder: Path) -> Result:
    """Runs one attack on a new farm."""
    vendors = "cpu,cuda"
    with attacked_farm(folder, vendors) as attacked:
        victim = Victim(attacked.farm.endpoint, attacked.victim)
        victim.prepare()
        # Watched as during the attack: the watching thread shares the victim's interpreter.
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
            rows=tuple(
                row_of(
                    kind,
                    idle[kind],
                    during[kind],
                    MAX_HIT_RATIO if kind in HIT_KINDS else MAX_NEW_RATIO,
                )
                for kind in KINDS
            ),
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
def _attacking(attacked: Attacked, attack: Attack, seconds: float) -> Iterator[_Attacker]:
    """Attacks from another process; its result is set after the context."""
    reported = _Attacker()
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


def row_of(kind: str, idle: Waits, during: Waits, limit: float) -> Row:
    """The latencies of one kind of call, with a limit for the ratio of the 99th percentiles."""
    return Row(
        kind=kind,
        idle_calls=len(idle.seconds),
        idle_p50_s=idle.median(),
        idle_p99_s=idle.percentile(99),
        calls=len(during.seconds),
        p50_s=during.median(),
        p99_s=during.percentile(99),
        failures=dict(during.failures),
        limit=limit,
    )
