"""Builds the kernels of one message: while one compiles, the one before it is published.

The compiling process is to wait as little as possible. So this process reads and checks the next
kernel, and checks, signs and stores the last one, while a kernel compiles. Between two kernels it
only reads that the first has ended and adopts the lease of the second.

Each job has a lease, limits and an end of its own: what happens to one does not affect the others.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog
from celery.exceptions import SoftTimeLimitExceeded

from codegen_svc.celery_app import QueuedJob
from codegen_svc.sandbox.compilation import Compilation, CompileJob
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.sandbox.end_errors import TimeLimitError
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.build_kernel import BuildResult, checked_result
from codegen_svc.worker.job_outcomes import JobOutcome, failure_label, recorded_failure
from codegen_svc.worker.pool_process import WorkerProcess
from kernelfarm import spans
from kernelfarm.cache import Lease, PublishStatus, UnsignedVariant
from kernelfarm.cache.redis_keys import tenant_of
from kernelfarm.digest import kernel_key
from kernelfarm.errors import InternalError, KernelRejectedError, UnavailableError
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.ir.verify.any_kernel import check_kernel
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import KERNEL_COMPILE_SECONDS
from kernelfarm.signing.tags import tenant_tag
from kernelfarm.targets import TargetFacts, target_facts
from kernelfarm.wire.job import job_from_bytes

# Blobs vanish between storing and publishing only if the cache is full: try once more, then fail.
_PUBLISH_ATTEMPTS = 2
# A quick kernel may take this many times its processor time by the clock.
_WALL_FACTOR = 3
# After this part of a job's time limit no further job of the message begins: the edge gives the
# others to another worker. Celery limits the time of the whole message.
_LATE_PART = 0.25


@dataclass(frozen=True, slots=True)
class _Input:
    """A job's input, read and checked.

    `key` is that of the kernel, computed here, so that the signed key is that of the compiled
    kernel, whatever its storage key.
    """

    content: bytes
    kernel: AnyKernel
    target: TargetFacts
    key: bytes


@dataclass(slots=True, eq=False)
class _Job:
    """One job of the message, and how far it is.

    `lease` is the worker's, by the storage key. `content` is the job's input, empty until it is
    known. `error` is why it must fail.
    """

    lease: Lease
    request_id: str
    parent: str
    content: bytes = b""
    input: _Input | None = None
    error: Exception | None = None
    span: spans.BegunSpan | None = None
    began_s: float = 0.0
    compilation: Compilation | None = None
    compile_span: spans.BegunSpan | None = None

    @property
    def traceparent(self) -> str:
        """That of its span."""
        return "" if self.span is None else self.span.traceparent


class JobPipeline:
    """The jobs of one message, all of one namespace.

    Slow jobs have the longest time limit. Slow jobs, and those that stand back, compile at a lower
    priority.
    """

    def __init__(
        self, worker: WorkerProcess, namespace: str, is_slow: bool, stands_back: bool
    ) -> None:
        self._worker = worker
        self._settings = worker.settings
        self._namespace = namespace
        self._cache = worker.cache(namespace)
        self._is_slow = is_slow
        self._stands_back = stands_back
        self._began_s = time.monotonic()
        self._is_stopped = False

    def run(self, queued: Sequence[QueuedJob]) -> None:
        """Builds the kernels in their order."""
        jobs = [self._job(each) for each in queued]
        running: _Job | None = None
        try:
            for number, job in enumerate(jobs):
                if number == 1:
                    self._fetch(jobs[1:])
                if job.content:
                    self._prepare(job)
                if running is not None:
                    self._await(running)
                has_begun = not self._must_stop(number) and self._begin(job, after=running)
                if running is not None:
                    self._finish(running)
                running = job if has_begun else None
                if self._must_stop(number):
                    break
            if running is not None:
                self._await(running)
                self._finish(running)
        finally:
            self._close(jobs)

    def _job(self, queued: QueuedJob) -> _Job:
        ttl_s = self._settings.worker_lease_ttl_s
        lease = Lease(queued.key, uuid.uuid4().hex, queued.fence, ttl_s, attempts=0)
        return _Job(lease, queued.request_id, queued.traceparent)

    def _fetch(self, jobs: Sequence[_Job]) -> None:
        """Reads the inputs of jobs that are not adopted yet, to prepare them in time."""
        try:
            contents = self._cache.get_jobs([job.lease.key for job in jobs])
        except UnavailableError:  # their adoption tries again
            return
        for job, content in zip(jobs, contents, strict=True):
            job.content = content or b""

    def _must_stop(self, number: int) -> bool:
        """True if no job after the first may begin: the cache does not serve, or it is late."""
        elapsed_s = time.monotonic() - self._began_s
        is_late = elapsed_s > _LATE_PART * self._settings.job_time_limit_s
        return self._is_stopped or (number > 0 and is_late)

    def _prepare(self, job: _Job) -> None:
        """Reads and checks a job's input; an error is kept for the time when it is adopted."""
        try:
            kernel, target_name = job_from_bytes(job.content)
            target = target_facts(target_name)
            if target.vendor != self._worker.queue:
                queue = self._worker.queue
                raise InternalError(f"a job for {target_name} is in the queue of {queue}")
            check_kernel(kernel)  # the edge did too, but others can write to the cache since then
            key = kernel_key(kernel, target_name)
            job.input = _Input(job.content, kernel, target, key)
        except Exception as error:
            job.error = error

    def _begin(self, job: _Job, after: _Job | None) -> bool:
        """Adopts a job and begins its compilation, when the one before it is settled.

        False if there is nothing to do for it, or if the cache does not serve.
        """
        job.span = spans.BegunSpan("job", job.parent, vendor=self._worker.queue)
        with self._named(job):
            try:
                is_adopted = self._adopt(job)
            except UnavailableError as error:
                self._lose(job, error)
                is_adopted = False
            if not is_adopted:
                job.span.end()
                return False
            if after is not None:
                self._settle(after)
            try:
                self._compile(job)
            except Exception as error:
                job.error = error
            return True

    def _adopt(self, job: _Job) -> bool:
        adopted = self._cache.adopt(job.lease)
        if adopted is None:
            get_logger().info("job_dropped", reason="its fence is old, or it is being built")
            return False
        if not adopted.job:
            # The edge notices that the lease is released, and queues the kernel again with its
            # input.
            self._cache.release(job.lease)
            get_logger().warning("job_input_missing")
            return False
        job.lease = adopted.lease
        job.began_s = time.monotonic()
        self._cache.keep(job.lease)
        if adopted.job != job.content:
            job.content, job.input, job.error = adopted.job, None, None
            self._prepare(job)
        get_logger().info("job_begun")
        return True

    def _compile(self, job: _Job) -> None:
        if job.input is None:
            raise job.error or InternalError("a job was not prepared")
        backend, found = self._worker.backend(), job.input
        names = {"target": found.target.name, "kernel": found.kernel.name}
        job.compile_span = spans.BegunSpan("compile", job.traceparent, **names)
        limits = _time_limits(self._settings, self._is_slow, self._stands_back)
        job.compilation = backend.begin(
            CompileJob(found.content, found.kernel.name, found.target.name, limits, self._namespace)
        )

    def _await(self, job: _Job) -> None:
        if job.compilation is not None:
            with _kept_error(job):
                job.compilation.wait()
        if job.compile_span is not None:
            job.compile_span.end()

    def _settle(self, job: _Job) -> None:
        if job.compilation is not None and job.error is None:
            with _kept_error(job), self._named(job):
                job.compilation.settle()

    def _finish(self, job: _Job) -> None:
        """Publishes the result or the failure of a job."""
        self._settle(job)
        with self._named(job):
            try:
                outcome = self._outcome(job)
                if outcome.text.startswith(PublishStatus.FENCED.value):
                    self._cache.release(job.lease)  # it ended normally: no failed attempt
            except UnavailableError as error:
                self._lose(job, error)
                return
            finally:
                self._cache.drop(job.lease)
                if job.span is not None:
                    job.span.end()
            elapsed_s = time.monotonic() - job.began_s
            KERNEL_COMPILE_SECONDS.labels(self._worker.queue, outcome.label).observe(elapsed_s)
            get_logger().info("job_done", outcome=outcome.text)

    def _outcome(self, job: _Job) -> JobOutcome:
        limit_s = self._settings.job_time_limit_s
        try:
            published = self._publish(job)
            label = "built" if published is PublishStatus.OK else "not_published"
            return JobOutcome(published.value, label)
        except TimeLimitError as caught:
            if not self._is_slow and self._settings.quick_time_limit_s < limit_s:
                return JobOutcome(self._requeue_as_slow(job), "slow")
            error: Exception = caught
        except SoftTimeLimitExceeded:
            error = KernelRejectedError(f"the compilation took longer than {limit_s:g} s")
        except Exception as caught:  # the edge of the process: every failure is published
            error = caught
        facts, ttl_s = recorded_failure(self._settings, error)
        status = self._cache.put_failure(job.lease, facts, ttl_s)
        return JobOutcome(f"{status.value} {facts.reason}", failure_label(error))

    def _requeue_as_slow(self, job: _Job) -> str:
        """Releases the job's lease, so that an edge that waits sends it again as a slow one."""
        self._cache.mark_slow(job.lease.key)
        self._cache.release(job.lease)
        self._cache.count("slow_kernels", 1)
        return "found to be slow"

    def _publish(self, job: _Job) -> PublishStatus:
        if job.error is not None:
            raise job.error
        compilation, found = job.compilation, job.input
        if compilation is None or found is None:
            raise InternalError("a job was not compiled")
        for stage in compilation.stage_times:
            parent = "" if job.compile_span is None else job.compile_span.traceparent
            spans.record(f"stage: {stage.name}", stage.began_ns, stage.ended_ns, parent)
        spent_ms = round(compilation.spent_s * 1e3)
        get_logger().info("processor_time", spent_ms=spent_ms, is_slow=self._is_slow)
        try:
            built = compilation.variants()
        except BaseException:
            self._count_processor_time(spent_ms)
            raise
        cost_ms = (compilation.ended_ns - compilation.began_ns) / 1e6
        backend = self._worker.backend()
        result = checked_result(backend, found.kernel, found.target, found.key, built, cost_ms)
        get_logger().info(
            "kernel_built", variants=len(result.variants), elapsed_ms=round(cost_ms, 3)
        )
        with spans.span("publish kernel", job.traceparent):
            return self._store(job, found.key, result, spent_ms)

    def _store(self, job: _Job, key: bytes, result: BuildResult, spent_ms: int) -> PublishStatus:
        variants = _of_tenant(result.variants, tenant_of(self._namespace))
        counts = {"processor_ms": spent_ms}
        for _ in range(_PUBLISH_ATTEMPTS):
            published = self._cache.publish(
                job.lease, variants, key=key, contents=result.blobs, counts=counts
            )
            if published is not PublishStatus.MISSING_BLOB:
                return published
            counts = {}
        raise UnavailableError(
            "the cache evicts blobs as soon as they are stored: give it more memory"
        )

    def _count_processor_time(self, spent_ms: int) -> None:
        """Adds a failed compilation's processor time to its tenant's counter."""
        try:
            self._cache.count("processor_ms", spent_ms)
        except UnavailableError as error:  # the failure matters more than the counter
            get_logger().warning("processor_time_lost", message=str(error))

    def _lose(self, job: _Job, error: UnavailableError) -> None:
        """Gives up a job, and those after it: their leases lapse, and edges send them again."""
        self._is_stopped = True
        get_logger().warning("job_lost", message=str(error))

    def _close(self, jobs: Sequence[_Job]) -> None:
        for job in jobs:
            if job.compilation is not None:
                job.compilation.close()
            self._cache.drop(job.lease)

    @contextmanager
    def _named(self, job: _Job) -> Iterator[None]:
        """Adds a job's names to the log lines of a block."""
        lease = job.lease
        names = {"request_id": job.request_id, "key": lease.key.hex(), "fence": lease.fence}
        if job.span is not None and job.span.trace_id:
            names["trace_id"] = job.span.trace_id
        if job.input is not None:
            names |= {"kernel": job.input.kernel.name, "target": job.input.target.name}
        with structlog.contextvars.bound_contextvars(**names):
            yield


@contextmanager
def _kept_error(job: _Job) -> Iterator[None]:
    """Keeps an error for the end of its job, and ends the job's process."""
    try:
        yield
    except Exception as error:
        job.error = error
        if job.compilation is not None:
            job.compilation.close()


def _time_limits(settings: WorkerSettings, is_slow: bool, stands_back: bool) -> TimeLimits:
    """The limits of a compilation.

    If it is expected to be quick, the tighter limit is on processor time, because hosts are busy.
    """
    quick_s, limit_s = settings.quick_time_limit_s, settings.job_time_limit_s
    niceness = settings.slow_niceness if is_slow or stands_back else 0
    if is_slow:
        return TimeLimits(limit_s, math.ceil(limit_s), niceness)
    wall_s = min(limit_s, _WALL_FACTOR * quick_s)
    return TimeLimits(wall_s, math.ceil(min(limit_s, quick_s)), niceness)


def _of_tenant(variants: tuple[UnsignedVariant, ...], tenant: str) -> tuple[UnsignedVariant, ...]:
    """The variants with the tenant's tag, so that invalidating the tenant makes them stale."""
    if not tenant:
        return variants
    return tuple(replace(v, tags=(*v.tags, tenant_tag(tenant))) for v in variants)
