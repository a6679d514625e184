"""Measured times in a farm with tenants: who may report, what is refused, what is shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import grpc
import pytest

from kernelfarm.errors import CallerError, KernelfarmError, PermissionDeniedError
from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.service.tenants.identity import Role
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.v1.tuning_service_pb2_grpc import TuningServiceStub
from kernelfarm.wire.status import error_from_rpc
from tests.support.farm import TIMEOUT_S
from tests.support.tenants_farm import TenantFarm

_digests = iter(range(1, 256))


def subject(**changes: Any) -> api.TuningSubject:
    """A subject that no other test uses."""
    fields = {"digest": bytes([next(_digests)]) * 32, "device": "a chip, driver 1", "candidates": 3}
    return api.TuningSubject(**fields | changes)


class Reporter:
    """Calls about tuning with one token, as one process."""

    def __init__(
        self, farm: TenantFarm, tenant: str, role: Role = Role.MEMBER, name: int = 0
    ) -> None:
        self._channel = open_blocking_channel(farm.farm.endpoint, None, farm.tokens[tenant, role])
        self._stub = TuningServiceStub(self._channel)
        self.name = bytes([name]) * 16

    def look_up(self, asked: api.TuningSubject, **more: Any) -> api.LookupTuningResponse:
        fields = {"reporter": self.name, "can_measure": True} | more
        return self._called("LookupTuning", api.LookupTuningRequest(subject=asked, **fields))

    def report(self, asked: api.TuningSubject, times_ns: Sequence[int], **more: Any) -> int:
        fields = {"reporter": self.name, "times_ns": times_ns} | more
        request = api.ReportTuningRequest(subject=asked, **fields)
        return self._called("ReportTuning", request).winner.candidate

    def _called(self, method: str, request: Any) -> Any:
        try:
            return getattr(self._stub, method)(request, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            raise error_from_rpc(error) from error

    def close(self) -> None:
        self._channel.close()


@pytest.fixture
def acme(tenant_farm: TenantFarm) -> Iterator[Reporter]:
    caller = Reporter(tenant_farm, "acme")
    yield caller
    caller.close()


def test_a_report_serves_its_tenant_alone(tenant_farm: TenantFarm, acme: Reporter) -> None:
    asked = subject()
    first = acme.look_up(asked)
    assert first.should_measure and not first.HasField("winner") and first.retry_after_ms > 0
    assert acme.report(asked, [30_000, 0, 20_000]) == 2
    reader = Reporter(tenant_farm, "acme", Role.READER, name=1)
    found = reader.look_up(asked)
    assert (found.winner.candidate, found.winner.reports) == (2, 1)
    assert not found.should_measure, "a reader cannot report"
    beta = Reporter(tenant_farm, "beta", name=2)
    assert not beta.look_up(asked).HasField("winner")
    for caller in (reader, beta):
        caller.close()


def test_a_reader_may_not_report(tenant_farm: TenantFarm) -> None:
    reader = Reporter(tenant_farm, "acme", Role.READER)
    with pytest.raises(PermissionDeniedError, match="needs the role"):
        reader.report(subject(), [1, 2, 3])
    reader.close()


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"digest": b"short"}, {}, "a digest of 5 bytes; expected 32"),
    ({"device": ""}, {}, "a device of 0 characters"),
    ({"device": "x" * 201}, {}, "a device of 201 characters"),
    ({"candidates": 1}, {}, "1 candidates; expected 2 to 256"),
    ({"candidates": 257}, {}, "257 candidates"),
    ({}, {"reporter": b"me"}, "a reporter of 2 bytes; expected 16"),
]
REFUSED_TIMES: list[tuple[list[int], str]] = [
    ([1, 2], "2 times of 3 candidates"),
    ([0, 0, 0], "expected at least one"),
    ([1, 2, 2**63], "at most an hour"),
]


@pytest.mark.parametrize(("changes", "fields", "message"), REFUSED)
def test_malformed_fields_are_refused(
    acme: Reporter, changes: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    asked = subject(**changes)
    with pytest.raises(CallerError, match=message):
        acme.look_up(asked, **fields)
    with pytest.raises(CallerError, match=message):
        acme.report(asked, [1, 2, 3], **fields)


@pytest.mark.parametrize(("times_ns", "message"), REFUSED_TIMES)
def test_wrong_times_are_refused_and_not_counted(
    acme: Reporter, times_ns: list[int], message: str
) -> None:
    asked = subject()
    with pytest.raises(KernelfarmError, match=message):
        acme.report(asked, times_ns)
    assert not acme.look_up(asked).HasField("winner")
