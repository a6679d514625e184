"""Ends a call with the facts of an error, as rich gRPC status."""

from __future__ import annotations

from typing import Any, NoReturn

from grpc.aio import ServicerContext

from kernelfarm.errors import ErrorFacts
from kernelfarm.wire.status import DETAILS_TRAILER, status_code, status_details

REQUEST_ID_HEADER = "x-request-id"


async def abort_with(
    context: ServicerContext[Any, Any], facts: ErrorFacts, request_id: str
) -> NoReturn:
    """Sends the status and raises what ends the call."""
    trailers = (
        # What was answered is not repeated by the caller's channel, only what never arrived.
        ("grpc-retry-pushback-ms", "-1"),
        (DETAILS_TRAILER, status_details(facts, request_id)),
        (REQUEST_ID_HEADER, request_id),
    )
    await context.abort(status_code(facts), facts.message, trailers)
    raise AssertionError("abort returned")
