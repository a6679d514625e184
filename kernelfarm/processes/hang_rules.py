"""The rules by which a process counts as hung, without processes or clocks."""

from __future__ import annotations

from dataclasses import dataclass

_LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """When a child is probed: every `every_s`, with a timeout of `probe_s` for each probe.

    It is killed after `hung_s` without an answer, or after `start_s` if it never served. `hung_s`
    is long enough for two probes, because one alone may fail by chance.
    """

    every_s: float = 1.0
    probe_s: float = 5.0
    hung_s: float = 10.0
    start_s: float = 60.0


DEFAULT_WATCH = WatchTimes()


class HangDetector:
    """Decides from the probes of a child whether its process hangs."""

    def __init__(self, times: WatchTimes) -> None:
        self._times = times
        self._pid: int | None = None
        self._has_served = False
        self._silent_since_s: float | None = None

    def sees(self, pid: int, *, has_served: bool) -> None:
        """Records the process that is probed; starts again if it is another one."""
        if pid != self._pid:
            self._pid, self._has_served, self._silent_since_s = pid, False, None
        self._has_served = self._has_served or has_served

    def hangs(self, *, is_alive: bool, slept_s: float, began_s: float, ended_s: float) -> bool:
        """Records a probe; True if the process has not answered for too long.

        `slept_s` is the time since the last probe; this one lasted from `began_s` to `ended_s`. A
        probe does not count if this process slept or waited much longer than intended: the machine
        was suspended or overloaded then, and the child may have had no processor time either.
        """
        times = self._times
        is_late = (
            slept_s > times.every_s + _LATE_S or ended_s - began_s > 2 * times.probe_s + _LATE_S
        )
        if is_alive or is_late:
            self._silent_since_s = None
            return False
        if self._silent_since_s is None:
            self._silent_since_s = began_s
        limit_s = times.hung_s if self._has_served else times.start_s
        return ended_s - self._silent_since_s >= limit_s
