"""Failed calls become errors of our hierarchy, even if the status has no details."""

from __future__ import annotations

import grpc
import pytest

from kernelfarm.errors import (
    CallerError,
    DeadlineError,
    ErrorFacts,
    InternalError,
    KernelfarmError,
    MissingMethodError,
    UnavailableError,
)
from kernelfarm.wire.status import DETAILS_TRAILER, error_from_rpc, status_details


def failed_call(code: grpc.StatusCode, details: str, trailer: bytes | None = None) -> grpc.RpcError:
    trailers = [] if trailer is None else [(DETAILS_TRAILER, trailer)]
    metadata = grpc.aio.Metadata(*trailers)
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), metadata, details)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, UnavailableError),
        (grpc.StatusCode.CANCELLED, UnavailableError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, DeadlineError),
        (grpc.StatusCode.INVALID_ARGUMENT, CallerError),
        (grpc.StatusCode.UNKNOWN, InternalError),
    ],
)
def test_a_status_without_details_becomes_the_nearest_error(
    code: grpc.StatusCode, kind: type[KernelfarmError]
) -> None:
    error = error_from_rpc(failed_call(code, "what happened"), "the optimizer")
    assert isinstance(error, kind)
    assert str(error) == "the optimizer: what happened"


def test_a_method_that_the_farm_does_not_have_is_a_matter_of_versions() -> None:
    call = failed_call(grpc.StatusCode.UNIMPLEMENTED, "Method not found!")
    error = error_from_rpc(call, "the farm at here:1")
    assert isinstance(error, MissingMethodError)
    assert str(error) == (
        "the farm at here:1 does not have this method (Method not found!): it is older than its"
        " caller; upgrade it"
    )


def test_damaged_details_are_ignored() -> None:
    call = failed_call(grpc.StatusCode.UNAVAILABLE, "down", trailer=b"\xff\xff")
    assert str(error_from_rpc(call, "the optimizer")) == "the optimizer: down"


def test_a_reason_of_a_newer_farm_becomes_the_nearest_error() -> None:
    facts = ErrorFacts("UNAVAILABLE", "MOON_IS_FULL", "come back", 2.5)
    call = failed_call(grpc.StatusCode.UNAVAILABLE, "come back", status_details(facts, "r9"))
    error = error_from_rpc(call)
    assert isinstance(error, UnavailableError)
    assert (str(error), error.retry_after_s) == ("come back", 2.5)
    assert error.__notes__ == ["request id: r9"]


def test_an_error_names_the_request_trace_that_it_belongs_to() -> None:
    facts = ErrorFacts("UNAVAILABLE", "NO_ANSWER", "come back", None)
    details = status_details(facts, "r9", "4bf92f3577b34da6a3ce929d0e0e4736")
    error = error_from_rpc(failed_call(grpc.StatusCode.UNAVAILABLE, "come back", details))
    assert error.__notes__ == ["request id: r9", "trace id: 4bf92f3577b34da6a3ce929d0e0e4736"]
