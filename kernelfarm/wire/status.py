"""Codec of errors: `google.rpc.Status` with ErrorInfo, RetryInfo and RequestInfo."""

from __future__ import annotations

import re

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from kernelfarm.errors import (
    ErrorFacts,
    KernelfarmError,
    MessageTooLargeError,
    MissingMethodError,
    NoAnswerError,
    error_from_facts,
)

ERROR_DOMAIN = "kernelfarm"

# The trailer of `google.rpc.Status` in every gRPC implementation.
DETAILS_TRAILER = "grpc-status-details-bin"

# Begins the field `serving_data` of RequestInfo if the call belongs to a trace.
_TRACE = "trace_id="

# gRPC's core writes this when it refuses a message before reading it.
_TOO_LARGE = re.compile(r"larger than max \((\d+) vs\. (\d+)\)")


def status_code(facts: ErrorFacts) -> grpc.StatusCode:
    """The gRPC status code of an error."""
    return grpc.StatusCode[facts.status]


def status_details(facts: ErrorFacts, request_id: str, trace_id: str = "") -> bytes:
    """The serialized `google.rpc.Status` for the details trailer."""
    code: int = status_code(facts).value[0]
    status = status_pb2.Status(code=code, message=facts.message)
    info = error_details_pb2.ErrorInfo(reason=facts.reason, domain=ERROR_DOMAIN)
    _pack(status, info)
    if facts.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(facts.retry_after_s * 1e9))
        _pack(status, retry)
    if request_id:
        served_by = f"{_TRACE}{trace_id}" if trace_id else ""
        request = error_details_pb2.RequestInfo(request_id=request_id, serving_data=served_by)
        _pack(status, request)
    serialized: bytes = status.SerializeToString()
    return serialized


def error_from_rpc(error: grpc.RpcError, peer: str = "the farm") -> KernelfarmError:
    """The error of our hierarchy for a failed call; its notes have the request id.

    It takes errors of blocking and of asyncio channels. `peer` names the other side in messages
    about failures that it did not report itself, such as a refused connection.
    """
    code = getattr(error, "code", lambda: grpc.StatusCode.UNKNOWN)() or grpc.StatusCode.UNKNOWN
    details = getattr(error, "details", lambda: str(error))() or ""
    status = _rich_status(error)
    if status is None:
        return _error_without_details(code, details, peer)
    return _error_with_details(code, details, status)


def _error_with_details(
    code: grpc.StatusCode, details: str, status: status_pb2.Status
) -> KernelfarmError:
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    request = error_details_pb2.RequestInfo()
    _unpack(status, info)
    retry_after_s = retry.retry_delay.ToNanoseconds() / 1e9 if _unpack(status, retry) else None
    message = status.message or details
    found = error_from_facts(ErrorFacts(code.name, info.reason, message, retry_after_s))
    if _unpack(status, request):
        found.add_note(f"request id: {request.request_id}")
        if request.serving_data.startswith(_TRACE):
            found.add_note(f"trace id: {request.serving_data.removeprefix(_TRACE)[:32]}")
    return found


def _error_without_details(code: grpc.StatusCode, details: str, peer: str) -> KernelfarmError:
    too_large = _TOO_LARGE.search(details)
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED and too_large:
        size, limit = too_large.groups()
        return MessageTooLargeError(f"a message of {size} bytes; {peer} accepts at most {limit}")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return MissingMethodError(
            f"{peer} does not have this method ({details or code.name}): it is older than its"
            " caller; upgrade it"
        )
    name = code.name
    if code is grpc.StatusCode.CANCELLED:
        # A server that stops cancels calls that are left after its grace period. Our own
        # cancellations are exceptions of the caller and never reach this.
        name = "UNAVAILABLE"
    reason = NoAnswerError.reason if name == NoAnswerError.status else name
    retry_after_s = 1.0 if name == "UNAVAILABLE" else None
    return error_from_facts(
        ErrorFacts(name, reason, f"{peer}: {details or code.name}", retry_after_s)
    )


def _rich_status(error: grpc.RpcError) -> status_pb2.Status | None:
    trailers = getattr(error, "trailing_metadata", lambda: None)() or ()
    for key, value in trailers:
        if key == DETAILS_TRAILER:
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


def _pack(status: status_pb2.Status, detail: Message) -> None:
    packed = AnyMessage()
    packed.Pack(detail)
    status.details.append(packed)


def _unpack(status: status_pb2.Status, into: Message) -> bool:
    return any(detail.Is(into.DESCRIPTOR) and detail.Unpack(into) for detail in status.details)
