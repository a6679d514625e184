"""Turns among tenants: whoever sends many kernels waits behind those who send few.

A queue's messages are served in their order, so a flood of one tenant would make all others wait
for its end. Therefore few jobs are in a queue at a time; the others wait here, and each free place
goes to the next tenant in turn. Interactive jobs and warm-up have places of their own: within the
queue the former go first anyway.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager


class FairTurns:
    """Places of one kind; `places` tells how many there are now."""

    def __init__(self, places: Callable[[], int]) -> None:
        self._places = places
        self._taken = 0
        self._lines: dict[Hashable, deque[asyncio.Future[None]]] = {}

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return sum(len(line) for line in self._lines.values())

    @property
    def is_full(self) -> bool:
        """True if whoever comes now waits for a place."""
        return bool(self._lines) or self._taken >= self._places()

    @asynccontextmanager
    async def turn(self, tenant: Hashable) -> AsyncIterator[None]:
        """Holds a place while the block runs; waits for it behind the tenant's own others."""
        await self._take(tenant)
        try:
            yield
        finally:
            self._taken -= 1
            self._serve()

    async def _take(self, tenant: Hashable) -> None:
        if not self.is_full:
            self._taken += 1
            return
        called: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._lines.setdefault(tenant, deque()).append(called)
        self._serve()  # places may have been added since the last one was given back
        try:
            await called
        except asyncio.CancelledError:
            if called.done() and not called.cancelled():
                self._taken -= 1
                self._serve()
            else:
                self._leave(tenant, called)
            raise

    def _serve(self) -> None:
        """Gives free places to the first of each line, line after line."""
        while self._lines and self._taken < self._places():
            tenant = next(iter(self._lines))
            line = self._lines.pop(tenant)
            called = line.popleft()
            if line:
                self._lines[tenant] = line  # now the last of all lines
            if not called.done():
                self._taken += 1
                called.set_result(None)

    def _leave(self, tenant: Hashable, called: asyncio.Future[None]) -> None:
        line = self._lines.get(tenant, deque())
        if called in line:
            line.remove(called)
        if not line:
            self._lines.pop(tenant, None)
