"""The state of one worker process: its settings, its stores, its report."""

from __future__ import annotations

import gc
import os
import socket
import threading
from typing import ClassVar

from codegen_svc.build_kernel import toolchain_of
from codegen_svc.sandbox import SandboxedBackend
from codegen_svc.settings import WorkerSettings
from kernelfarm.cache import Space, Trust, WorkerCache, WorkerReport
from kernelfarm.errors import InternalError, KernelfarmError, UnavailableError
from kernelfarm.service.logs import configure_logs, get_logger

# A report under way ends before its connection does; without a server, not for ever.
_REPORT_ENDS_S = 2.0


class WorkerProcess:
    """What the tasks of one process share; a pool's processes are spawned, so each has its own."""

    _current: ClassVar[WorkerProcess | None] = None

    def __init__(self, settings: WorkerSettings, queue: str) -> None:
        self.settings = settings
        self._queue = queue
        self._name = f"{queue}@{socket.gethostname()}:{os.getpid()}"
        self._cache: WorkerCache | None = None
        self._is_stopping = threading.Event()
        self._reporter: threading.Thread | None = None
        self._backend: SandboxedBackend | KernelfarmError | None = None
        self._trust = Trust(signer=settings.signer(Space.KERNELS))

    @classmethod
    def start(cls, settings: WorkerSettings, queue: str) -> None:
        """Makes this process's state: imports the toolchain, then reports from a thread."""
        configure_logs(settings, f"worker-{queue}")
        cls._current = process = cls(settings, queue)
        process._begin()

    @classmethod
    def current(cls) -> WorkerProcess:
        """This process's state.

        Raises:
            InternalError: the process was never started as a worker.
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

    def cache(self, namespace: str) -> WorkerCache:
        """The store of a namespace; all share connections."""
        if self._cache is None:
            self._cache = WorkerCache(
                self.settings.cache_url, namespace=self.settings.namespace, trust=self._trust
            )
        return self._cache.within(namespace)

    def backend(self) -> SandboxedBackend:
        """The queue's toolchain, whose compilations run in processes of their own.

        Raises:
            KernelfarmError: it is missing or does not work; the message says what to do.
        """
        if self._backend is None:
            raise InternalError("a task runs before its process is prepared")
        if isinstance(self._backend, KernelfarmError):
            raise self._backend
        return self._backend

    def _begin(self) -> None:
        report = self._prepared()
        gc.freeze()  # what was imported stays: no full collection in the middle of a job
        self._reporter = threading.Thread(target=self._report, args=(report,), daemon=True)
        self._reporter.start()

    def _prepared(self) -> WorkerReport:
        """Warms the toolchain up; a worker without it reports too, with an empty toolchain."""
        try:
            backend = SandboxedBackend(
                self._queue,
                self.settings.sandbox_limits(),
                demanded=self.settings.sandbox,
                wall_s=self.settings.job_time_limit_s,
            )
            toolchain, is_runnable = toolchain_of(backend), backend.makes_runnable_binaries()
        except KernelfarmError as error:
            # Jobs of this queue will be answered with this error, which says what to install.
            self._backend = error
            get_logger().error("toolchain_missing", message=str(error))
            return WorkerReport(self._name, self._queue, "", makes_runnable_binaries=False)
        self._backend = backend
        get_logger().info(
            "worker_ready",
            toolchain=toolchain,
            warm_up_ms=round(backend.warm_up_ms, 3),
            sandbox=str(backend.level),
        )
        return WorkerReport(self._name, self._queue, toolchain, is_runnable)

    def _report(self, report: WorkerReport) -> None:
        while True:
            try:
                self.cache(self.settings.namespace).report(report)
            except UnavailableError as error:
                get_logger().warning("report_failed", message=str(error))
            if self._is_stopping.wait(self.settings.report_every_s):
                return

    def _end(self) -> None:
        self._is_stopping.set()
        if self._reporter is not None:
            self._reporter.join(_REPORT_ENDS_S)
        try:
            self.cache(self.settings.namespace).withdraw(self._name)
        except UnavailableError as error:
            get_logger().warning("withdrawal_failed", message=str(error))
        if self._cache is not None:
            self._cache.close()
        if isinstance(self._backend, SandboxedBackend):
            self._backend.close()
