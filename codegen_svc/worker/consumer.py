"""The part of a worker that takes jobs from the broker, and its proof that it still does.

Celery's consumer can stop to take jobs while its process looks healthy. So the consumer's own event
loop notes when it ran and when it last asked the broker; `watchdog` judges these notes.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from celery import bootsteps
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from kernelfarm.service.liveness import read_heartbeat
from kernelfarm.service.logs.logger import get_logger

BUSY, IDLE, WARM = "busy", "idle", "warm"
"""States of a pool process: with a job; without one; without one, and not reported to the cache."""

_EVERY_S = 1.0
_HUNG_S = 8.0
"""A pool process whose heartbeat is older is killed: its lease lapsed long ago."""
_RETRY_S = 1.0


@dataclass(slots=True)
class ConsumerStatus:
    """What the consumer's event loop noted: seconds of `time.monotonic`, and the pool's state.

    `pool` are all its processes, `up` those that are ready, `busy` of them have a job;
    `has_reported` is true if one of them reported itself.
    A worker that `is_draining` takes no more jobs, on purpose.
    """

    heartbeat_file: Path
    ran_s: float = float("-inf")
    polled_s: float = float("-inf")
    up: int = 0
    busy: int = 0
    has_reported: bool = False
    is_draining: bool = False
    pool: set[int] = field(default_factory=set)


def process_file(heartbeat_file: Path, pid: int) -> Path:
    """The heartbeat file of a pool process, beside its worker's."""
    return heartbeat_file.with_name(f"{heartbeat_file.name}.{pid}")


class FarmConsumer(Consumer):  # type: ignore[misc] # Celery has no types
    """Celery's consumer that looks for a lost broker each second; Celery's own waits up to 30 s."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connects, however long that takes; ends when the worker is told to."""

        def log_error(error: Exception, pause_s: float) -> None:
            get_logger().warning("broker_unreachable", message=str(error), again_in_s=pause_s)

        connected = conn.ensure_connection(
            log_error,
            interval_start=_RETRY_S,
            interval_step=0,
            interval_max=_RETRY_S,
            callback=maybe_shutdown,
        )
        self.first_connection_attempt = False
        return connected


def status_step(status: ConsumerStatus) -> type[bootsteps.StartStopStep]:
    """The step of Celery's consumer that keeps the notes and ends pool processes that hang."""

    class NotingStep(bootsteps.StartStopStep):  # type: ignore[misc] # nor here
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, consumer: Any) -> None:
            # A message that is lost is sent again by its edge: nothing must block here to save it.
            consumer.task_consumer.channel.do_restore = False

        def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
            hub.call_repeatedly(_EVERY_S, _update_status, status, consumer)

    return NotingStep


def _update_status(status: ConsumerStatus, consumer: Any) -> None:
    channel = consumer.task_consumer.channel
    status.ran_s = time.monotonic()
    status.polled_s = channel._brpop_sent_at or float("-inf")
    pool = set(consumer.pool.info["processes"])
    for gone in status.pool - pool:  # its number may be another process's one day
        process_file(status.heartbeat_file, gone).unlink(missing_ok=True)
    status.pool = pool
    states = [_state(status, pid) for pid in pool]
    status.up = sum(state is not None for state in states)
    status.busy = states.count(BUSY)
    status.has_reported = BUSY in states or IDLE in states


def _state(status: ConsumerStatus, pid: int) -> str | None:
    """A pool process's state, None while it starts; kills one that hangs: Celery starts another.

    This runs in the event loop, which alone reaps these processes: the number is no other one's.
    """
    path = process_file(status.heartbeat_file, pid)
    beat = read_heartbeat(path)
    if beat is None:
        return None
    if abs(beat.age_s) > _HUNG_S:
        get_logger().error("pool_process_hung", pid=pid, silent_s=round(beat.age_s, 1))
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        path.unlink(missing_ok=True)
        return None
    return beat.state
