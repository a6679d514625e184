"""Bounds the memory that requests in flight take: a herd may bring a gigabyte in a second."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelfarm.errors import FarmFullError

_RETRY_AFTER_S = 1.0


class RequestBudget:
    """Bytes of requests that are served at once; a single one is always served."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Counts a request while it is served.

        Raises:
            FarmFullError: too much is in flight; the error tells when to come again.
        """
        if self.held_bytes and self.held_bytes + size_bytes > self._max_bytes:
            error = FarmFullError(
                f"requests of {self.held_bytes} bytes are being served; this gateway takes at most"
                f" {self._max_bytes}"
            )
            error.retry_after_s = _RETRY_AFTER_S
            raise error
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes
