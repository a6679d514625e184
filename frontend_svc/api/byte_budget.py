"""Bounds the memory of requests and responses in flight: many at once may need gigabytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from kernelfarm.errors import FarmFullError
from kernelfarm.service.tenants.identity import current_tenant

_RETRY_AFTER_S = 1.0


class ByteBudget:
    """Limits the bytes of items that are served at once (`what`: `blobs`); one is always served.

    A tenant gets at most half of the bytes, so that one that reads slowly leaves half to the
    others.
    """

    def __init__(self, max_bytes: int, what: str) -> None:
        self._what = what
        self._max_bytes = max_bytes
        self._held_by: Counter[str] = Counter()
        self.held_bytes = 0

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Counts an item while it is served.

        Raises:
            FarmFullError: too much is in flight; the error states when to retry.
        """
        tenant = current_tenant()
        self._check(tenant, size_bytes)
        self.held_bytes += size_bytes
        self._held_by[tenant] += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes
            self._held_by[tenant] -= size_bytes
            if not self._held_by[tenant]:
                del self._held_by[tenant]

    def _check(self, tenant: str, size_bytes: int) -> None:
        mine = self._held_by[tenant]
        # Without tenants there is no other tenant to share with.
        most_of_one = self._max_bytes // 2 if tenant else self._max_bytes
        if self.held_bytes and self.held_bytes + size_bytes > self._max_bytes:
            raise _full(
                f"{self._what} of {self.held_bytes} bytes are being served; this gateway serves at"
                f" most {self._max_bytes} bytes at once"
            )
        if mine and mine + size_bytes > most_of_one:
            raise _full(
                f"{self._what} of {mine} bytes of tenant {tenant!r} are being served; this gateway"
                f" serves at most {most_of_one} bytes of one tenant at once"
            )


def _full(message: str) -> FarmFullError:
    error = FarmFullError(message)
    error.retry_after_s = _RETRY_AFTER_S
    return error
