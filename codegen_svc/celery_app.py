"""The queues: one Celery queue for each vendor, JSON messages that carry keys and never payloads.

The lease in the cache decides the effect of a lost, late or doubled message, not the broker: a task
whose fence is old exits at once, and an edge sends a job again if no worker took it. Workers
therefore acknowledge no message. kombu's transport for Redis would count a message whose
acknowledgement failed as one in work for ever, and its worker would take no other message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from celery import Celery, signals
from kombu.exceptions import KombuError, OperationalError

from codegen_svc.broker_transport import use_broker_transport
from codegen_svc.settings import CodegenSettings, FarmSettings
from kernelfarm.errors import UnavailableError

BUILD_TASK = "codegen.build_group"

# Header: true if the kernel is expected to compile long.
SLOW_HEADER = "kernelfarm_slow"
# Header: true if the kernels compile at a lower priority, as their tenant uses more than others.
STANDS_BACK_HEADER = "kernelfarm_stands-back"

# The worker's queue, as a setting of Celery's configuration, which pool processes inherit.
QUEUE_SETTING = "kernelfarm_queue"

# The worker's heartbeat file, in the same configuration.
HEARTBEAT_SETTING = "kernelfarm_heartbeat_file"

# Redis queues serve lower numbers first: one list for jobs that a user waits for, one for warm-up.
INTERACTIVE = 0
WARM_UP = 9

# A broker that has not answered within this time counts as unreachable.
BROKER_TIMEOUT_S = 2.0

# For how long a task may go on with further messages.
MOST_GROUPS_S = 5.0

# The sandbox's limit comes first. If it fails, Celery's soft limit reports the job, and the hard
# limit kills a process that ignores the soft one.
_SOFT_LIMIT_MARGIN_S = 5.0 + MOST_GROUPS_S
_HARD_LIMIT_MARGIN_S = 15.0 + MOST_GROUPS_S


@signals.setup_logging.connect  # type: ignore[untyped-decorator] # Celery has no types
def leave_logs_alone(**_: object) -> None:
    """Keeps Celery from configuring the logs: our processes configure them."""


# kombu raises these if the broker does not answer.
BROKER_ERRORS = (KombuError, OperationalError, OSError)


def make_app(settings: FarmSettings) -> Celery:
    """The Celery application of an edge or a worker."""
    use_broker_transport()
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
            # It does not limit the wait for a job: the event loop reads when data has arrived.
            "socket_timeout": BROKER_TIMEOUT_S,
            # Detects a connection whose other end vanished without closing it.
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
        # Takes a message when a process is free, instead of by counts of one connection.
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
    """One job of a message: which key to build, and under which fence.

    `request_id` is for the worker's log; the job's span belongs to that of `traceparent`.
    """

    key: bytes
    fence: int
    request_id: str = ""
    traceparent: str = ""

    def to_list(self) -> list[str | int]:
        """Its form in a message."""
        return [self.key.hex(), self.fence, self.request_id, self.traceparent]

    @staticmethod
    def from_list(fields: list[Any]) -> QueuedJob:
        """The job of its form in a message."""
        key, fence, request_id, traceparent = fields
        return QueuedJob(bytes.fromhex(key), int(fence), str(request_id), str(traceparent))


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """The content of a task's message: jobs of one namespace, and how to compile them.

    `stands_back`: compile at a lower priority.
    """

    queue: str
    namespace: str
    jobs: tuple[QueuedJob, ...]
    is_warm_up: bool = False
    is_slow: bool = False
    stands_back: bool = False

    @staticmethod
    def received(
        queue: str, headers: Mapping[str, Any], namespace: str, jobs: list[list[Any]]
    ) -> QueuedGroup:
        """The group of a message's headers and arguments; they do not name its priority."""
        return QueuedGroup(
            queue,
            str(namespace),
            tuple(map(QueuedJob.from_list, jobs)),
            is_slow=bool(headers.get(SLOW_HEADER)),
            stands_back=bool(headers.get(STANDS_BACK_HEADER)),
        )


class JobQueue:
    """Sends tasks from an asyncio service. kombu blocks, so it runs in its own thread."""

    def __init__(self, settings: CodegenSettings) -> None:
        self._app = make_app(settings)
        self._send_s = settings.broker_send_s
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="queue")

    async def send(self, group: QueuedGroup) -> None:
        """Queues a group of jobs.

        Raises:
            UnavailableError: the broker did not take the job within seconds.
        """
        await self._in_thread(partial(self._send, group))

    async def connect(self) -> None:
        """Connects before the first job, which then need not wait for the connection.

        Raises:
            UnavailableError: the broker does not answer yet; `send` will try again.
        """
        await self._in_thread(self._connect)

    def close(self) -> None:
        """Closes the connections to the broker."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._app.close()

    async def _in_thread(self, work: Callable[[], None]) -> None:
        """Runs blocking work with a timeout; work that has not begun by then is cancelled."""
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
        except BROKER_ERRORS as error:
            raise UnavailableError(f"the broker does not answer: {error}") from error

    def _send(self, group: QueuedGroup) -> None:
        try:
            self._app.send_task(
                BUILD_TASK,
                args=(group.namespace, [job.to_list() for job in group.jobs]),
                queue=group.queue,
                priority=WARM_UP if group.is_warm_up else INTERACTIVE,
                headers={
                    SLOW_HEADER: group.is_slow,
                    STANDS_BACK_HEADER: group.stands_back,
                },
                ignore_result=True,
                retry=True,
                retry_policy={"max_retries": 5, "interval_start": 0.05, "interval_step": 0.2},
            )
        except BROKER_ERRORS as error:
            raise UnavailableError(f"the broker does not take jobs: {error}") from error


def _kombu_url(url: str) -> str:
    """The URL as kombu spells it: it has another scheme for unix sockets."""
    return url.replace("unix://", "redis+socket://", 1) if url.startswith("unix://") else url
