"""The state of one worker process: its settings, caches, heartbeat and report."""

from __future__ import annotations

import gc
import os
import socket
import threading
import time
from pathlib import Path
from typing import ClassVar

from celery import current_app, signals

from codegen_svc.celery_app import QueuedGroup
from codegen_svc.sandbox import SandboxedBackend
from codegen_svc.settings import WorkerSettings
from codegen_svc.worker.build_kernel import toolchain_of
from codegen_svc.worker.consumer import BUSY, IDLE, WARM, process_file
from codegen_svc.worker.waiting_groups import WaitingGroups
from codegen_svc.worker.watchdog import WorkerState
from kernelfarm import spans
from kernelfarm.cache import SigningPolicy, Space, WorkerCache, WorkerReport
from kernelfarm.errors import InternalError, KernelfarmError, UnavailableError
from kernelfarm.service.liveness import HeartbeatFile, read_heartbeat
from kernelfarm.service.logs.logger import configure_logs, get_logger
from kernelfarm.service.metrics.endpoint import state_build

_BEAT_EVERY_S = 1.0
_CHECK_INTERVAL_S = 0.2
_TAKES_JOBS = {WorkerState.POLLING.value, WorkerState.SERVING.value}

# How long to wait for a report in progress before its connection is closed.
_REPORT_ENDS_S = 2.0


class WorkerProcess:
    """The state that the tasks of one pool process share."""

    _current: ClassVar[WorkerProcess | None] = None

    def __init__(self, settings: WorkerSettings, queue: str, heartbeat_file: Path) -> None:
        self.settings = settings
        self._worker_file = heartbeat_file
        self._heartbeat: HeartbeatFile | None = None
        self._has_reported = False
        self._has_job = False
        self.queue = queue
        self._name = f"{queue}@{socket.gethostname()}:{os.getpid()}"
        self._cache: WorkerCache | None = None
        self._waiting = WaitingGroups(current_app, queue)
        self._is_stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._backend: SandboxedBackend | KernelfarmError | None = None
        self._prepared_s = float("-inf")
        self._own_report: WorkerReport | None = None
        self._trust = SigningPolicy(signer=settings.signer(Space.KERNELS))

    @classmethod
    def start(cls, settings: WorkerSettings, queue: str, heartbeat_file: Path) -> None:
        """Makes this process's state, warms up the toolchain, and starts to report.

        `heartbeat_file` is that of its worker.
        """
        configure_logs(settings, f"worker-{queue}")
        spans.start_export(f"worker-{queue}")
        cls._current = process = cls(settings, queue, heartbeat_file)
        process._begin()

    @classmethod
    def current(cls) -> WorkerProcess:
        """This process's state.

        Raises:
            InternalError: the process was not started as a worker.
        """
        if cls._current is None:
            raise InternalError("a task runs in a process that was not started as a worker")
        return cls._current

    @classmethod
    def stop(cls) -> None:
        """Withdraws the report and closes the connections; safe to call twice."""
        process, cls._current = cls._current, None
        if process is not None:
            process._end()
            spans.end_export()

    def cache(self, namespace: str) -> WorkerCache:
        """The cache of a namespace; all namespaces share connections."""
        if self._cache is None:
            self._cache = WorkerCache(
                self.settings.cache_url, namespace=self.settings.namespace, signing=self._trust
            )
        return self._cache.for_namespace(namespace)

    def waiting_group(self) -> QueuedGroup | None:
        """A group that waits in the queue, while this worker takes jobs; None without one."""
        return self._waiting.take() if self._takes_jobs() else None

    def backend(self) -> SandboxedBackend:
        """The queue's toolchain, whose compilations run in processes of their own.

        If it could not be started, it is tried again every few seconds.

        Raises:
            KernelfarmError: it is missing or does not work; the message says what to do.
        """
        if self._backend is None:
            raise InternalError("a task runs before its process is prepared")
        is_due = time.monotonic() - self._prepared_s > self.settings.sandbox_retry_s
        if isinstance(self._backend, UnavailableError) and is_due:
            self._own_report = self._prepared()
        if isinstance(self._backend, KernelfarmError):
            raise self._backend
        return self._backend

    def _begin(self) -> None:
        self._own_report = self._prepared()
        gc.freeze()  # imported objects stay: no full collection during a job
        # Not before: until its first heartbeat this process is starting. On a busy machine that
        # takes longer than a process may be silent afterwards; Celery limits it.
        self._heartbeat = HeartbeatFile(process_file(self._worker_file, os.getpid()))
        for work in (self._beat, self._report):
            thread = threading.Thread(target=work, daemon=True)
            thread.start()
            self._threads.append(thread)

    @classmethod
    def set_busy(cls, *, has_job: bool) -> None:
        """Records whether this process has a job."""
        if cls._current is not None:
            cls._current._has_job = has_job
            cls._current._write_heartbeat()

    def _prepared(self) -> WorkerReport:
        """Warms up the toolchain; if it is missing, the report names no toolchain."""
        self._prepared_s = time.monotonic()
        try:
            backend = SandboxedBackend(
                self.queue,
                self.settings.sandbox_limits(),
                demanded=self.settings.sandbox,
                wall_s=self.settings.job_time_limit_s,
            )
            toolchain, is_runnable = toolchain_of(backend), backend.makes_runnable_binaries()
        except KernelfarmError as error:
            # Jobs of this queue fail with this error, which says what to install.
            self._backend = error
            get_logger().error("toolchain_missing", message=str(error))
            return WorkerReport(self._name, self.queue, "", makes_runnable_binaries=False)
        self._backend = backend
        state_build(f"worker-{self.queue}", toolchain)
        get_logger().info(
            "worker_ready",
            toolchain=toolchain,
            warm_up_ms=round(backend.warm_up_ms, 3),
            sandbox=str(backend.level),
        )
        return WorkerReport(self._name, self.queue, toolchain, is_runnable)

    def _write_heartbeat(self) -> None:
        if self._heartbeat is None:
            return
        # Busy comes first: a worker whose processes are busy polls for no job and must not count as
        # stuck.
        ready = IDLE if self._has_reported and self._can_compile() else WARM
        self._heartbeat.beat(BUSY if self._has_job else ready)

    def _beat(self) -> None:
        while True:
            self._write_heartbeat()
            if self._is_stopping.wait(_BEAT_EVERY_S):
                return

    def _report(self) -> None:
        """Reports while the worker takes jobs, and withdraws the report when it does not."""
        reported_s = float("-inf")
        while True:
            due = time.monotonic() - reported_s > self.settings.report_every_s
            takes_jobs = self._takes_jobs()
            if takes_jobs and due:
                reported_s = time.monotonic() if self._reported() else reported_s
            elif not takes_jobs and reported_s > 0:
                get_logger().warning("report_withdrawn", message="the worker takes no jobs now")
                self._withdraw()
                reported_s = float("-inf")
            if self._is_stopping.wait(_CHECK_INTERVAL_S):
                return

    def _takes_jobs(self) -> bool:
        beat = read_heartbeat(self._worker_file)
        return (
            beat is not None and beat.is_fresh and beat.state in _TAKES_JOBS and self._can_compile()
        )

    def _can_compile(self) -> bool:
        """False while the compiling processes cannot be started again; each job tries to."""
        return not isinstance(self._backend, SandboxedBackend) or self._backend.can_compile

    def _reported(self) -> bool:
        if self._own_report is None:
            return False
        try:
            self.cache(self.settings.namespace).report(self._own_report)
        except UnavailableError as error:
            get_logger().warning("report_failed", message=str(error))
            return False
        self._has_reported = True
        self._write_heartbeat()  # now, because the worker is ready once this process has reported
        return True

    def _withdraw(self) -> None:
        try:
            self.cache(self.settings.namespace).withdraw(self._name)
        except UnavailableError as error:
            get_logger().warning("withdrawal_failed", message=str(error))

    def _end(self) -> None:
        self._is_stopping.set()
        for thread in self._threads:
            thread.join(_REPORT_ENDS_S)
        self._withdraw()
        self._waiting.close()
        if self._cache is not None:
            self._cache.close()
        if isinstance(self._backend, SandboxedBackend):
            self._backend.close()


@signals.task_prerun.connect  # type: ignore[untyped-decorator] # Celery has no types
def _job_begins(**_: object) -> None:
    WorkerProcess.set_busy(has_job=True)


@signals.task_postrun.connect  # type: ignore[untyped-decorator] # nor here
def _job_ends(**_: object) -> None:
    WorkerProcess.set_busy(has_job=False)
