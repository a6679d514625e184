"""One call of an RPC with bytes that may be no message, and the verdict on its response."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from kernelfarm.wire.status import DETAILS_TRAILER, ERROR_DOMAIN
from tests.fuzz.messages import Rpc

TIMEOUT_S = 150.0
"""Longer than any call may take: a call that exceeds it hangs."""
WATCH_S = 0.2
"""A stream without an end is cancelled after this time."""
MAX_ERROR_CHARS = 4096

ENDLESS = frozenset({"WatchInvalidations"})
LONG = frozenset({"Compile", "BuildKernels", "Sweep"})
"""RPCs whose accepted calls wait for a toolchain, or walk over the whole cache."""

NO_WORKER = "no worker serves the queue"
"""The only valid reason for UNAVAILABLE, after a wait for a worker to restart."""

REFUSALS = frozenset(
    grpc.StatusCode[name]
    for name in (
        *("INVALID_ARGUMENT", "NOT_FOUND", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"),
        *("PERMISSION_DENIED", "UNAUTHENTICATED", "DATA_LOSS"),
    )
)


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended; `fault` describes a violation, and is empty without one."""

    status: str
    took_s: float
    fault: str = ""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long a call may take: short calls, and calls of `LONG`-running RPCs."""

    call_s: float = 2.0
    long_s: float = 60.0


async def call(channel: grpc.aio.Channel, rpc: Rpc, data: bytes, bounds: Bounds) -> Answer:
    """Calls, reads the whole response, and judges it."""
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(WATCH_S if rpc.name in ENDLESS else None):
            await _read(channel, rpc, data)
        status, fault = "OK", ""
    except TimeoutError:
        status, fault = "OPEN", ""
    except grpc.aio.AioRpcError as error:
        status, fault = error.code().name, _fault_of(error)
    took_s = time.monotonic() - began_s
    is_long = rpc.name in LONG and status in ("OK", "FAILED_PRECONDITION", "UNAVAILABLE")
    most_s = bounds.long_s if is_long else bounds.call_s
    if not fault and took_s > most_s:
        fault = f"slower than {most_s:.0f} s"
    return Answer(status, took_s, fault)


async def _read(channel: grpc.aio.Channel, rpc: Rpc, data: bytes) -> None:
    if not rpc.is_streaming:
        await channel.unary_unary(rpc.path)(data, timeout=TIMEOUT_S)
        return
    stream = channel.unary_stream(rpc.path)(data, timeout=TIMEOUT_S)
    try:
        async for _ in stream:
            pass
    finally:
        stream.cancel()


def _fault_of(error: grpc.aio.AioRpcError) -> str:
    if (error.details() or "").startswith(NO_WORKER):
        return ""
    if error.code() not in REFUSALS:
        return f"{error.code().name}: {(error.details() or '')[:200]}"
    if len(error.details() or "") > MAX_ERROR_CHARS:
        return f"an error of more than {MAX_ERROR_CHARS} characters"
    trailers = dict(error.trailing_metadata() or ())
    return _fault_in_details(trailers.get(DETAILS_TRAILER))


def _fault_in_details(trailer: str | bytes | None) -> str:
    if not isinstance(trailer, bytes):
        return "a refusal without details"
    try:
        status = status_pb2.Status.FromString(trailer)
    except DecodeError:
        return "a refusal whose details are no google.rpc.Status"
    for detail in status.details:
        info = error_details_pb2.ErrorInfo()
        if detail.Is(info.DESCRIPTOR) and detail.Unpack(info):
            return "" if info.domain == ERROR_DOMAIN and info.reason else "an ErrorInfo of nobody"
    return "a refusal without ErrorInfo"
