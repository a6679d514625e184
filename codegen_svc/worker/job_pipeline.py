"""Builds the kernels of messages: while one compiles, the one before it is published.

The compiling process is to wait as little as possible. So this process reads and checks the next
kernel, adopts its lease, sends it to the compiling process, and checks, signs and stores the last
one, while a kernel compiles. If that takes longer than small kernels do, it gives the lease back,
for another worker. When the last kernel of a message has ended, it goes on with the next message of
the queue, if one waits.

Each job has a lease, limits and an end of its own: what happens to one does not affect the others.
"""

from __future__ import annotations

import math
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import structlog
from celery.exceptions import SoftTimeLimitExceeded

from codegen_svc.celery_app import MOST_GROUPS_S, QueuedGroup
from codegen_svc.sandbox.compilation import Compilation, CompileJob
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.sandbox.end_errors import TimeLimitError
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.build_kernel import BuildResult, checked_result
from codegen_svc.worker.job_outcomes import JobOutcome, failure_label, recorded_failure
from codegen_svc.worker.pool_process import WorkerProcess
from kernelfarm import spans
from kernelfarm.cache import Lease, PublishStatus, UnsignedVariant, WorkerCache
from kernelfarm.cache.redis_keys import tenant_of
from kernelfarm.digest import kernel_key
from kernelfarm.errors import InternalError, KernelLimitError, UnavailableError
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
# For how long a kernel may be adopted while the one before it compiles. A process that dies in this
# time counts as an attempt of both.
_AHEAD_S = 0.25
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
    input: _Input | None = None
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


class JobPipeline:
    """The jobs of one task of Celery: those of its message, then those of messages that wait.

    Slow jobs have the longest time limit. Slow jobs, and those that stand back, compile at a lower
    priority.
    """

    def __init__(self, worker: WorkerProcess, next_group: Callable[[], QueuedGroup | None]) -> None:
        """`next_group` takes a group that waits in the queue, or returns None.

        It is asked for `MOST_GROUPS_S`, so that Celery sees that this process still ends its tasks.
        """
        self._worker = worker
        self._next_group = next_group
        self._settings = worker.settings
        self._began_s = float("inf")
        self._is_stopped = False
        # Jobs that are not adopted, and jobs that are.
        self._waiting: deque[_Job] = deque()
        self._open: list[_Job] = []

    def run(self, group: QueuedGroup) -> None:
        """Builds the kernels of a group in their order, then those of the next groups."""
        self._waiting.extend(self._jobs(group))
        try:
            running, job = None, self._next_job()
            while running is not None or job is not None:
                if job is not None:
                    if running is not None:
                        self._settle(running)
                    self._begin(job)
                if running is not None:
                    self._finish(running)
                running, job = job, None if job is None else self._job_behind(job)
            self._give_back(*self._waiting)
        finally:
            self._close()

    def _job_behind(self, running: _Job) -> _Job | None:
        """Returns when a job is compiled, with the next one, adopted; None if there is none.

        If the running kernel is expected to be quick, the next job is adopted in the meantime. One
        that stands back may have to wait for a processor at any time.
        """
        job = None
        if running.is_small and not running.group.stands_back:
            job = self._next_job(is_ahead=True)
            if job is not None:
                self._send_ahead(job, running)
            if not self._has_ended_within(running, _AHEAD_S):
                if running.compilation is not None and job is not None and job.compilation:
                    running.compilation.recall_next()
                ahead = [] if job is None else [job]
                self._give_back(*ahead, *self._waiting)
                job = None
        self._await(running)
        return job or self._next_job()

    def _next_job(self, *, is_ahead: bool = False) -> _Job | None:
        """Adopts the next job that needs to be built; None if there is none, or it is late."""
        while not self._must_stop():
            if not self._waiting and self._elapsed_s < MOST_GROUPS_S:
                group = self._next_group()
                self._waiting.extend([] if group is None else self._jobs(group))
            if not self._waiting:
                return None
            if is_ahead:
                self._fetch(self._waiting)
            job = self._waiting.popleft()
            if job.content:
                self._prepare(job)
            if self._adopted(job):
                return job
        return None

    def _jobs(self, group: QueuedGroup) -> Iterator[_Job]:
        cache, ttl_s = self._worker.cache(group.namespace), self._settings.worker_lease_ttl_s
        for queued in group.jobs:
            lease = Lease(queued.key, uuid.uuid4().hex, queued.fence, ttl_s, attempts=0)
            yield _Job(group, cache, lease, queued.request_id, queued.traceparent)

    def _fetch(self, jobs: Iterable[_Job]) -> None:
        """Reads the inputs of jobs of one group, once, to prepare them before they are adopted."""
        missing = [job for job in jobs if not job.is_fetched]
        if not missing:
            return
        for job in missing:
            job.is_fetched = True
        try:
            contents = missing[0].cache.get_jobs([job.lease.key for job in missing])
        except UnavailableError:  # their adoption tries again
            return
        for job, content in zip(missing, contents, strict=True):
            job.content = content or b""

    @property
    def _elapsed_s(self) -> float:
        """Seconds since its first compilation began, negative before."""
        return time.monotonic() - self._began_s

    def _must_stop(self) -> bool:
        """True if no further job may begin: the cache does not serve, or it is late."""
        is_late = self._elapsed_s > _LATE_PART * self._settings.job_time_limit_s
        return self._is_stopped or is_late

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

    def _give_back(self, *jobs: _Job) -> None:
        """Releases the leases of jobs, for other workers: their edges send them again at once."""
        for job in jobs:
            if self._is_stopped or not (job in self._open or self._adopted(job)):
                continue
            with self._named(job):
                try:
                    job.cache.release(job.lease)
                    get_logger().info("job_given_back", message="the kernel before it takes long")
                except UnavailableError as error:
                    self._lose(job, error)
            self._leave(job)
        self._waiting.clear()

    def _adopted(self, job: _Job) -> bool:
        """Adopts a job; False if there is nothing to do for it, or if the cache does not serve."""
        self._open.append(job)
        job.span = spans.BegunSpan("job", job.parent, vendor=self._worker.queue)
        with self._named(job):
            try:
                is_adopted = self._adopt(job)
            except UnavailableError as error:
                self._lose(job, error)
                is_adopted = False
        if not is_adopted:
            self._leave(job)
        return is_adopted

    def _adopt(self, job: _Job) -> bool:
        adopted = job.cache.adopt(job.lease)
        if adopted is None:
            get_logger().info("job_dropped", reason="its fence is old, or it is being built")
            return False
        if not adopted.job:
            # The edge notices that the lease is released, and queues the kernel again with its
            # input.
            job.cache.release(job.lease)
            get_logger().warning("job_input_missing")
            return False
        job.lease = adopted.lease
        job.cache.keep(job.lease)
        if adopted.job != job.content:
            job.content, job.input, job.error = adopted.job, None, None
            self._prepare(job)
        return True

    def _leave(self, job: _Job) -> None:
        """Renews a job's lease no more, and ends its span."""
        job.cache.drop(job.lease)
        if job.span is not None:
            job.span.end()
        self._open.remove(job)

    def _begin(self, job: _Job) -> None:
        """Begins the compilation of an adopted job; an error is kept for its end."""
        job.began_s = time.monotonic()
        self._began_s = min(self._began_s, job.began_s)
        with self._named(job):
            get_logger().info("job_begun")
            try:
                self._compile(job)
            except Exception as error:
                job.error = error

    def _compile(self, job: _Job) -> None:
        if job.input is None:
            raise job.error or InternalError("a job was not prepared")
        names = {"target": job.input.target.name, "kernel": job.input.kernel.name}
        job.compile_span = spans.BegunSpan("compile", job.traceparent, **names)
        compilation = job.compilation or self._compilation(job.input, job.group)
        job.compilation = None  # if it does not begin, there is nothing to wait for
        compilation.begin()
        job.compilation = compilation

    def _send_ahead(self, job: _Job, running: _Job) -> None:
        """Sends a job to the process of the running one, if that takes it; `_compile` begins it."""
        if job.input is None or running.compilation is None:
            return
        compilation = self._compilation(job.input, job.group)
        if compilation.send_ahead(running.compilation):
            job.compilation = compilation

    def _compilation(self, found: _Input, group: QueuedGroup) -> Compilation:
        limits = _time_limits(self._settings, group)
        kernel, target = found.kernel.name, found.target.name
        return self._worker.backend().compilation(
            CompileJob(found.content, kernel, target, limits, group.namespace)
        )

    def _has_ended_within(self, job: _Job, timeout_s: float) -> bool:
        return job.compilation is None or job.compilation.has_ended_within(timeout_s)

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
                    job.cache.release(job.lease)  # it ended normally: no failed attempt
            except UnavailableError as error:
                self._lose(job, error)
                return
            finally:
                self._leave(job)
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
            if not job.group.is_slow and self._settings.quick_time_limit_s < limit_s:
                return JobOutcome(self._requeue_as_slow(job), "slow")
            error: Exception = caught
        except SoftTimeLimitExceeded:
            error = KernelLimitError(f"the compilation took longer than {limit_s:g} s")
        except Exception as caught:  # the edge of the process: every failure is published
            error = caught
        facts, ttl_s = recorded_failure(self._settings, error)
        status = job.cache.put_failure(job.lease, facts, ttl_s)
        return JobOutcome(f"{status.value} {facts.reason}", failure_label(error))

    def _requeue_as_slow(self, job: _Job) -> str:
        """Releases the job's lease, so that an edge that waits sends it again as a slow one."""
        job.cache.mark_slow(job.lease.key)
        job.cache.release(job.lease)
        job.cache.count("slow_kernels", 1)
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
        get_logger().info("processor_time", spent_ms=spent_ms, is_slow=job.group.is_slow)
        try:
            built = compilation.variants()
        except BaseException:
            self._count_processor_time(job, spent_ms)
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
        variants = _of_tenant(result.variants, tenant_of(job.group.namespace))
        counts = {"processor_ms": spent_ms}
        for _ in range(_PUBLISH_ATTEMPTS):
            published = job.cache.publish(
                job.lease, variants, key=key, contents=result.blobs, counts=counts
            )
            if published is not PublishStatus.MISSING_BLOB:
                return published
            counts = {}
        raise UnavailableError(
            "the cache evicts blobs as soon as they are stored: give it more memory"
        )

    def _count_processor_time(self, job: _Job, spent_ms: int) -> None:
        """Adds a failed compilation's processor time to its tenant's counter."""
        try:
            job.cache.count("processor_ms", spent_ms)
        except UnavailableError as error:  # the failure matters more than the counter
            get_logger().warning("processor_time_lost", message=str(error))

    def _lose(self, job: _Job, error: UnavailableError) -> None:
        """Gives up a job, and those after it: their leases lapse, and edges send them again."""
        self._is_stopped = True
        get_logger().warning("job_lost", message=str(error))

    def _close(self) -> None:
        for job in self._open:
            if job.compilation is not None:
                job.compilation.close()
            job.cache.drop(job.lease)

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


def _time_limits(settings: WorkerSettings, group: QueuedGroup) -> TimeLimits:
    """The limits of a compilation.

    If it is expected to be quick, the tighter limit is on processor time, because hosts are busy.
    """
    quick_s, limit_s = settings.quick_time_limit_s, settings.job_time_limit_s
    niceness = settings.slow_niceness if group.is_slow or group.stands_back else 0
    if group.is_slow:
        return TimeLimits(limit_s, math.ceil(limit_s), niceness)
    wall_s = min(limit_s, _WALL_FACTOR * quick_s)
    return TimeLimits(wall_s, math.ceil(min(limit_s, quick_s)), niceness)


def _of_tenant(variants: tuple[UnsignedVariant, ...], tenant: str) -> tuple[UnsignedVariant, ...]:
    """The variants with the tenant's tag, so that invalidating the tenant makes them stale."""
    if not tenant:
        return variants
    return tuple(replace(v, tags=(*v.tags, tenant_tag(tenant))) for v in variants)
