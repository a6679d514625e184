"""One compile request, and the events that it reports to its client."""

from __future__ import annotations

import asyncio
import enum
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Union

from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.cache.tiered_programs import UNKNOWN_CALLER, Caller, SelectedVariant
from frontend_svc.flow.compile_options import CompileOptions
from kernelfarm.service.metrics.declarations import STAGE_SECONDS
from kernelfarm.v1.compile_service_pb2 import PRIORITY_WARM_UP


@dataclass(frozen=True, slots=True)
class CompileJob:
    """A request to compile; `graph` is the serialized message, not decoded yet.

    `priority` is the number on the wire. The request is served from the namespace of
    `tenant_cache`; programs that are missing there are compiled if the caller `may_compile`.
    """

    request_id: str
    graph: bytes | memoryview = field(repr=False)
    targets: tuple[str, ...]
    options: CompileOptions
    priority: int
    tenant_cache: TenantCache
    caller: Caller = UNKNOWN_CALLER
    may_compile: bool = True

    @property
    def is_warm_up(self) -> bool:
        """True if no user waits for the result."""
        return self.priority == PRIORITY_WARM_UP


class CacheOutcome(enum.Enum):
    """Where a program came from."""

    HIT = "hit"
    MISS = "miss"
    MERGED = "merged"


@dataclass(frozen=True, slots=True)
class StageProgress:
    """Progress of a stage; `target` is empty for stages that all targets share."""

    stage: str
    target: str
    done: int
    total: int
    elapsed_s: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ProgramReady:
    """A finished program as the cache stores it."""

    target: str
    selected: SelectedVariant
    outcome: CacheOutcome
    codegen_jobs: int


Event = Union[StageProgress, ProgramReady]


class EventStream:
    """The events of one request in order: builds emit them, the request's handler listens.

    If the client leaves, the handler stops listening, and later events are discarded.
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
        """Ends the stream after the events emitted so far."""
        self._queue.put_nowait(None)

    async def listen(self) -> AsyncIterator[Event]:
        """Events until the stream is closed."""
        while (event := await self._queue.get()) is not None:
            yield event


class StageReporter:
    """Reports the progress of one running stage."""

    def __init__(self, events: EventStream, name: str, target: str) -> None:
        self._events = events
        self._name = name
        self._target = target
        self._began_s = time.monotonic()

    def report(self, done: int = 0, total: int = 0, detail: str = "") -> None:
        """Emits how far the stage is."""
        elapsed_s = time.monotonic() - self._began_s
        self._events.emit(StageProgress(self._name, self._target, done, total, elapsed_s, detail))

    def finish(self, done: int) -> None:
        """Emits that the stage has ended, and records its duration."""
        self.report(done, done)
        self.record()

    def record(self) -> None:
        """Records the duration of the stage, which has ended."""
        vendor = self._target.partition(":")[0]
        STAGE_SECONDS.labels(self._name, vendor).observe(time.monotonic() - self._began_s)
