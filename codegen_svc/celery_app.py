"""The queues: one Celery queue for each vendor, JSON messages that carry keys and never payloads.

What a lost, late or doubled message does is decided by the lease in the cache, not by the broker:
a task whose fence is old exits at once, and an edge sends again what no worker took. So the broker
is told of no acknowledgement, and none can be lost: kombu's transport for Redis counts a message
whose acknowledgement failed as one in work for ever, and a worker with such a message takes no
other one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

from celery import Celery, signals
from kombu.exceptions import KombuError, OperationalError

from codegen_svc.settings import CodegenSettings, FarmSettings
from kernelfarm.errors import UnavailableError

BUILD_TASK = "codegen.build"

# The message header that takes a request's id to the worker's log.
REQUEST_ID_HEADER = "kernelfarm_request_id"
# The message header that tells a kernel which is expected to compile long.
SLOW_HEADER = "kernelfarm_slow"
STANDS_BACK_HEADER = "kernelfarm_stands-back"

# Where a worker's queue rides in the configuration, which the pool's processes inherit.
QUEUE_SETTING = "kernelfarm_queue"

# Where a worker's heartbeat file is told to the pool's processes.
HEARTBEAT_SETTING = "kernelfarm_heartbeat_file"

# Redis queues serve lower numbers first: one list for somebody waiting, one for warm-up.
INTERACTIVE = 0
WARM_UP = 9

# A server that is there answers within this time, or is as good as away.
BROKER_TIMEOUT_S = 2.0

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
    app = Celery("codegen", include=["codegen_svc.worker.tasks"], set_as_current=True)
    hard_limit_s = settings.job_time_limit_s + _HARD_LIMIT_MARGIN_S
    app.conf.update(
        broker_url=_kombu_url(settings.broker_url),
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_pool_limit=4,
        broker_transport_options={
            "ack_emulation": False,
            "priority_steps": [INTERACTIVE, WARM_UP],
            "queue_order_strategy": "priority",
            "socket_keepalive": True,
            "socket_connect_timeout": BROKER_TIMEOUT_S,
            # Not for waiting for a job: the event loop reads when there is something.
            "socket_timeout": BROKER_TIMEOUT_S,
            # A connection whose other end is gone, and nobody said so, is dropped after this time.
            "health_check_interval": 5,
            "retry_on_timeout": False,
            "max_retries": 1,
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
        # Takes a message when a process is free, and not by counts that belong to a connection.
        worker_disable_prefetch=True,
        worker_consumer="codegen_svc.worker.consumer:FarmConsumer",
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


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """What a task's message carries: which key to build, under which fence, and how."""

    queue: str
    namespace: str
    key: bytes
    fence: int
    is_warm_up: bool = False
    request_id: str = ""
    is_slow: bool = False
    stands_back: bool = False


class JobQueue:
    """Sends tasks from an asyncio service; kombu blocks, so it runs in a thread of its own."""

    def __init__(self, settings: CodegenSettings) -> None:
        self._app = make_app(settings)
        self._send_s = settings.broker_send_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")

    async def send(self, job: QueuedJob) -> None:
        """Queues a job.

        Raises:
            UnavailableError: the broker does not take it, within seconds.
        """
        await self._in_thread(partial(self._send, job))

    async def connect(self) -> None:
        """Connects ahead, so that the first job need not.

        Raises:
            UnavailableError: the broker does not answer yet; `send` will try again.
        """
        await self._in_thread(self._connect)

    def close(self) -> None:
        """Ends the connections to the broker."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._app.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Does blocking work, whose waits have ends; what did not begin in time never does."""
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.run_in_executor(self._thread, work), self._send_s)
        except TimeoutError:
            raise UnavailableError(
                f"the broker did not take a job within {self._send_s:.0f} s: it hangs, or is"
                " overloaded"
            ) from None

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
                headers={
                    REQUEST_ID_HEADER: job.request_id,
                    SLOW_HEADER: job.is_slow,
                    STANDS_BACK_HEADER: job.stands_back,
                },
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 5, "interval_start": 0.05, "interval_step": 0.2},
            )
        except _BROKER_ERRORS as error:
            raise UnavailableError(f"the broker does not take jobs: {error}") from error


def _kombu_url(url: str) -> str:
    """Kombu's spelling of a Redis URL: its unix sockets have another scheme."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url
