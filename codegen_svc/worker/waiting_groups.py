"""Takes messages that wait in the queue, for a pool process that has just ended its own.

Celery's consumer, which is another process, takes a message only when a pool process is free, and
gives it to that process: some 20 ms go by, as long as a small kernel compiles. A message that waits
at that time is one that no free process has taken, so this takes nothing away from others.
"""

from __future__ import annotations

import time
from typing import Any

from celery import Celery
from kombu.exceptions import ContentDisallowed, DecodeError
from redis.exceptions import RedisError

from codegen_svc.broker_transport import use_broker_transport
from codegen_svc.celery_app import BROKER_ERRORS, BUILD_TASK, QueuedGroup
from kernelfarm.service.logs.logger import get_logger

# kombu raises these for a message that it, or this module, cannot read.
_UNREADABLE = (
    *(ContentDisallowed, DecodeError),
    *(AttributeError, LookupError, TypeError, ValueError),
)

# While a broker does not answer, a compiled kernel waits until it is published.
_ANSWERS_WITHIN_S = 0.3
_AGAIN_AFTER_S = 10.0


class WaitingGroups:
    """The groups that wait in one queue of the broker, for use by one thread.

    It connects when it is first asked. If the broker does not answer, it asks no more for some
    seconds.
    """

    def __init__(self, app: Celery, queue: str) -> None:
        use_broker_transport()
        self._app = app
        self._queue = queue
        self._connection: Any = None
        self._not_before_s = float("-inf")

    def take(self) -> QueuedGroup | None:
        """The next group; None if none waits, or if the broker does not answer in time."""
        if time.monotonic() < self._not_before_s:
            return None
        try:
            message = self._channel().basic_get(self._queue, no_ack=True)
            group = None if message is None else self._group_of(message)
        except _UNREADABLE as error:
            text = f"expected a message of {BUILD_TASK}: {type(error).__name__}: {error}"
            get_logger().error("message_refused", message=text)
            return None
        except (*BROKER_ERRORS, RedisError) as error:
            get_logger().warning("waiting_group_not_taken", message=str(error))
            self.close()
            self._not_before_s = time.monotonic() + _AGAIN_AFTER_S
            return None
        if group is not None:
            get_logger().info("waiting_group_taken", jobs=len(group.jobs))
        return group

    def close(self) -> None:
        """Closes the connection; the next call opens another."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _channel(self) -> Any:
        if self._connection is None:
            times = dict.fromkeys(("socket_timeout", "socket_connect_timeout"), _ANSWERS_WITHIN_S)
            self._connection = self._app.connection_for_read(transport_options=times)
            self._connection.ensure_connection(max_retries=1, interval_start=0)
        return self._connection.default_channel

    def _group_of(self, message: Any) -> QueuedGroup:
        message.accept = {"application/json"}
        (namespace, jobs), *_ = message.decode()
        if message.headers["task"] != BUILD_TASK:
            raise ValueError(f"it is one of {message.headers['task']}")
        return QueuedGroup.received(self._queue, message.headers, namespace, jobs)
