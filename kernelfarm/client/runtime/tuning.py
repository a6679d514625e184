"""Chooses the fastest configuration of an autotuned kernel by measuring launches on the device.

The first launch for a key measures, as Triton's own autotuner does: some launches to warm up, then
the median of several. A key consists of the kernels of all configurations, the device, and the
values of the arguments that the user named. Winners are kept for the life of the process.
"""

from __future__ import annotations

import logging
import math
import os
import statistics
import threading
from collections.abc import Callable, Hashable, Sequence

from kernelfarm.client import counters
from kernelfarm.client.loaders.contract import LaunchTimer
from kernelfarm.errors import UnavailableError

_log = logging.getLogger("kernelfarm.client")

_WARM_UPS = 3
_MEASURED_MS = 20.0
_FEWEST, _MOST = 5, 50
"""Measured launches of a configuration: as many as fill `_MEASURED_MS`, within these limits."""
_MAX_WINNERS = 4096

Run = Callable[[], None]


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


def fastest(launches: Sequence[Run], prepare: Run, timer: LaunchTimer, name: str) -> int:
    """The index of the launch whose median time is the least; the first one of equal ones.

    `prepare` runs before each launch and is not measured: it gives tensors their content back. A
    launch that the device refuses is left out.

    Raises:
        UnavailableError: the device refuses every launch.
    """
    medians, errors = [], []
    for launch in launches:
        try:
            medians.append(_median_ms(launch, prepare, timer))
        except UnavailableError as error:
            medians.append(math.inf)
            errors.append(error)
    if len(errors) == len(launches):
        raise errors[0]
    winner = min(range(len(medians)), key=medians.__getitem__)
    counters.count("tuning.measured")
    shown = ", ".join(f"{median:.4f}" for median in medians)
    _log.info("kernelfarm: %s: configuration %d is the fastest (ms: %s)", name, winner, shown)
    return winner


def _median_ms(launch: Run, prepare: Run, timer: LaunchTimer) -> float:
    warm = timer.times_ms(launch, prepare, _WARM_UPS)
    least = min(warm)
    fitting = int(_MEASURED_MS / least) if least > 0 else _MOST
    count = min(max(fitting, _FEWEST), _MOST)
    return statistics.median(timer.times_ms(launch, prepare, count))


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
