"""When a process counts as hung: rules about probes, without processes or clocks."""

from __future__ import annotations

from dataclasses import dataclass

_LATE_S = 1.0


@dataclass(frozen=True, slots=True)
class WatchTimes:
    """How a child is watched: a probe `every_s` that may take `probe_s`; killed after `hung_s`.

    `hung_s` has room for two probes: one alone may meet a bad moment. `start_s` is the limit for
    a process that never served.
    """

    every_s: float = 1.0
    probe_s: float = 5.0
    hung_s: float = 10.0
    start_s: float = 60.0


DEFAULT_WATCH = WatchTimes()


class HangDetector:
    """Decides from one child's probes whether its process hangs."""

    def __init__(self, times: WatchTimes) -> None:
        self._times = times
        self._pid: int | None = None
        self._has_served = False
        self._silent_since_s: float | None = None

    def sees(self, pid: int, *, has_served: bool) -> None:
        """Begins anew if it is another process."""
        if pid != self._pid:
            self._pid, self._has_served, self._silent_since_s = pid, False, None
        self._has_served = self._has_served or has_served

    def hangs(self, *, is_alive: bool, slept_s: float, began_s: float, ended_s: float) -> bool:
        """True if the process has been silent for too long, after a probe from `began_s` on.

        A probe proves nothing where we slept or waited longer than we wanted: then this machine
        stood still, or had no time for us, and maybe none for the child.
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
