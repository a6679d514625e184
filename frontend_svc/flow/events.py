"""What one request is, and what it tells its client while it is served."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Union

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.cache.tiered_programs import UNKNOWN_CALLER, Caller, SelectedVariant


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A request to compile; `graph` is its serialized message, still undecoded.

    `options` are sorted pairs of text, as they enter the program key; `priority` is the number on
    the wire. It is served in `part`; what is missing there is compiled if the caller
    `may_compile`.
    """

    request_id: str
    graph: bytes | memoryview = field(repr=False)
    targets: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    priority: int
    tenant_cache: TenantCache
    caller: Caller = UNKNOWN_CALLER
    may_compile: bool = True

    @property
    def fallback_random(self) -> bool:
        """Whether random numbers are to be the framework's own."""
        return ("fallback_random", str(True)) in self.options


class CacheOutcome(enum.Enum):
    """Where a program came from."""

    HIT = "hit"
    MISS = "miss"
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class StageProgress:
    """A stage went on or ended; `target` is empty for stages that all targets share."""

    stage: str
    target: str
    done: int
    total: int
    elapsed_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProgramReady:
    """A finished program as the cache holds it."""

    target: str
    selected: SelectedVariant
    outcome: CacheOutcome
    codegen_jobs: int


Event = Union[StageProgress, ProgramReady]


class EventStream:
    """The events of one request in order; whoever works for it tells, its handler listens.

    A client that left stops listening; telling goes on into the void.
    """

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Event | None] = asyncio.Queue()

    def emit(self, event: Event) -> None:
        """Adds an event."""
        self._queue.put_nowait(event)

    def stage(self, name: str, target: str = "") -> StageReporter:
        """Begins a stage."""
        return StageReporter(self, name, target)

    def close(self) -> None:
        """Ends the stream after the events told so far."""
        self._queue.put_nowait(None)

    async def listen(self) -> AsyncIterator[Event]:
        """Events until the stream is closed."""
        while (event := await self._queue.get()) is not None:
            yield event


class StageReporter:
    """One running stage."""

    def __init__(self, events: EventStream, name: str, target: str) -> None:
        self._events = events
        self._name = name
        self._target = target
        self._began_s = time.monotonic()

    def report(self, done: int = 0, total: int = 0, detail: str = "") -> None:
        """Tells how far the stage is."""
        elapsed_s = time.monotonic() - self._began_s
        self._events.emit(StageProgress(self._name, self._target, done, total, elapsed_s, detail))
