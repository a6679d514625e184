"""The task of a worker: builds the kernels of a message; the cache holds results and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from billiard.process import current_process
from celery import current_app, shared_task, signals

from codegen_svc.celery_app import (
    BUILD_TASK,
    HEARTBEAT_SETTING,
    QUEUE_SETTING,
    QueuedGroup,
)
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.job_pipeline import JobPipeline
from codegen_svc.worker.pool_process import WorkerProcess
from kernelfarm.service.metrics.processes import join_shared_metrics
from kernelfarm.service.priority import yield_to_frontends
from kernelfarm.service.settings import load_settings


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
def build_group(task: Any, namespace: str, jobs: list[list[Any]]) -> None:
    """Builds the kernel of each job, unless its fence is old; then those of groups that wait."""
    process = WorkerProcess.current()
    group = QueuedGroup.received(process.queue, task.request, namespace, jobs)
    JobPipeline(process, process.waiting_group).run(group)
