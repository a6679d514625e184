"""Opens channels to other services: keepalive, message sizes, translated errors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc

from kernelfarm import spans
from kernelfarm.errors import CallerError, UnavailableError
from kernelfarm.service.tls import ChannelTls
from kernelfarm.wire.status import error_from_rpc


def channel_options(keepalive_ms: int = 20_000) -> list[tuple[str, int | str]]:
    """The gRPC options of every channel to a service of the farm, blocking or asyncio."""
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # A peer that hangs is noticed after the sum of both times.
        ("grpc.keepalive_time_ms", keepalive_ms),
        ("grpc.keepalive_timeout_ms", keepalive_ms // 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # The default backoff grows to 2 minutes, but a supervisor restarts a service in seconds.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 1_000),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        # With its own retries, gRPC 1.85 loses calls whose server is killed: neither their deadline
        # nor a cancellation ends them. Callers repeat calls (`client/farm/call_retry.py`).
        ("grpc.enable_retries", 0),
    ]


_BETWEEN_SERVICES_MS = 8_000
"""The keepalive of services is shorter than that of clients, because a caller waits for each."""

_LISTS_REPLICAS = ("dns:", "ipv4:", "ipv6:")
"""The beginning of an endpoint that names several replicas of a frontend."""

_TO_REPLICAS: list[tuple[str, int | str]] = [
    # Calls go to all addresses of a name, for example to all pods of a headless Service.
    ("grpc.lb_policy_name", "round_robin"),
    # The default of 30 s would delay the discovery of a new replica after one has gone.
    ("grpc.dns_min_time_between_resolutions_ms", 2_000),
]

_CLOSED = "Cannot invoke RPC"
"""The beginning of the message of the ValueError that gRPC raises for a closed channel."""

_LOCAL = ("unix:", "127.", "localhost:", "[::1]:")


def open_channel(address: str, tls: ChannelTls | None = None) -> grpc.aio.Channel:
    """An asyncio channel to a service; it connects when first used, and again after a failure.

    If the address is a name with several addresses, its calls are balanced among them.

    Raises:
        CallerError: a file of `tls` cannot be read.
    """
    options = [*channel_options(_BETWEEN_SERVICES_MS), *_TO_REPLICAS]
    if tls is None:
        return grpc.aio.insecure_channel(address, options=options)
    return grpc.aio.secure_channel(address, tls.credentials(), options=[*options, *tls.options()])


def open_blocking_channel(
    address: str, tls: ChannelTls | None = None, token: str = "", *, may_be_clear: bool = False
) -> grpc.Channel:
    """A blocking channel that adds the token, if one is given, to its calls.

    If the address is an explicit list (`dns:///NAME:PORT`), calls are balanced among its replicas.
    With a plain address they share one connection, which the server may close while it is idle.

    Raises:
        CallerError: the token would be sent unencrypted to another machine, and not `may_be_clear`;
            or a file of `tls` cannot be read.
    """
    options = [*channel_options(), *(_TO_REPLICAS if address.startswith(_LISTS_REPLICAS) else ())]
    if tls is not None:
        options = [*options, *tls.options()]
        channel = grpc.secure_channel(address, tls.credentials(), options=options)
    elif token and not may_be_clear and not address.startswith(_LOCAL):
        raise CallerError(
            f"the token would be sent to {address} unencrypted: set KERNELFARM_CA_FILE to the"
            " farm's CA (or `system`), or set KERNELFARM_ALLOW_CLEARTEXT_TOKEN=true if the network"
            " is trusted"
        )
    else:
        channel = grpc.insecure_channel(address, options=options)
    if spans.is_on():
        channel = grpc.intercept_channel(channel, _Traced())
    return grpc.intercept_channel(channel, _Bearer(token)) if token else channel


class _Details(NamedTuple):
    """A call's details in the form that gRPC's interceptors pass on."""

    method: str
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: bool | None
    compression: Any


class _AddedHeaders(grpc.UnaryUnaryClientInterceptor, grpc.UnaryStreamClientInterceptor):
    """Adds headers to each call that does not have them."""

    def headers(self) -> Sequence[tuple[str, str]]:
        """The headers of a call that begins now."""
        raise NotImplementedError

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_headers(client_call_details), request)

    def intercept_unary_stream(
        self, continuation: Callable[[Any, Any], Any], client_call_details: Any, request: Any
    ) -> Any:
        return continuation(self._with_headers(client_call_details), request)

    def _with_headers(self, details: Any) -> Any:
        metadata = list(details.metadata or ())
        present = {name for name, _ in metadata}
        added = [header for header in self.headers() if header[0] not in present]
        return _Details(
            details.method,
            details.timeout,
            [*metadata, *added],
            details.credentials,
            details.wait_for_ready,
            details.compression,
        )


class _Bearer(_AddedHeaders):
    """Adds the header `authorization`."""

    def __init__(self, token: str) -> None:
        self._header = ("authorization", f"Bearer {token}")

    def headers(self) -> Sequence[tuple[str, str]]:
        return (self._header,)


class _Traced(_AddedHeaders):
    """Adds the header that names the present span."""

    def headers(self) -> Sequence[tuple[str, str]]:
        return spans.outgoing() or ()


@contextmanager
def translated_errors(peer: str) -> Iterator[None]:
    """Runs calls to `peer` (`optimizer at 127.0.0.1:50052`), and translates their errors.

    Raises:
        KernelfarmError: of the class and with the message that the peer reported.
        UnavailableError: the channel is closed.
    """
    try:
        yield
    except grpc.RpcError as error:
        # A stream raises its own call, and the traceback refers to the call: a reference cycle that
        # would keep the channel's threads alive after it was closed.
        raise error_from_rpc(error, peer) from error.with_traceback(None)
    except ValueError as error:
        if not str(error).startswith(_CLOSED):
            raise
        raise UnavailableError(f"{peer}: the channel was closed") from error
