"""Renews the leases that a process holds, from one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable

from kernelfarm.cache.records import Lease
from kernelfarm.errors import UnavailableError

Renew = Callable[[Lease], bool]
"""Extends a lease; False if it lapsed or has another owner."""


class LeaseRenewals:
    """Renews each kept lease three times in its time to live.

    All leases have about the same time to live. The loss of a lease is not reported here; the
    publication is then fenced.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[tuple[bytes, str], tuple[Renew, Lease]] = {}
        self._pause_s = float("inf")
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease: Lease, renew: Renew) -> None:
        """Renews a lease from now on."""
        with self._lock:
            self._kept[lease.key, lease.owner] = (renew, lease)
            self._pause_s = min(self._pause_s, lease.ttl_s / 3)
            if self._thread is None:
                self._thread = threading.Thread(target=self._renew_all, daemon=True)
                self._thread.start()

    def drop(self, lease: Lease) -> None:
        """Renews a lease no more; a renewal that is on its way may still arrive."""
        with self._lock:
            self._kept.pop((lease.key, lease.owner), None)

    def close(self) -> None:
        """Ends the thread."""
        self._is_closed.set()

    def _renew_all(self) -> None:
        while not self._is_closed.wait(self._pause_s):
            with self._lock:
                kept = list(self._kept.values())
            for renew, lease in kept:
                try:
                    if not renew(lease):
                        self.drop(lease)
                except UnavailableError:
                    continue  # the next renewal tries again, until the lease lapses
