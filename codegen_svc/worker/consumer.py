"""The part of a worker that takes jobs from the broker, with a record that it still does.

Celery's consumer can stop taking jobs while its process looks healthy. Therefore the consumer's own
event loop records when it ran and when it last polled the broker; `watchdog` checks this record.
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
"""States of a pool process: with a job; without one; without one and not reported to the cache."""

_EVERY_S = 0.2
_HUNG_S = 8.0
"""A pool process with an older heartbeat is killed: its lease has lapsed."""
_RETRY_S = 1.0


@dataclass(slots=True)
class ConsumerStatus:
    """The record of the consumer's event loop.

    `ran_s` and `polled_s` are when it ran and when it last polled, in seconds of `time.monotonic`.
    Of the processes in `pool`, `up` are ready and `busy` have a job; `has_reported` is true if one
    of them has reported itself to the cache. A worker that `is_draining` takes no more jobs.
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
    """A consumer that tries a lost broker each second; Celery's own waits up to 30 s."""

    def ensure_connected(self, conn: Any) -> Any:
        """Connects, however long that takes, unless the worker is asked to stop."""

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
    """The step of Celery's consumer that updates the status and kills hung pool processes."""

    class StatusStep(bootsteps.StartStopStep):  # type: ignore[misc] # nor here
        requires = ("celery.worker.consumer.tasks:Tasks",)

        def start(self, consumer: Any) -> None:
            # The edge sends a lost message again, so the consumer need not block to restore it.
            consumer.task_consumer.channel.do_restore = False

        def register_with_event_loop(self, consumer: Any, hub: Any) -> None:
            hub.call_repeatedly(_EVERY_S, _update_status, status, consumer)

    return StatusStep


def _update_status(status: ConsumerStatus, consumer: Any) -> None:
    channel = consumer.task_consumer.channel
    status.ran_s = time.monotonic()
    status.polled_s = channel._brpop_sent_at or float("-inf")
    pool = set(consumer.pool.info["processes"])
    for gone in status.pool - pool:  # the number may be reused
        process_file(status.heartbeat_file, gone).unlink(missing_ok=True)
    status.pool = pool
    states = [_state(status, pid) for pid in pool]
    status.up = sum(state is not None for state in states)
    status.busy = states.count(BUSY)
    status.has_reported = BUSY in states or IDLE in states


def _state(status: ConsumerStatus, pid: int) -> str | None:
    """A pool process's state, None while it starts. Kills a hung one; Celery starts another.

    This runs in the event loop, which is the only one to reap these processes, so the number cannot
    be another process's.
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
