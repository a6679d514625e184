"""The queues: one Celery queue for each vendor, JSON messages that carry keys and never payloads.

What a lost, late or doubled message does is decided by the lease in the cache, not by the broker:
a task whose fence is old exits at once. Celery's own redelivery is the second net.
"""

from __future__ import annotations

import asyncio
import os
import socket
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from celery import Celery, signals
from celery.platforms import SecurityWarning
from kombu.exceptions import KombuError, OperationalError

from codegen_svc.settings import FarmSettings
from kernelfarm.errors import UnavailableError

BUILD_TASK = "codegen.build"

# The message header that takes a request's id to the worker's log.
REQUEST_ID_HEADER = "kernelfarm_request_id"
# The message header that tells a kernel which is expected to compile long.
SLOW_HEADER = "kernelfarm_slow"

# Where a worker's queue rides in the configuration, which the pool's processes inherit.
QUEUE_SETTING = "kernelfarm_queue"

# Redis queues serve lower numbers first: one list for somebody waiting, one for warm-up.
INTERACTIVE = 0
WARM_UP = 9

# The sandbox's limit comes first; where it fails the soft one reports, and the hard one ends a
# process that does not listen.
_SOFT_LIMIT_MARGIN_S = 5.0
_HARD_LIMIT_MARGIN_S = 15.0


@signals.setup_logging.connect  # type: ignore[untyped-decorator] # Celery has no types
def leave_logs_alone(**_: object) -> None:
    """Keeps Celery from configuring the logs, which our processes do themselves."""


# What kombu raises when the broker does not answer.
_BROKER_ERRORS = (KombuError, OperationalError, OSError)


def make_app(settings: FarmSettings) -> Celery:
    """The Celery application of an edge or a worker."""
    app = Celery("codegen", include=["codegen_svc.tasks"], set_as_current=True)
    hard_limit_s = settings.job_time_limit_s + _HARD_LIMIT_MARGIN_S
    app.conf.update(
        broker_url=_kombu_url(settings.broker_url),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=4,
        broker_transport_options={
            "visibility_timeout": 2 * hard_limit_s,
            # Looks for lost messages this often; kombu's default would be each 100 s.
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "priority_steps": [INTERACTIVE, WARM_UP],
            "queue_order_strategy": "priority",
            "socket_keepalive": True,
            "socket_connect_timeout": 2.0,
            "retry_on_timeout": True,
            "max_retries": 3,
        },
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        task_create_missing_queues=True,
        task_time_limit=hard_limit_s,
        task_soft_time_limit=settings.job_time_limit_s + _SOFT_LIMIT_MARGIN_S,
        worker_prefetch_multiplier=1,
        worker_pool_start_method="spawn",
        worker_proc_alive_timeout=60.0,
        worker_enable_remote_control=False,
        worker_hijack_root_logger=False,
        worker_redirect_stdouts=False,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_send_task_events=False,
        event_queue_expires=60.0,
    )
    return app


def run_worker(settings: FarmSettings, queue: str, concurrency: int) -> int:
    """Serves one queue until SIGTERM, which lets running jobs end first; the exit status.

    Jobs run in spawned processes: forking after LLVM or gRPC was imported is unsafe.
    """
    # Celery warns root because of pickle; these messages are JSON, and containers have own users.
    warnings.simplefilter("ignore", SecurityWarning)
    app = make_app(settings)
    app.conf[QUEUE_SETTING] = queue
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
    worker.start()
    return int(worker.exitcode or 0)


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What a task's message carries: which key to build, and under which fence."""

    queue: str
    namespace: str
    key: bytes
    fence: int
    is_warm_up: bool = False
    request_id: str = ""
    is_slow: bool = False


class JobQueue:
    """Sends tasks from an asyncio service; kombu blocks, so it runs in a thread of its own."""

    def __init__(self, settings: FarmSettings) -> None:
        self._app = make_app(settings)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")

    async def send(self, job: QueuedJob) -> None:
        """Queues a job.

        Raises:
            UnavailableError: the broker does not take it.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._send, job)

    async def connect(self) -> None:
        """Connects ahead, so that the first job need not.

        Raises:
            UnavailableError: the broker does not answer yet; `send` will try again.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._connect)

    def close(self) -> None:
        """Ends the connections to the broker."""
        self._thread.shutdown(wait=True)
        self._app.close()

    def _connect(self) -> None:
        try:
            self._app.finalize()
            with self._app.producer_pool.acquire(block=True) as producer:
                producer.connection.ensure_connection(max_retries=1, timeout=2.0)
        except _BROKER_ERRORS as error:
            raise UnavailableError(f"the broker does not answer: {error}") from error

    def _send(self, job: QueuedJob) -> None:
        try:
            self._app.send_task(
                BUILD_TASK,
                args=(job.namespace, job.key.hex(), job.fence),
                queue=job.queue,
                priority=WARM_UP if job.is_warm_up else INTERACTIVE,
                headers={REQUEST_ID_HEADER: job.request_id, SLOW_HEADER: job.is_slow},
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 5, "interval_start": 0.05, "interval_step": 0.2},
            )
        except _BROKER_ERRORS as error:
            raise UnavailableError(f"the broker does not take jobs: {error}") from error


def _kombu_url(url: str) -> str:
    """Kombu's spelling of a Redis URL: its unix sockets have another scheme."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url
