"""Ends a call with the facts of an error, as rich gRPC status."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from kernelfarm.errors import ErrorFacts
from kernelfarm.wire.status import DETAILS_TRAILER, status_code, status_details

REQUEST_ID_HEADER = "x-request-id"


def end_with(context: ServicerContext[Any, Any], facts: ErrorFacts, request_id: str) -> None:
    """Sets the status with which the call ends once its behavior returns.

    `context.abort` raises, and its error and the call's state refer to each other: they, and what
    the error passed, would stay until the cyclic collector runs.
    """
    context.set_code(status_code(facts))
    context.set_details(facts.message)
    context.set_trailing_metadata(
        (
            # What was answered is not repeated by the caller's channel, only what never arrived.
            ("grpc-retry-pushback-ms", "-1"),
            (DETAILS_TRAILER, status_details(facts, request_id)),
            (REQUEST_ID_HEADER, request_id),
        )
    )
