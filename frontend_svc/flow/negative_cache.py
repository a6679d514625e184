"""A cache of errors: they are returned again without the work that found them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from kernelfarm.errors import ErrorFacts, KernelfarmError, error_facts, error_from_facts


class NegativeCache:
    """The errors of the last `most` requests that failed, by the digests of the requests."""

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._errors: OrderedDict[bytes, tuple[ErrorFacts, float]] = OrderedDict()

    def add(self, digest: bytes, error: KernelfarmError, ttl_s: float) -> None:
        """Caches the error of a request for some seconds."""
        self._errors[digest] = error_facts(error), self._clock() + ttl_s
        while len(self._errors) > self._most:
            self._errors.popitem(last=False)

    def raise_cached(self, digest: bytes) -> None:
        """Raises the cached error of a request, if there is one."""
        facts, ends_s = self._errors.get(digest, (None, 0.0))
        if facts is None:
            return
        if self._clock() < ends_s:
            error = error_from_facts(facts)
            error.was_cached = True
            raise error
        del self._errors[digest]
