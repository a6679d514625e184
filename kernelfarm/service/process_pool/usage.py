"""The processor time that each tenant used recently, and whether its jobs are mostly heavy."""

from __future__ import annotations

from collections import OrderedDict

_LEAK_RATE = 0.1
"""Seconds of processor time that leak out of a tenant's bucket in each second."""
_MUCH_S = 0.3
_MAX_TENANTS = 4096
_MEAN_FOR_S = 0.25
_CLEARLY_LESS = 0.8


class ProcessorUsage:
    """A leaky bucket for each tenant; times are of one monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._used: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._mean = (0.0, float("-inf"))

    def charge(self, tenant: str, processor_s: float, now_s: float) -> None:
        """Adds the processor time that a job of a tenant used."""
        self._used[tenant] = (self._left_s(tenant, now_s) + processor_s, now_s)
        self._used.move_to_end(tenant)
        if len(self._used) > _MAX_TENANTS:
            self._used.popitem(last=False)

    def is_much(self, tenant: str, now_s: float) -> bool:
        """True if a tenant used much processor time recently.

        That is more than occasional small programs use, and not clearly less than the average of
        the tenants that run jobs at the same time.
        """
        left_s = self._left_s(tenant, now_s)
        return left_s > _MUCH_S and left_s > _CLEARLY_LESS * self._mean_s(now_s)

    def _mean_s(self, now_s: float) -> float:
        """The average over all tenants with recent usage, computed at intervals."""
        mean_s, when_s = self._mean
        if now_s - when_s >= _MEAN_FOR_S:
            left = [left_s for name in self._used if (left_s := self._left_s(name, now_s))]
            mean_s = sum(left) / len(left) if left else 0.0
            self._mean = (mean_s, now_s)
        return mean_s

    def _left_s(self, tenant: str, now_s: float) -> float:
        used_s, when_s = self._used.get(tenant, (0.0, now_s))
        return max(0.0, used_s - (now_s - when_s) * _LEAK_RATE)


class HeavyShares:
    """The share of heavy jobs among each tenant's latest jobs, as an exponential average."""

    _WEIGHT = 0.125
    """The weight of the latest job; about six jobs of one kind change the result."""

    def __init__(self) -> None:
        self._share: OrderedDict[str, float] = OrderedDict()

    def note(self, tenant: str, *, was_heavy: bool) -> None:
        """Records that a job of a tenant ended or was ended."""
        share = self._share.get(tenant, 0.0)
        share += self._WEIGHT * (was_heavy - share)
        if share < self._WEIGHT / 2:
            self._share.pop(tenant, None)
            return
        self._share[tenant] = share
        self._share.move_to_end(tenant)
        if len(self._share) > _MAX_TENANTS:
            self._share.popitem(last=False)

    def is_mostly_heavy(self, tenant: str) -> bool:
        """True if most of the tenant's latest jobs were heavy."""
        return self._share.get(tenant, 0.0) > 0.5
