"""Channels to other services: keepalive, sizes, errors of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.service.tls import ChannelTls
from kernelfarm.wire.status import error_from_rpc


def channel_options(keepalive_ms: int = 20_000) -> list[tuple[str, int | str]]:
    """Options for every channel to a service of the farm, blocking or asyncio."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # A peer that hangs is noticed after both.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The default backs off to 2 minutes: too long for a room that its supervisor restarts.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # With its own retries gRPC 1.85 loses calls whose server is killed: neither their deadline
        # nor a cancellation ends them. Who wants a call repeated does it (`client/repeats.py`).
        ("grpc.enable_retries", 0),
    ]


_BETWEEN_SERVICES_MS = 8_000
"""Services ask more often than clients: a caller waits for each of them."""

_CLOSED = "Cannot invoke RPC"
"""How the ValueError begins that gRPC raises for a closed channel: it has no class of its own."""

_LOCAL = ("unix:", "127.", "localhost:", "[::1]:")


def open_channel(address: str, tls: ChannelTls | None = None) -> grpc.aio.Channel:
    """An asyncio channel to a service; connects when first used, and again after losses.

    Raises:
        CallerError: a file of `tls` cannot be read.
    """
    if tls is None:
        return grpc.aio.insecure_channel(address, options=channel_options(_BETWEEN_SERVICES_MS))
    options = [*channel_options(_BETWEEN_SERVICES_MS), *tls.options()]
    return grpc.aio.secure_channel(address, tls.credentials(), options=options)


def open_blocking_channel(
    address: str, tls: ChannelTls | None = None, token: str = "", *, may_be_clear: bool = False
) -> grpc.Channel:
    """A blocking channel whose calls bear a token, if one is given.

    Raises:
        CallerError: a token would travel in the clear to another machine, unless it
            `may_be_clear`; or a file of `tls` cannot be read.
    """
    if tls is not None:
        options = [*channel_options(), *tls.options()]
        channel = grpc.secure_channel(address, tls.credentials(), options=options)
    elif token and not may_be_clear and not address.startswith(_LOCAL):
        raise CallerError(
            f"the token would travel to {address} unencrypted: set KERNELFARM_CA_FILE to the"
            " farm's CA (or `system`), or KERNELFARM_ALLOW_CLEARTEXT_TOKEN=true where the network"
            " is trusted"
        )
    else:
        channel = grpc.insecure_channel(address, options=channel_options())
    return grpc.intercept_channel(channel, _Bearer(token)) if token else channel


class _Details(NamedTuple):
    """A call's details as gRPC's interceptors pass them on."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _Bearer(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds the header `authorization` to each call that has none of its own."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_token(client_call_details), request)

    def _with_token(self, details: Any) -> Any:
        metadata = list(details.metadata or ())
        if any(name == "authorization" for name, _ in metadata):
            return details
        return _Details(
            details.method,
            details.timeout,
            [*metadata, self._header],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


@contextmanager
def translated_errors(peer: str) -> Iterator[None]:
    """Runs calls to `peer` (`optimizer at 127.0.0.1:50052`); failures raise as our own errors.

    Raises:
        KernelfarmError: the class and the message that the other side reported.
    """
    try:
        yield
    except grpc.RpcError as error:
        # A stream raises its call itself, which its traceback holds: a circle that would keep the
        # channel's threads alive after it was closed.
        raise error_from_rpc(error, peer) from error.with_traceback(None)
    except ValueError as error:
        if not str(error).startswith(_CLOSED):
            raise
        raise UnavailableError(f"{peer}: the way there was closed") from error
