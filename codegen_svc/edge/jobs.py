"""The values of the edge: a kernel to find or build, its result, and its build in progress."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from codegen_svc.edge.fair_queue import JobClass
from codegen_svc.edge.job_metrics import QueuedJobRecord
from kernelfarm import spans
from kernelfarm.cache import EdgeCache, Lease, StoredVariant
from kernelfarm.errors import KernelfarmError


@dataclass(frozen=True, slots=True)
class KernelJob:
    """One kernel to find or build; `job` is the worker's input.

    It is looked up and published in `namespace` (empty: the edge's own) under the storage key that
    `salt` gives. `cost_s` is the expected processor time of compiling it.
    """

    key: bytes
    name: str
    target: str
    queue: str
    job: bytes
    is_warm_up: bool = False
    request_id: str = ""
    namespace: str = ""
    cost_s: float = 0.0
    salt: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class KernelResult:
    """A kernel's variants as published, and whether the request caused a job."""

    variants: tuple[StoredVariant, ...]
    caused_job: bool


@dataclass(slots=True, eq=False)
class PendingJob:
    """A job until a worker ended it.

    `seen` is the stamp of the last look-up, `parent` the `traceparent` of its span. `is_alone`: it
    shares its message with no other job. `ended` is True when a worker ended it or is gone, and
    False if another edge has its lease. `lease` and `span` are those of its message.
    """

    job: KernelJob
    job_class: JobClass
    cache: EdgeCache
    seen: str
    record: QueuedJobRecord
    parent: str
    is_alone: bool
    ended: asyncio.Future[bool]
    is_logged: bool = False
    lease: Lease | None = None
    span: spans.BegunSpan | None = None
    is_begun: bool = False

    def end(self, *, was_sent: bool) -> None:
        """Lets the build go on."""
        if not self.ended.done():
            self.ended.set_result(was_sent)

    def fail(self, error: KernelfarmError) -> None:
        """Ends the build with an error."""
        if not self.ended.done():
            self.ended.set_exception(error)
