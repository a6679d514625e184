"""Checks, signs and stores what became of a compiled job: its variants, or why it failed."""

from __future__ import annotations

from dataclasses import replace

from celery.exceptions import SoftTimeLimitExceeded

from codegen_svc.sandbox.end_errors import TimeLimitError
from codegen_svc.worker.build_kernel import BuildResult, checked_result
from codegen_svc.worker.job_outcomes import JobOutcome, failure_label, recorded_failure
from codegen_svc.worker.pool_process import WorkerProcess
from codegen_svc.worker.worker_job import WorkerJob
from kernelfarm import spans
from kernelfarm.cache import PublishStatus, UnsignedVariant
from kernelfarm.cache.redis_keys import tenant_of
from kernelfarm.errors import InternalError, KernelLimitError, UnavailableError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.signing.tags import tenant_tag

# Blobs vanish between storing and publishing only if the cache is full: try once more, then fail.
_PUBLISH_ATTEMPTS = 2


def publish_job(worker: WorkerProcess, job: WorkerJob) -> JobOutcome:
    """Publishes the result or the failure of a compiled job; says how it ended.

    Raises:
        UnavailableError: the cache does not serve.
    """
    limit_s = worker.settings.job_time_limit_s
    try:
        published = _publish(worker, job)
        label = "built" if published is PublishStatus.OK else "not_published"
        return JobOutcome(published.value, label)
    except TimeLimitError as caught:
        if not job.group.is_slow and worker.settings.quick_time_limit_s < limit_s:
            return JobOutcome(_requeue_as_slow(job), "slow")
        error: Exception = caught
    except SoftTimeLimitExceeded:
        error = KernelLimitError(f"the compilation took longer than {limit_s:g} s")
    except Exception as caught:  # the edge of the process: every failure is published
        error = caught
    facts, ttl_s = recorded_failure(worker.settings, error)
    status = job.cache.put_failure(job.lease, facts, ttl_s)
    return JobOutcome(f"{status.value} {facts.reason}", failure_label(error))


def _requeue_as_slow(job: WorkerJob) -> str:
    """Releases the job's lease, so that an edge that waits sends it again as a slow one."""
    job.cache.mark_slow(job.lease.key)
    job.cache.release(job.lease)
    job.cache.count("slow_kernels", 1)
    return "found to be slow"


def _publish(worker: WorkerProcess, job: WorkerJob) -> PublishStatus:
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
        _count_processor_time(job, spent_ms)
        raise
    cost_ms = (compilation.ended_ns - compilation.began_ns) / 1e6
    backend = worker.backend()
    result = checked_result(backend, found.kernel, found.target, found.key, built, cost_ms)
    get_logger().info("kernel_built", variants=len(result.variants), elapsed_ms=round(cost_ms, 3))
    with spans.span("publish kernel", job.traceparent):
        return _store(job, found.key, result, spent_ms)


def _store(job: WorkerJob, key: bytes, result: BuildResult, spent_ms: int) -> PublishStatus:
    variants = _of_tenant(result.variants, tenant_of(job.group.namespace))
    counts = {"processor_ms": spent_ms}
    for _ in range(_PUBLISH_ATTEMPTS):
        published = job.cache.publish(
            job.lease, variants, key=key, contents=result.blobs, counts=counts
        )
        if published is not PublishStatus.MISSING_BLOB:
            return published
        counts = {}
    raise UnavailableError("the cache evicts blobs as soon as they are stored: give it more memory")


def _count_processor_time(job: WorkerJob, spent_ms: int) -> None:
    """Adds a failed compilation's processor time to its tenant's counter."""
    try:
        job.cache.count("processor_ms", spent_ms)
    except UnavailableError as error:  # the failure matters more than the counter
        get_logger().warning("processor_time_lost", message=str(error))


def _of_tenant(variants: tuple[UnsignedVariant, ...], tenant: str) -> tuple[UnsignedVariant, ...]:
    """The variants with the tenant's tag, so that invalidating the tenant makes them stale."""
    if not tenant:
        return variants
    return tuple(replace(v, tags=(*v.tags, tenant_tag(tenant))) for v in variants)
