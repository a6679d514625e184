"""The task of a worker: adopts the lease of a job, compiles the kernel, publishes the result."""

from __future__ import annotations

import math
import time
import uuid
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import structlog
from billiard.process import current_process
from celery import current_app, shared_task, signals
from celery.exceptions import SoftTimeLimitExceeded

from codegen_svc.celery_app import (
    BUILD_TASK,
    HEARTBEAT_SETTING,
    QUEUE_SETTING,
    REQUEST_ID_HEADER,
    SLOW_HEADER,
    STANDS_BACK_HEADER,
    TRACEPARENT_HEADER,
)
from codegen_svc.sandbox.connection import TimeLimits
from codegen_svc.sandbox.end_errors import TimeLimitError
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.build_kernel import BuildResult, build_kernel
from codegen_svc.worker.pool_process import WorkerProcess
from kernelfarm import spans
from kernelfarm.cache import Lease, PublishStatus, UnsignedVariant
from kernelfarm.cache.redis_keys import tenant_of
from kernelfarm.digest import kernel_key
from kernelfarm.errors import (
    CallerError,
    ErrorFacts,
    InternalError,
    KernelRejectedError,
    UnavailableError,
    error_facts,
)
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import KERNEL_COMPILE_SECONDS
from kernelfarm.service.metrics.processes import join_shared_metrics
from kernelfarm.service.priority import yield_to_frontends
from kernelfarm.service.settings import load_settings
from kernelfarm.signing.tags import tenant_tag
from kernelfarm.targets import target_facts
from kernelfarm.wire.job import job_from_bytes

# Blobs vanish between storing and publishing only if the cache is full: try once more, then fail.
_PUBLISH_ATTEMPTS = 2
# A quick kernel may take this many times its processor time by the clock.
_WALL_FACTOR = 3


@signals.worker_process_init.connect  # type: ignore[untyped-decorator] # Celery has no types
def start_process(**_: object) -> None:
    """Warms up a new worker process before it takes jobs, and reports it."""
    yield_to_frontends()
    join_shared_metrics(f"pool{current_process().index}")
    conf = current_app.conf
    heartbeat_file = Path(conf[HEARTBEAT_SETTING])
    WorkerProcess.start(load_settings(WorkerSettings), conf[QUEUE_SETTING], heartbeat_file)


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator] # nor here
def stop_process(**_: object) -> None:
    """Withdraws the report of a process that ends normally."""
    WorkerProcess.stop()


@shared_task(name=BUILD_TASK, bind=True, ignore_result=True)  # type: ignore[untyped-decorator] # nor here
def build(task: Any, namespace: str, key_hex: str, fence: int) -> None:
    """Builds the kernel of a key, unless its fence is old; the cache holds result or failure."""
    worker = WorkerProcess.current()
    ttl_s = worker.settings.worker_lease_ttl_s
    lease = Lease(bytes.fromhex(key_hex), uuid.uuid4().hex, fence, ttl_s, attempts=0)
    cache = worker.cache(namespace)
    request_id = task.request.get(REQUEST_ID_HEADER, "")
    names: dict[str, Any] = {"request_id": request_id, "key": key_hex, "fence": fence}
    parent = str(task.request.get(TRACEPARENT_HEADER) or "")
    with spans.span("job", parent, vendor=worker.queue), _bound_to_logs(names):
        adopted = cache.adopt(lease)
        if adopted is None:
            get_logger().info("job_dropped", reason="its fence is old, or it is being built")
        elif not adopted.job:
            # The edge notices that the lease is released, and queues the kernel again with its
            # input.
            cache.release(lease)
            get_logger().warning("job_input_missing")
        else:
            get_logger().info("job_begun")
            is_slow = bool(task.request.get(SLOW_HEADER))
            stands_back = bool(task.request.get(STANDS_BACK_HEADER))
            job = _Job(namespace, adopted.lease, adopted.job, is_slow, stands_back)
            began_s = time.monotonic()
            with cache.lease_renewal(lease):
                outcome = _run(worker, job)
            if outcome.text.startswith(PublishStatus.FENCED.value):
                cache.release(lease)  # it lost its lease but ended normally: no failed attempt
            elapsed_s = time.monotonic() - began_s
            KERNEL_COMPILE_SECONDS.labels(worker.queue, outcome.label).observe(elapsed_s)
            get_logger().info("job_done", outcome=outcome.text)


def _bound_to_logs(names: dict[str, Any]) -> AbstractContextManager[None]:
    """Adds names to the log lines of a block, with the id of the trace if there is one."""
    traced = {"trace_id": trace_id} if (trace_id := spans.trace_id()) else {}
    return structlog.contextvars.bound_contextvars(**names, **traced)


@dataclass(frozen=True, slots=True)
class _Outcome:
    """How a job ended: for the log, and as a label of metrics."""

    text: str
    label: str


@dataclass(frozen=True, slots=True)
class _Job:
    """An adopted job.

    A slow one has the longest time limit. Slow jobs, and those that stand back, compile at a lower
    priority.
    """

    namespace: str
    lease: Lease
    content: bytes
    is_slow: bool
    stands_back: bool


def _run(worker: WorkerProcess, job: _Job) -> _Outcome:
    """Publishes the result or the failure of an adopted job."""
    limit_s = worker.settings.job_time_limit_s
    try:
        published = _build_and_publish(worker, job)
        label = "built" if published is PublishStatus.OK else "not_published"
        return _Outcome(published.value, label)
    except TimeLimitError as caught:
        if not job.is_slow and worker.settings.quick_time_limit_s < limit_s:
            return _Outcome(_requeue_as_slow(worker, job), "slow")
        error: Exception = caught
    except SoftTimeLimitExceeded:
        error = KernelRejectedError(f"the compilation took longer than {limit_s:g} s")
    except Exception as caught:  # the edge of the process: every failure is published
        error = caught
    facts, ttl_s = _failure(worker, error)
    status = worker.cache(job.namespace).put_failure(job.lease, facts, ttl_s)
    return _Outcome(f"{status.value} {facts.reason}", _failure_label(error))


def _failure_label(error: Exception) -> str:
    """Whose failure it is: the caller's (rejected), the machine's (unavailable), or our own."""
    if isinstance(error, CallerError):
        return "rejected"
    is_shortage = isinstance(error, (UnavailableError, MemoryError, OSError))
    return "unavailable" if is_shortage else "failed"


def _requeue_as_slow(worker: WorkerProcess, job: _Job) -> str:
    """Releases the job's lease, so that an edge that waits sends it again as a slow one."""
    cache = worker.cache(job.namespace)
    cache.mark_slow(job.lease.key)
    cache.release(job.lease)
    cache.count("slow_kernels", 1)
    return "found to be slow"


def _build_and_publish(worker: WorkerProcess, job: _Job) -> PublishStatus:
    kernel, target_name = job_from_bytes(job.content)
    target = target_facts(target_name)
    # Computed here, so that the signed key is that of the compiled kernel, whatever its storage
    # key.
    key = kernel_key(kernel, target_name)
    backend = worker.backend()
    if target.vendor != backend.vendor:
        raise InternalError(f"a job for {target_name} is in the queue of {backend.vendor}")
    time_limits = _time_limits(worker.settings, job)
    build = partial(backend.compile, time_limits=time_limits, namespace=job.namespace)
    with structlog.contextvars.bound_contextvars(kernel=kernel.name, target=target_name):
        started = time.monotonic()
        try:
            with spans.span("compile", target=target_name, kernel=kernel.name):
                try:
                    result = build_kernel(backend, kernel, target, key, time.monotonic, build)
                finally:
                    for stage in backend.stage_times:
                        spans.record(f"stage: {stage.name}", stage.began_ns, stage.ended_ns)
        finally:
            _record_processor_time(worker, job, backend.spent_s)
        elapsed_ms = round((time.monotonic() - started) * 1e3, 3)
        get_logger().info("kernel_built", variants=len(result.variants), elapsed_ms=elapsed_ms)
    return _publish(worker, job, key, result)


def _time_limits(settings: WorkerSettings, job: _Job) -> TimeLimits:
    """The limits of a compilation.

    If it is expected to be quick, the tighter limit is on processor time, because hosts are busy.
    """
    quick_s, limit_s = settings.quick_time_limit_s, settings.job_time_limit_s
    niceness = settings.slow_niceness if job.is_slow or job.stands_back else 0
    if job.is_slow:
        return TimeLimits(limit_s, math.ceil(limit_s), niceness)
    wall_s = min(limit_s, _WALL_FACTOR * quick_s)
    return TimeLimits(wall_s, math.ceil(min(limit_s, quick_s)), niceness)


def _record_processor_time(worker: WorkerProcess, job: _Job, spent_s: float) -> None:
    """Adds a compilation's processor time to its tenant's counter, and logs it."""
    spent_ms = round(spent_s * 1e3)
    get_logger().info("processor_time", spent_ms=spent_ms, is_slow=job.is_slow)
    try:
        worker.cache(job.namespace).count("processor_ms", spent_ms)
    except UnavailableError as error:  # the result matters more than the counter
        get_logger().warning("processor_time_lost", message=str(error))


@spans.in_span("publish kernel")
def _publish(worker: WorkerProcess, job: _Job, key: bytes, result: BuildResult) -> PublishStatus:
    namespace, lease = job.namespace, job.lease
    cache = worker.cache(namespace)
    variants = _of_tenant(result.variants, tenant_of(namespace))
    for _ in range(_PUBLISH_ATTEMPTS):
        cache.put_blobs(result.blobs)
        published = cache.publish(lease, variants, key=key)
        if published is not PublishStatus.MISSING_BLOB:
            return published
    raise UnavailableError("the cache evicts blobs as soon as they are stored: give it more memory")


def _of_tenant(variants: tuple[UnsignedVariant, ...], tenant: str) -> tuple[UnsignedVariant, ...]:
    """The variants with the tenant's tag, so that invalidating the tenant makes them stale."""
    if not tenant:
        return variants
    return tuple(replace(v, tags=(*v.tags, tenant_tag(tenant))) for v in variants)


def _failure(worker: WorkerProcess, error: Exception) -> tuple[ErrorFacts, float]:
    """The facts of a failure to record, and for how long."""
    settings = worker.settings
    if isinstance(error, CallerError):
        get_logger().info("kernel_rejected", message=str(error))
        return error_facts(error), settings.rejection_ttl_s
    if isinstance(error, (MemoryError, OSError)):
        get_logger().warning("job_out_of_resources", exc_info=error)
        error = UnavailableError(f"the worker is short of resources: {error}")
    if isinstance(error, UnavailableError):
        get_logger().warning("job_unavailable", message=str(error))
        return error_facts(error), settings.shortage_ttl_s
    get_logger().error("job_failed", exc_info=error)
    if not isinstance(error, InternalError):
        error = InternalError(f"the backend failed with {type(error).__name__}: {error}")
    return error_facts(error), settings.bug_ttl_s
