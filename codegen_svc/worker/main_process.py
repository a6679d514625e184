"""A worker's main process: Celery's worker, with a watchdog for its consumer."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path

from celery import signals
from celery.platforms import SecurityWarning
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from codegen_svc.celery_app import BROKER_TIMEOUT_S, HEARTBEAT_SETTING, QUEUE_SETTING, make_app
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.consumer import ConsumerStatus, status_step
from codegen_svc.worker.watchdog import start_watchdog
from kernelfarm.cache.connection import server_answers
from kernelfarm.service.metrics.declarations import RUNNING_JOBS, WORKER_SLOTS
from kernelfarm.service.metrics.endpoint import added_collector, metrics_endpoint
from kernelfarm.service.metrics.processes import shared_metrics


def run_worker(settings: WorkerSettings, queue: str, concurrency: int) -> int:
    """Serves one queue until SIGTERM, then finishes the running jobs; returns the exit status.

    Jobs run in spawned processes, because forking is unsafe after LLVM or gRPC was imported. A
    worker that takes no jobs although the broker answers ends itself with `WEDGED_EXIT_CODE`.
    """
    # Celery warns root about pickle. These messages are JSON, and containers have users of their
    # own.
    warnings.simplefilter("ignore", SecurityWarning)
    app = make_app(settings)
    app.conf[QUEUE_SETTING] = queue
    with _heartbeat_file(settings) as heartbeat_file, _shared_metrics(settings):
        app.conf[HEARTBEAT_SETTING] = str(heartbeat_file)
        status = ConsumerStatus(heartbeat_file)
        app.steps["consumer"].add(status_step(status))

        def drain(**_: object) -> None:
            status.is_draining = True

        signals.worker_shutting_down.connect(drain, weak=False)
        broker_answers = partial(server_answers, settings.broker_url, BROKER_TIMEOUT_S)
        start_watchdog(status, broker_answers, settings.worker_wedged_after_s)
        worker = app.Worker(
            hostname=f"{queue}@{socket.gethostname()}:{os.getpid()}",
            queues=[queue],
            pool="prefork",
            concurrency=concurrency,
            loglevel="WARNING",
            without_mingle=True,
            without_gossip=True,
            without_heartbeat=True,
            quiet=True,
        )
        with metrics_endpoint(settings), added_collector(WorkerMetrics(status, queue)):
            worker.start()
        return int(worker.exitcode or 0)


class WorkerMetrics(Collector):
    """The processes of a worker; `collect` runs in another thread, and only reads numbers."""

    def __init__(self, status: ConsumerStatus, vendor: str) -> None:
        self._status = status
        self._vendor = vendor

    def collect(self) -> Iterable[Metric]:
        """The metrics now."""
        running, slots = RUNNING_JOBS.metric(), WORKER_SLOTS.metric()
        running.add_metric([self._vendor], self._status.busy)
        slots.add_metric([self._vendor], self._status.up)
        return [running, slots]


@contextmanager
def _shared_metrics(settings: WorkerSettings) -> Iterator[None]:
    """Lets the pool processes add to the metrics of this process, if it serves them."""
    with shared_metrics() if settings.metrics_listen else nullcontext():
        yield


@contextmanager
def _heartbeat_file(settings: WorkerSettings) -> Iterator[Path]:
    """The file of the settings, or a private one; the files of pool processes are beside it."""
    if settings.worker_heartbeat_file is not None:
        path = settings.worker_heartbeat_file
        for old in path.parent.glob(f"{path.name}.*"):
            old.unlink(missing_ok=True)
        yield path
        return
    folder = Path(tempfile.mkdtemp(prefix="kernelfarm-worker-"))
    try:
        yield folder / "heartbeat"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
