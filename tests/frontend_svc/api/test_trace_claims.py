"""Claims: who makes a missing trace, and what the response reports to the others."""

from __future__ import annotations

import pytest

from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.identity import Role
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import trace_service_pb2 as api
from tests.support.farm import wait_until
from tests.support.tenant_traces import Traces, a_digest
from tests.support.tenants_farm import TenantFarm

LONG_MS = 60_000


def claim(name: bytes, duration_ms: int = LONG_MS) -> api.TraceClaim:
    return api.TraceClaim(claimant=name * 16, duration_ms=duration_ms)


def in_flight_ms(traces: Traces, digest: bytes, claim: api.TraceClaim | None) -> int:
    """How long the caller of a look-up that misses may wait for another process."""
    (answer,) = traces.look_up(digest, claim=claim)
    return answer.miss.in_flight_ms


def test_one_of_several_callers_makes_a_missing_trace(tenant_farm: TenantFarm) -> None:
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    assert in_flight_ms(acme, digest, claim(b"a", 0)) == 0, "nobody makes it"
    assert in_flight_ms(acme, digest, claim(b"a")) == 0, "this caller makes it"
    assert in_flight_ms(acme, digest, claim(b"a")) == 0, "its own claim, again"
    assert LONG_MS / 2 < in_flight_ms(acme, digest, claim(b"b")) <= LONG_MS
    assert in_flight_ms(acme, digest, None) == 0, "without a claim, no report"
    acme.put(acme.made(digest))
    assert acme.finds(digest)


def test_a_claim_ends_by_publication_by_its_time_and_by_its_claimant(
    tenant_farm: TenantFarm,
) -> None:
    acme = Traces(tenant_farm, "acme")
    published, lapsed, given_up = a_digest(), a_digest(), a_digest()
    assert in_flight_ms(acme, published, claim(b"a")) == 0
    acme.put(acme.made(published))
    administrator = tenant_farm.caller("acme", Role.ADMINISTRATOR)
    administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=["tenant:acme"]))
    assert in_flight_ms(acme, published, claim(b"b")) == 0

    assert in_flight_ms(acme, lapsed, claim(b"a", 300)) == 0
    assert 0 < in_flight_ms(acme, lapsed, claim(b"b")) <= 300
    wait_until(lambda: not in_flight_ms(acme, lapsed, claim(b"b")), 30, "the end of the claim")
    assert in_flight_ms(acme, lapsed, claim(b"a")) > 300, "the next caller has it"

    assert in_flight_ms(acme, given_up, claim(b"a")) == 0
    assert in_flight_ms(acme, given_up, claim(b"a", 0)) == 0
    assert in_flight_ms(acme, given_up, claim(b"b")) == 0


def test_readers_and_other_tenants_claim_nothing_of_a_tenant(tenant_farm: TenantFarm) -> None:
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    reader, beta = Traces(tenant_farm, "acme", Role.READER), Traces(tenant_farm, "beta")
    assert in_flight_ms(reader, digest, claim(b"r")) == 0
    assert in_flight_ms(beta, digest, claim(b"o")) == 0
    assert in_flight_ms(acme, digest, claim(b"a")) == 0
    assert in_flight_ms(reader, digest, claim(b"r")) > 0, "a reader may wait"


@pytest.mark.parametrize(
    "wrong",
    [
        api.TraceClaim(),
        api.TraceClaim(claimant=b"a" * 15, duration_ms=1),
        api.TraceClaim(claimant=b"a" * 17),
        claim(b"a", 600_001),
        claim(b"a", 2**32 - 1),
    ],
)
def test_malformed_claims_are_refused(tenant_farm: TenantFarm, wrong: api.TraceClaim) -> None:
    with pytest.raises(CallerError, match="expected at most 600000 ms and 16 bytes"):
        Traces(tenant_farm, "acme").look_up(a_digest(), claim=wrong)
