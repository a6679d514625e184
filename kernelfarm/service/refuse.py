"""Ends a call with the facts of an error, as rich gRPC status."""

from __future__ import annotations

from typing import Any

from grpc.aio import ServicerContext

from kernelfarm.errors import ErrorFacts
from kernelfarm.service.call_names import REQUEST_ID_HEADER
from kernelfarm.wire.status import DETAILS_TRAILER, status_code, status_details


def end_with(
    context: ServicerContext[Any, Any], facts: ErrorFacts, request_id: str, trace_id: str = ""
) -> None:
    """Sets the status with which the call ends once its behavior returns.

    `context.abort` raises an error that refers to the call's state and is referred to by it. Both,
    and all frames of the traceback, would stay in memory until the cyclic collector runs.
    """
    context.set_code(status_code(facts))
    context.set_details(facts.message)
    context.set_trailing_metadata(
        (
            # The caller's channel repeats only calls that got no response, not this one.
            ("grpc-retry-pushback-ms", "-1"),
            (DETAILS_TRAILER, status_details(facts, request_id, trace_id)),
            (REQUEST_ID_HEADER, request_id),
        )
    )
