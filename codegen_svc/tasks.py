"""What a worker does with one message: adopt the lease, compile, publish."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from functools import partial
from typing import Any

import structlog
from celery import current_app, shared_task, signals
from celery.exceptions import SoftTimeLimitExceeded

from codegen_svc.build_kernel import build_kernel
from codegen_svc.celery_app import BUILD_TASK, QUEUE_SETTING, REQUEST_ID_HEADER
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker_process import WorkerProcess
from kernelfarm.cache import Lease, Published, Variant
from kernelfarm.cache.names import tenant_of
from kernelfarm.cache.tags import tenant_tag
from kernelfarm.digest import kernel_key
from kernelfarm.errors import (
    CallerError,
    ErrorFacts,
    InternalError,
    KernelRejectedError,
    UnavailableError,
    error_facts,
)
from kernelfarm.service.logs import get_logger
from kernelfarm.service.settings import load_settings
from kernelfarm.targets import target_facts
from kernelfarm.wire.job import job_from_bytes

# Blobs vanish between storing and publishing only if the cache is full: try again, then give up.
_PUBLISH_ATTEMPTS = 2


@signals.worker_process_init.connect  # type: ignore[untyped-decorator] # Celery has no types
def start_process(**_: object) -> None:
    """Warms a fresh worker process up before it takes jobs, and reports it."""
    WorkerProcess.start(load_settings(WorkerSettings), current_app.conf[QUEUE_SETTING])


@signals.worker_process_shutdown.connect  # type: ignore[untyped-decorator] # nor here
def stop_process(**_: object) -> None:
    """Withdraws the report of a process that ends in order."""
    WorkerProcess.stop()


@shared_task(name=BUILD_TASK, bind=True, ignore_result=True)  # type: ignore[untyped-decorator] # nor here
def build(task: Any, namespace: str, key_hex: str, fence: int) -> None:
    """Builds the kernel of a key, unless its fence is old; every end is told through the cache."""
    worker = WorkerProcess.current()
    ttl_s = worker.settings.worker_lease_ttl_s
    lease = Lease(bytes.fromhex(key_hex), uuid.uuid4().hex, fence, ttl_s, attempts=0)
    cache = worker.cache(namespace)
    request_id = task.request.get(REQUEST_ID_HEADER, "")
    with structlog.contextvars.bound_contextvars(request_id=request_id, key=key_hex, fence=fence):
        adopted = cache.adopt(lease)
        if adopted is None:
            get_logger().info("job_dropped", why="its fence is old, or it is being built")
        elif not adopted.job:
            # The edge sees the lease go, and queues the kernel again with its input.
            cache.release(lease)
            get_logger().warning("job_input_missing")
        else:
            get_logger().info("job_begun")
            with cache.kept(lease):
                outcome = _run(worker, namespace, adopted.lease, adopted.job)
            get_logger().info("job_done", outcome=outcome)


def _run(worker: WorkerProcess, namespace: str, lease: Lease, job: bytes) -> str:
    """Publishes the result or the failure of a job that was adopted; the outcome as a word."""
    try:
        return _build_and_publish(worker, namespace, lease, job).value
    except SoftTimeLimitExceeded:
        limit_s = worker.settings.job_time_limit_s
        error: Exception = KernelRejectedError(f"the compilation took longer than {limit_s} s")
    except Exception as caught:  # the edge of the process: every failure is told to the waiters
        error = caught
    facts, ttl_s = _failure(worker, error)
    return f"{worker.cache(namespace).put_failure(lease, facts, ttl_s).value} {facts.reason}"


def _build_and_publish(
    worker: WorkerProcess, namespace: str, lease: Lease, job: bytes
) -> Published:
    kernel, target_name = job_from_bytes(job)
    target = target_facts(target_name)
    # Our own reckoning: what is signed is the key of what was compiled, wherever it lies.
    key = kernel_key(kernel, target_name)
    backend = worker.backend()
    if target.vendor != backend.vendor:
        raise InternalError(f"a job for {target_name} is in the queue of {backend.vendor}")
    build = partial(backend.compile, wall_s=worker.settings.job_time_limit_s, niceness=0)
    with structlog.contextvars.bound_contextvars(kernel=kernel.name, target=target_name):
        started = time.monotonic()
        result = build_kernel(backend, kernel, target, key, time.monotonic, build)
        elapsed_ms = round((time.monotonic() - started) * 1e3, 3)
        get_logger().info("kernel_built", variants=len(result.variants), elapsed_ms=elapsed_ms)
    cache = worker.cache(namespace)
    variants = _of_tenant(result.variants, tenant_of(namespace))
    for _ in range(_PUBLISH_ATTEMPTS):
        cache.put_blobs(result.blobs)
        published = cache.publish(lease, variants, key=key)
        if published is not Published.MISSING_BLOB:
            return published
    raise UnavailableError("the cache drops blobs as soon as they are stored: give it more memory")


def _of_tenant(variants: tuple[Variant, ...], tenant: str) -> tuple[Variant, ...]:
    """Variants that an invalidation of the tenant's hits."""
    if not tenant:
        return variants
    return tuple(replace(v, tags=(*v.tags, tenant_tag(tenant))) for v in variants)


def _failure(worker: WorkerProcess, error: Exception) -> tuple[ErrorFacts, float]:
    """What waiters are told of a failure, and for how long later callers are told the same."""
    settings = worker.settings
    if isinstance(error, CallerError):
        get_logger().info("kernel_rejected", message=str(error))
        return error_facts(error), settings.rejection_ttl_s
    if isinstance(error, (MemoryError, OSError)):
        get_logger().warning("job_short_of_resources", exc_info=error)
        error = UnavailableError(f"the worker is short of resources: {error}")
    if isinstance(error, UnavailableError):
        get_logger().warning("job_unserved", message=str(error))
        return error_facts(error), settings.shortage_ttl_s
    get_logger().error("job_failed", exc_info=error)
    if not isinstance(error, InternalError):
        error = InternalError(f"the backend failed with {type(error).__name__}: {error}")
    return error_facts(error), settings.bug_ttl_s
