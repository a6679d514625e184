"""Bounds the memory of requests and answers in flight: a herd may bring, or ask for, gigabytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kernelfarm.errors import FarmFullError

_RETRY_AFTER_S = 1.0


class ByteBudget:
    """Bytes of what is served at once (`what`: requests, say); a single one is always served."""

    def __init__(self, max_bytes: int, what: str) -> None:
        self._what = what
        self._max_bytes = max_bytes
        self.held_bytes = 0

    @contextmanager
    def held(self, size_bytes: int) -> Iterator[None]:
        """Counts one while it is served.

        Raises:
            FarmFullError: too much is in flight; the error tells when to come again.
        """
        if self.held_bytes and self.held_bytes + size_bytes > self._max_bytes:
            error = FarmFullError(
                f"{self._what} of {self.held_bytes} bytes are being served; this gateway takes at"
                f" most {self._max_bytes}"
            )
            error.retry_after_s = _RETRY_AFTER_S
            raise error
        self.held_bytes += size_bytes
        try:
            yield
        finally:
            self.held_bytes -= size_bytes
