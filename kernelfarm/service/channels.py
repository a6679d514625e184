"""Channels to other services: keepalive, retries of what never ran, sizes, errors of our own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from kernelfarm.wire.status import error_from_rpc

# gRPC repeats a call by itself only as long as no response arrived, and all our calls are
# idempotent: keys are content. 0.1 + 0.2 + 0.4 s bridges the restart of a room's listener. An
# UNAVAILABLE that a room answers is not repeated: the interceptor's trailers forbid it.
_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "waitForReady": False,
            "retryPolicy": {
                "maxAttempts": 4,
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ]
}


def channel_options() -> list[tuple[str, int | str]]:
    """Options for every channel to a service of the farm, blocking or asyncio."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The default backs off to 2 minutes: too long for a room that its supervisor restarts.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.enable_retries", 1),
        ("grpc.service_config", json.dumps(_RETRIES)),
    ]


def open_channel(address: str) -> grpc.aio.Channel:
    """An asyncio channel to a service; connects when first used, and again after losses."""
    return grpc.aio.insecure_channel(address, options=channel_options())


@contextmanager
def translated_errors(peer: str) -> Iterator[None]:
    """Runs calls to `peer` (`optimizer at 127.0.0.1:50052`); failures raise as our own errors.

    Raises:
        KernelfarmError: the class and the message that the other side reported.
    """
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error, peer) from error
