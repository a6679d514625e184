"""Ends a worker that takes no jobs although it could, and writes its state to a heartbeat file.

The worker's supervisor then starts it again. While the broker does not answer, no worker can take
jobs: the worker waits and is not ended.
"""

from __future__ import annotations

import enum
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from codegen_svc.worker.consumer import ConsumerStatus
from kernelfarm.service.liveness import HeartbeatFile
from kernelfarm.service.logs.logger import get_logger

WEDGED_EXIT_CODE = 75

_EVERY_S = 0.2
_RECENT_S = 5.0
"""An idle consumer polls the broker each second."""
_START_S = 90.0
"""More than the minute that Celery gives the processes of a pool to start."""


class WorkerState(enum.Enum):
    """A worker's state, as its heartbeat file shows it."""

    STARTING = "starting"
    POLLING = "polling"
    """Its consumer works, but no process of its pool is ready, or none has reported."""
    SERVING = "serving"
    WAITING = "waiting"
    """The broker does not answer."""
    DRAINING = "draining"
    """It was asked to stop and finishes its jobs first; the supervisor limits that time."""
    STUCK = "stuck"
    """It takes no jobs for no known reason; it ends itself soon."""


@dataclass(slots=True)
class WorkerHealth:
    """Computes a worker's state from its consumer's status, and whether it should end."""

    began_s: float
    wedged_after_s: float
    stuck_since_s: float | None = None
    has_run: bool = False

    def state(
        self, status: ConsumerStatus, now_s: float, broker_answers: Callable[[], bool]
    ) -> WorkerState:
        """The state now; calls `broker_answers` only if the consumer does not work."""
        if status.is_draining:
            self.stuck_since_s = None
            return WorkerState.DRAINING
        if _takes_jobs(status, now_s):
            self.stuck_since_s, self.has_run = None, True
            return WorkerState.SERVING if status.has_reported else WorkerState.POLLING
        if not broker_answers():
            self.stuck_since_s = None
            return WorkerState.WAITING
        if self.stuck_since_s is None:
            self.stuck_since_s = now_s
        return WorkerState.STUCK if self.has_run else WorkerState.STARTING

    def is_wedged(self, now_s: float) -> bool:
        """True if the worker has not worked for so long that it should end."""
        limit_s = self.wedged_after_s if self.has_run else _START_S
        return self.stuck_since_s is not None and now_s - self.stuck_since_s > limit_s


def _takes_jobs(status: ConsumerStatus, now_s: float) -> bool:
    """True if the event loop runs, and polls the broker if a process is free.

    Celery limits how long a process may take to start, and how long it may have one job.
    """
    if now_s - status.ran_s > _RECENT_S:
        return False
    has_free = status.up > status.busy or not status.pool
    return now_s - status.polled_s <= _RECENT_S or not has_free


def start_watchdog(
    status: ConsumerStatus, broker_answers: Callable[[], bool], wedged_after_s: float
) -> None:
    """Starts the thread that watches the consumer, and ends a wedged process."""
    heartbeat = HeartbeatFile(status.heartbeat_file)
    heartbeat.beat(WorkerState.STARTING.value)
    health = WorkerHealth(time.monotonic(), wedged_after_s)
    arguments = (status, heartbeat, broker_answers, health)
    threading.Thread(target=_watch, args=arguments, name="watchdog", daemon=True).start()


def _watch(
    status: ConsumerStatus,
    heartbeat: HeartbeatFile,
    broker_answers: Callable[[], bool],
    health: WorkerHealth,
) -> None:
    last_s = health.began_s
    while True:
        now_s = time.monotonic()
        if now_s - last_s > _RECENT_S:  # this machine or process was suspended: start anew
            health.stuck_since_s = None
        last_s = now_s
        heartbeat.beat(health.state(status, now_s, broker_answers).value)
        if health.is_wedged(now_s):
            get_logger().critical(
                "worker_wedged",
                message="takes no jobs although the broker answers; it ends and is started again",
                polled_ago_s=round(now_s - status.polled_s, 1),
                ran_ago_s=round(now_s - status.ran_s, 1),
                busy=status.busy,
                up=status.up,
            )
            os._exit(WEDGED_EXIT_CODE)  # its event loop may not be able to end it
        time.sleep(_EVERY_S)
