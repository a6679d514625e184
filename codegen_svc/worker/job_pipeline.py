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

from codegen_svc.celery_app import MOST_GROUPS_S, QueuedGroup
from codegen_svc.sandbox.compilation import Compilation, CompileJob
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.pool_process import WorkerProcess
from codegen_svc.worker.publish_job import publish_job
from codegen_svc.worker.worker_job import JobInput, WorkerJob, checked_input
from kernelfarm import spans
from kernelfarm.cache import Lease, PublishStatus
from kernelfarm.errors import InternalError, UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import KERNEL_COMPILE_SECONDS

# A quick kernel may take this many times its processor time by the clock.
_WALL_FACTOR = 3
# For how long a kernel may be adopted while the one before it compiles. A process that dies in this
# time counts as an attempt of both.
_AHEAD_S = 0.25
# After this part of a job's time limit no further job of the message begins: the edge gives the
# others to another worker. Celery limits the time of the whole message.
_LATE_PART = 0.25


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
        self._waiting: deque[WorkerJob] = deque()
        self._open: list[WorkerJob] = []

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

    def _job_behind(self, running: WorkerJob) -> WorkerJob | None:
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

    def _next_job(self, *, is_ahead: bool = False) -> WorkerJob | None:
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

    def _jobs(self, group: QueuedGroup) -> Iterator[WorkerJob]:
        cache, ttl_s = self._worker.cache(group.namespace), self._settings.worker_lease_ttl_s
        for queued in group.jobs:
            lease = Lease(queued.key, uuid.uuid4().hex, queued.fence, ttl_s, attempts=0)
            yield WorkerJob(group, cache, lease, queued.request_id, queued.traceparent)

    def _fetch(self, jobs: Iterable[WorkerJob]) -> None:
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

    def _prepare(self, job: WorkerJob) -> None:
        """Reads and checks a job's input; an error is kept for the time when it is adopted."""
        try:
            job.input = checked_input(job.content, self._worker.queue)
        except Exception as error:
            job.error = error

    def _give_back(self, *jobs: WorkerJob) -> None:
        """Releases the leases of jobs, for other workers: their edges send them again at once."""
        for job in jobs:
            if self._is_stopped or not (job in self._open or self._adopted(job)):
                continue
            with job.named():
                try:
                    job.cache.release(job.lease)
                    get_logger().info("job_given_back", message="the kernel before it takes long")
                except UnavailableError as error:
                    self._lose(job, error)
            self._leave(job)
        self._waiting.clear()

    def _adopted(self, job: WorkerJob) -> bool:
        """Adopts a job; False if there is nothing to do for it, or if the cache does not serve."""
        self._open.append(job)
        job.span = spans.BegunSpan("job", job.parent, vendor=self._worker.queue)
        with job.named():
            try:
                is_adopted = self._adopt(job)
            except UnavailableError as error:
                self._lose(job, error)
                is_adopted = False
        if not is_adopted:
            self._leave(job)
        return is_adopted

    def _adopt(self, job: WorkerJob) -> bool:
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

    def _leave(self, job: WorkerJob) -> None:
        """Renews a job's lease no more, and ends its span."""
        job.cache.drop(job.lease)
        if job.span is not None:
            job.span.end()
        self._open.remove(job)

    def _begin(self, job: WorkerJob) -> None:
        """Begins the compilation of an adopted job; an error is kept for its end."""
        job.began_s = time.monotonic()
        self._began_s = min(self._began_s, job.began_s)
        with job.named():
            get_logger().info("job_begun")
            try:
                self._compile(job)
            except Exception as error:
                job.error = error

    def _compile(self, job: WorkerJob) -> None:
        if job.input is None:
            raise job.error or InternalError("a job was not prepared")
        names = {"target": job.input.target.name, "kernel": job.input.kernel.name}
        job.compile_span = spans.BegunSpan("compile", job.traceparent, **names)
        compilation = job.compilation or self._compilation(job.input, job.group)
        job.compilation = None  # if it does not begin, there is nothing to wait for
        compilation.begin()
        job.compilation = compilation

    def _send_ahead(self, job: WorkerJob, running: WorkerJob) -> None:
        """Sends a job to the process of the running one, if that takes it; `_compile` begins it."""
        if job.input is None or running.compilation is None:
            return
        compilation = self._compilation(job.input, job.group)
        if compilation.send_ahead(running.compilation):
            job.compilation = compilation

    def _compilation(self, found: JobInput, group: QueuedGroup) -> Compilation:
        limits = _time_limits(self._settings, group)
        kernel, target = found.kernel.name, found.target.name
        return self._worker.backend().compilation(
            CompileJob(found.content, kernel, target, limits, group.namespace)
        )

    def _has_ended_within(self, job: WorkerJob, timeout_s: float) -> bool:
        return job.compilation is None or job.compilation.has_ended_within(timeout_s)

    def _await(self, job: WorkerJob) -> None:
        if job.compilation is not None:
            with job.keeping_errors():
                job.compilation.wait()
        if job.compile_span is not None:
            job.compile_span.end()

    def _settle(self, job: WorkerJob) -> None:
        if job.compilation is not None and job.error is None:
            with job.keeping_errors(), job.named():
                job.compilation.settle()

    def _finish(self, job: WorkerJob) -> None:
        """Publishes the result or the failure of a job."""
        self._settle(job)
        with job.named():
            try:
                outcome = publish_job(self._worker, job)
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

    def _lose(self, job: WorkerJob, error: UnavailableError) -> None:
        """Gives up a job, and those after it: their leases lapse, and edges send them again."""
        self._is_stopped = True
        get_logger().warning("job_lost", message=str(error))

    def _close(self) -> None:
        for job in self._open:
            if job.compilation is not None:
                job.compilation.close()
            job.cache.drop(job.lease)


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
