"""Chooses the fastest configuration of an autotuned kernel by measuring launches on the device.

The first launch for a key measures, as Triton's own autotuner does: some launches to warm up, then
the median of several. A configuration that is much slower than another one is dropped after its
first launches, and measuring ends when its time is over. A key consists of the kernels of all
configurations, the device, and the values of the arguments that the user named. Winners are kept
for the life of the process; `fleet_choice` shares them among processes.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from kernelfarm.client import counters
from kernelfarm.client.loaders.contract import LaunchTimer
from kernelfarm.errors import UnavailableError

_log = logging.getLogger("kernelfarm.client")

_WARM_UPS = 3
_MEASURED_MS = 20.0
_FEWEST, _MOST = 5, 50
"""Measured launches of a configuration: as many as fill `_MEASURED_MS`, within these limits."""
_MUCH_SLOWER = 4.0
"""A configuration that takes so many times as long as the best so far is not measured further."""
_MAX_WINNERS = 4096

Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Measurement:
    """The fastest configuration, and the median times of all; 0 for one that was not measured."""

    winner: int
    times_ms: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TimeLimit:
    """How long measuring all configurations of a kernel may take in all, by a clock in seconds.

    A launch that runs is not interrupted, so the last one may exceed the limit. With several
    `rounds`, each configuration is measured so often, and its least median counts: other work of
    the device disturbs one round, and then another configuration.
    """

    limit_s: float
    clock: Callable[[], float] = time.monotonic
    rounds: int = 1


class Winners:
    """The chosen configurations by key, the least recently added dropped first; thread-safe."""

    def __init__(self) -> None:
        self._by_key: dict[Hashable, int] = {}
        self._lock = threading.Lock()
        os.register_at_fork(after_in_child=self._renew_lock)

    def find_or_measure(self, key: Hashable, measure: Callable[[], int]) -> int:
        """The winner of a key; one thread at a time measures, so that none disturbs another."""
        known = self._by_key.get(key)
        if known is not None:
            return known
        with self._lock:
            if key not in self._by_key:
                winner = measure()
                while len(self._by_key) >= _MAX_WINNERS:
                    del self._by_key[next(iter(self._by_key))]
                self._by_key[key] = winner
            return self._by_key[key]

    def find(self, key: Hashable) -> int | None:
        """The winner of a key that was measured."""
        return self._by_key.get(key)

    def clear(self) -> None:
        """Drops every winner."""
        with self._lock:
            self._by_key.clear()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()  # a thread of the parent may have held it at the fork


WINNERS = Winners()
"""The winners of this process."""


def fastest(
    launches: Sequence[Run],
    prepare: Run,
    timer: LaunchTimer,
    name: str,
    limit: TimeLimit,
) -> Measurement:
    """The launch whose median time is the least, the first one of equal ones, and all times.

    `prepare` runs before each launch and is not measured: it gives tensors their content back. A
    launch that the device refuses is left out, and so is one that is much slower than the best so
    far. When the time is over, the best so far wins, as soon as there is one.

    Raises:
        UnavailableError: the device refuses every launch.
    """
    ends_s = limit.clock() + limit.limit_s
    found = _Times(len(launches))
    for number in _order(len(launches), limit.rounds):
        if math.isfinite(found.best_ms) and limit.clock() >= ends_s:
            if found.measured < len(launches):
                _say_out_of_time(name, found.measured, len(launches), limit.limit_s)
            break
        if number in found.errors:
            continue
        bounds = _Bounds(found.best_ms, ends_s - limit.clock(), _MOST // limit.rounds)
        try:
            found.add(number, _median_ms(launches[number], prepare, timer, bounds))
        except UnavailableError as error:
            found.errors[number] = error
    if not math.isfinite(found.best_ms):
        raise found.errors[0]
    counters.count("tuning.measured")
    shown = ", ".join(f"{time_ms:.4f}" if time_ms else "none" for time_ms in found.times_ms)
    winner = found.times_ms.index(found.best_ms)
    _log.info("kernelfarm: %s: configuration %d is the fastest (ms: %s)", name, winner, shown)
    return Measurement(winner, tuple(found.times_ms))


class _Times:
    """The least times so far, 0 for a launch that was not measured, and the device's refusals."""

    def __init__(self, count: int) -> None:
        self.times_ms = [0.0] * count
        self.best_ms = math.inf
        self.measured = 0
        self.errors: dict[int, UnavailableError] = {}

    def add(self, number: int, time_ms: float) -> None:
        self.measured += 1
        self.times_ms[number] = min(time_ms, self.times_ms[number] or math.inf)
        self.best_ms = min(self.best_ms, time_ms)


def _order(count: int, rounds: int) -> Iterator[int]:
    """The numbers of launches, in turn from the first and from the last one."""
    for turn in range(rounds):
        yield from range(count) if turn % 2 == 0 else reversed(range(count))


@dataclass(frozen=True, slots=True)
class _Bounds:
    """The best time so far, the time that is left, and how many launches are measured at most."""

    best_ms: float
    left_s: float
    most: int


def _median_ms(launch: Run, prepare: Run, timer: LaunchTimer, bounds: _Bounds) -> float:
    """The median time of a launch; its first time, if that is much more than the best so far."""
    # The least of two: the first launch of a kernel may load it.
    first_ms = min(timer.times_ms(launch, prepare, 2))
    if first_ms > _MUCH_SLOWER * bounds.best_ms:
        counters.count("tuning.dropped")
        return first_ms
    least_ms = min(first_ms, *timer.times_ms(launch, prepare, _WARM_UPS - 2))
    fitting = int(_MEASURED_MS / least_ms) if least_ms > 0 else bounds.most
    count = min(max(fitting, _FEWEST), bounds.most)
    if least_ms > 0:
        count = min(count, max(1, int(1e3 * bounds.left_s / least_ms) - _WARM_UPS))
    return statistics.median(timer.times_ms(launch, prepare, count))


def _say_out_of_time(name: str, measured: int, count: int, limit_s: float) -> None:
    counters.count("tuning.out_of_time")
    _log.info(
        "kernelfarm: %s: %d of %d configurations were measured in %g s; the others are left out",
        name,
        measured,
        count,
        limit_s,
    )


class NotMeasured:
    """Says once for each kernel and reason that the first configuration is launched unmeasured."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, kind: str, text: str, name: str) -> None:
        """Counts the launch, and logs its reason."""
        counters.count(f"tuning.not_measured.{kind}")
        if kind not in self._said:
            self._said.add(kind)
            _log.info("kernelfarm: %s: the first configuration is launched: %s", name, text)
