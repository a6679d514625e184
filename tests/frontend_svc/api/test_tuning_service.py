"""Measured times in a farm with tenants: who may report, what is refused, what is shared."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from kernelfarm.errors import CallerError, KernelfarmError, PermissionDeniedError
from kernelfarm.service.tenants.identity import Role
from kernelfarm.signing import Space
from kernelfarm.signing.key_files import PROGRAM_KEY, read_signer
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import tuning_service_pb2 as api
from kernelfarm.wire.tuning import tuning_subject_to_proto
from tests.support.tenants_farm import TenantFarm
from tests.support.tuning_callers import TuningCaller
from tests.support.tuning_records import new_subject, record_of, signed_record

_digests = iter(range(1, 256))


def subject(**changes: Any) -> api.TuningSubject:
    """A subject that no other test uses."""
    fields = {"digest": bytes([next(_digests)]) * 32, "device": "a chip, driver 1", "candidates": 3}
    return api.TuningSubject(**fields | changes)


def reporter_of(
    farm: TenantFarm, tenant: str, role: Role = Role.MEMBER, name: int = 0
) -> TuningCaller:
    return TuningCaller(farm.farm.endpoint, farm.tokens[tenant, role], name)


@pytest.fixture
def acme(tenant_farm: TenantFarm) -> Iterator[TuningCaller]:
    caller = reporter_of(tenant_farm, "acme")
    yield caller
    caller.close()


def test_a_report_serves_its_tenant_alone(tenant_farm: TenantFarm, acme: TuningCaller) -> None:
    asked = subject()
    first = acme.look_up(asked)
    assert first.should_measure and not first.HasField("winner") and first.retry_after_ms > 0
    assert acme.report(asked, [30_000, 0, 20_000]) == 2
    reader = reporter_of(tenant_farm, "acme", Role.READER, name=1)
    found = reader.look_up(asked)
    assert (found.winner.candidate, found.winner.reports) == (2, 1)
    assert not found.should_measure, "a reader cannot report"
    beta = reporter_of(tenant_farm, "beta", name=2)
    assert not beta.look_up(asked).HasField("winner")
    for caller in (reader, beta):
        caller.close()


def test_a_reader_may_not_report(tenant_farm: TenantFarm) -> None:
    reader = reporter_of(tenant_farm, "acme", Role.READER)
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
    acme: TuningCaller, changes: dict[str, Any], fields: dict[str, Any], message: str
) -> None:
    asked = subject(**changes)
    with pytest.raises(CallerError, match=message):
        acme.look_up(asked, **fields)
    with pytest.raises(CallerError, match=message):
        acme.report(asked, [1, 2, 3], **fields)


@pytest.mark.parametrize(("times_ns", "message"), REFUSED_TIMES)
def test_wrong_times_are_refused_and_not_counted(
    acme: TuningCaller, times_ns: list[int], message: str
) -> None:
    asked = subject()
    with pytest.raises(KernelfarmError, match=message):
        acme.report(asked, times_ns)
    assert not acme.look_up(asked).HasField("winner")


def test_a_warmers_reports_serve_tenants_without_their_own(
    tenant_farm: TenantFarm, acme: TuningCaller
) -> None:
    asked = subject()
    for name in range(3):
        assert not acme.look_up(asked, can_measure=False).HasField("winner")  # not settled before
        warmer = reporter_of(tenant_farm, "acme", Role.WARMER, name=name)
        warmer.report(asked, [9_000, 1_000, 9_000])
        warmer.close()
    found = acme.look_up(asked)
    assert (found.winner.candidate, found.winner.reports) == (1, 3)
    assert not found.should_measure and found.retry_after_ms == 0
    record = acme.read(asked)
    assert record is not None and record.manifest.namespace == "default/acme"
    acme.report(asked, [1_000, 9_000, 9_000])
    own = acme.look_up(asked)
    assert (own.winner.candidate, own.winner.reports) == (0, 1), "the tenant decides by itself"


def test_an_import_serves_the_tenant_of_its_administrator_alone(tenant_farm: TenantFarm) -> None:
    """Whatever namespace the record names, and whoever else has a subject with the same digest."""
    origin = read_signer(tenant_farm.farm.keys / PROGRAM_KEY, Space.PROGRAMS)
    subject = new_subject()
    record = signed_record(origin, record_of(subject, (3, 1, 2)), namespace="default/beta")
    request = cache_api.ImportTuningRequest(record=record)
    with pytest.raises(PermissionDeniedError, match="role administrator"):
        tenant_farm.caller("acme").cache("ImportTuning", request)
    done = tenant_farm.caller("acme", Role.ADMINISTRATOR).cache("ImportTuning", request)
    assert done.added == 1
    for tenant, is_there in (("acme", True), ("beta", False)):
        reader = reporter_of(tenant_farm, tenant, Role.READER)
        found = reader.read(tuning_subject_to_proto(subject))
        assert (found is not None) == is_there
        if found is not None:
            assert found.manifest.namespace == "default/acme"
            assert found.manifest.tags == ["tenant:acme"]
        reader.close()
