"""A job in a worker process: its lease, its input, and how far it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import structlog

from codegen_svc.celery_app import QueuedGroup
from codegen_svc.sandbox.compilation import Compilation
from kernelfarm import spans
from kernelfarm.cache import Lease, WorkerCache
from kernelfarm.digest import kernel_key
from kernelfarm.errors import InternalError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.targets import TargetFacts, target_facts
from kernelfarm.wire.job import job_from_bytes


@dataclass(frozen=True, slots=True)
class JobInput:
    """A job's input, read and checked.

    `key` is that of the kernel, computed here, so that the signed key is that of the compiled
    kernel, whatever its storage key.
    """

    content: bytes
    kernel: AnyKernel
    target: TargetFacts
    key: bytes


def checked_input(content: bytes, queue: str) -> JobInput:
    """The input of a job of a vendor's queue.

    Raises:
        InternalError: the job is in the wrong queue.
        KernelfarmError: the input is not valid.
    """
    kernel, target_name = job_from_bytes(content)
    target = target_facts(target_name)
    if target.vendor != queue:
        raise InternalError(f"a job for {target_name} is in the queue of {queue}")
    check_kernel(kernel)  # the edge did too, but others can write to the cache since then
    return JobInput(content, kernel, target, kernel_key(kernel, target_name))


@dataclass(slots=True, eq=False)
class WorkerJob:
    """One job of a message, and how far it is.

    `cache` is that of its namespace, and `lease` is the worker's, by the storage key. `content` is
    the job's input, empty until it is known; `is_fetched` if it was looked for. `error` is why it
    must fail.
    """

    group: QueuedGroup
    cache: WorkerCache
    lease: Lease
    request_id: str
    parent: str
    content: bytes = b""
    input: JobInput | None = None
    error: Exception | None = None
    span: spans.BegunSpan | None = None
    began_s: float = 0.0
    is_fetched: bool = False
    compilation: Compilation | None = None
    compile_span: spans.BegunSpan | None = None

    @property
    def is_small(self) -> bool:
        """True if it shares its message, as only kernels do that are expected to be quick."""
        return len(self.group.jobs) > 1

    @property
    def traceparent(self) -> str:
        """That of its span."""
        return "" if self.span is None else self.span.traceparent

    @contextmanager
    def named(self) -> Iterator[None]:
        """Adds the job's names to the log lines of a block."""
        lease = self.lease
        names = {"request_id": self.request_id, "key": lease.key.hex(), "fence": lease.fence}
        if self.span is not None and self.span.trace_id:
            names["trace_id"] = self.span.trace_id
        if self.input is not None:
            names |= {"kernel": self.input.kernel.name, "target": self.input.target.name}
        with structlog.contextvars.bound_contextvars(**names):
            yield

    @contextmanager
    def keeping_errors(self) -> Iterator[None]:
        """Keeps an error of a block for the job's end, and ends its process."""
        try:
            yield
        except Exception as error:
            self.error = error
            if self.compilation is not None:
                self.compilation.close()
