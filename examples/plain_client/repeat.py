"""Connects to a farm, and repeats calls while a replica of it restarts or while it is full.

Every RPC of the farm may be repeated: a repeated Compile joins the compilation that the first one
began, or finds its program. gRPC's own retries (a `retryPolicy` in a service config) are no
substitute: they never repeat a call that has received a message, and Compile sends its stages.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

import grpc

from kernelfarm.errors import FarmFullError, KernelfarmError, UnavailableError
from kernelfarm.wire.status import error_from_rpc

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_MAX_RESPONSE_BYTES = 64 * 1024 * 1024
_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_RESPONSE_BYTES),
    # With `dns:///NAME:PORT`, calls go to all replicas of the name. By default gRPC asks for new
    # ones every 30 s at most, and a rolling restart may replace two within this time.
    ("grpc.lb_policy_name", "round_robin"),
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
    # The default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # A replica whose machine vanished is noticed after the sum of both times.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # With its own retries, gRPC 1.85 for Python loses calls whose server is killed.
    ("grpc.enable_retries", 0),
]

ResultT = TypeVar("ResultT")


def open_channel(endpoint: str) -> grpc.Channel:
    """A channel to HOST:PORT, or to all replicas of a name: `dns:///NAME:PORT`."""
    return grpc.insecure_channel(endpoint, options=_OPTIONS)


def repeated(
    call: Callable[[float], ResultT], timeout_s: float, also: type[KernelfarmError] = FarmFullError
) -> ResultT:
    """The result of `call`, which gets the seconds that are left; repeated if the farm allows it.

    It may be repeated after UNAVAILABLE, and after RESOURCE_EXHAUSTED with a RetryInfo: then the
    farm is full. Any other status, also RESOURCE_EXHAUSTED without RetryInfo, says what is wrong.
    `also` is another error after which this call may be repeated.

    Raises:
        grpc.RpcError: the farm's refusal, or the last failure before the time was over.
    """
    ends_s = time.monotonic() + timeout_s
    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return call(ends_s - time.monotonic())
        except grpc.RpcError as error:
            failure = error_from_rpc(error)
            wait_s = max(failure.retry_after_s or 0, pause_s) * random.uniform(1.0, 1.5)
            is_late = time.monotonic() + wait_s >= ends_s
            if is_late or not isinstance(failure, (UnavailableError, also)):
                raise
        time.sleep(wait_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
