"""Traces in a farm with tenants: who may publish, what is refused, what is found and counted."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from kernelfarm.digest import trace_digest
from kernelfarm.errors import (
    BytesQuotaError,
    CallerError,
    EntriesQuotaError,
    ExpiredManifestError,
    ForgedManifestError,
    KernelfarmError,
    MalformedMessageError,
    ManifestMismatchError,
    PermissionDeniedError,
    PoisonedBlobError,
    UnauthenticatedError,
    UntrustedKeyError,
)
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.signing import Space, new_signer
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.signing.tags import tenant_tag
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as compile_api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1 import trace_service_pb2 as api
from tests.support.small_graphs import h_request
from tests.support.tenant_traces import Traces, a_digest, trace_content
from tests.support.tenants_farm import TenantFarm, binary_of, set_quota

TRACES = 2


def test_a_trace_comes_with_its_program_and_the_blobs_that_the_client_lacks(
    tenant_farm: TenantFarm,
) -> None:
    request = h_request(401, 24)
    program = tenant_farm.caller("acme").compile(request)
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    trace = acme.made(digest, trace_content(program.key))
    assert acme.look_up(digest)[0].miss.reason == cache_api.MISS_REASON_KEY
    assert acme.put(trace) == api.PUT_TRACE_OUTCOME_STORED
    first, second, *chunks = acme.look_up(digest)
    assert first.trace == trace
    assert second.program.signed.manifest.key == program.key
    assert second.program.outcome == compile_api.CACHE_OUTCOME_HIT
    contents: dict[bytes, bytes] = {}
    for chunk in chunks:
        contents[chunk.blob.sha256] = contents.get(chunk.blob.sha256, b"") + chunk.blob.data
    assert all(hashlib.sha256(data).digest() == sha256 for sha256, data in contents.items())
    assert binary_of(program) in contents and chunks[-1].blob.is_last
    again = acme.look_up(digest, present_blobs=list(contents))
    assert [part.WhichOneof("part") for part in again] == ["trace", "program"]


def test_a_trace_without_its_program_is_reported(tenant_farm: TenantFarm) -> None:
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    acme.put(acme.made(digest))
    parts = acme.look_up(digest)
    assert [part.WhichOneof("part") for part in parts] == ["trace", "miss"]
    assert parts[1].miss.is_program


def test_a_tenants_traces_are_private_and_warmers_traces_are_shared(
    tenant_farm: TenantFarm,
) -> None:
    acme, beta = Traces(tenant_farm, "acme"), Traces(tenant_farm, "beta")
    own, shared = a_digest(), a_digest()
    assert acme.put(acme.made(own)) == api.PUT_TRACE_OUTCOME_STORED
    assert acme.finds(own) and not beta.finds(own)
    assert Traces(tenant_farm, "acme", Role.READER).finds(own)
    warmer = Traces(tenant_farm, "acme", Role.WARMER)
    assert warmer.put(warmer.made(shared)) == api.PUT_TRACE_OUTCOME_STORED
    assert beta.finds(shared) and acme.finds(shared)
    # A trace that acme signed for itself cannot be published in another namespace.
    for other in (beta, warmer):
        with pytest.raises(CallerError, match="without the tags"):
            other.put(acme.made(own))
        with pytest.raises(ManifestMismatchError):
            other.put(acme.made(own, tags=(tenant_tag(other.namespace.partition("/")[2]),)))


def test_readers_and_unauthenticated_callers_publish_nothing(tenant_farm: TenantFarm) -> None:
    trace = Traces(tenant_farm, "acme").made(a_digest())
    with pytest.raises(PermissionDeniedError, match="role member or warmer"):
        Traces(tenant_farm, "acme", Role.READER).put(trace)
    with pytest.raises(PermissionDeniedError):
        Traces(tenant_farm, "acme", Role.ADMINISTRATOR).put(trace)
    with pytest.raises(UnauthenticatedError):
        Traces(tenant_farm, "acme", None).put(trace)


def test_a_live_trace_is_not_replaced(tenant_farm: TenantFarm) -> None:
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    first = acme.made(digest)
    assert acme.put(first) == api.PUT_TRACE_OUTCOME_STORED
    other = acme.made(digest, trace_content(entry=b"another"))
    assert acme.put(other) == api.PUT_TRACE_OUTCOME_PRESENT
    assert acme.look_up(digest)[0].trace == first


def truncated(trace: manifest_pb2.SignedVariant) -> manifest_pb2.SignedVariant:
    trace.content = trace.content[:-1]
    return trace


def meddled(trace: manifest_pb2.SignedVariant) -> manifest_pb2.SignedVariant:
    trace.manifest.epoch += 1
    return trace


REFUSED: dict[str, tuple[type[KernelfarmError], Any]] = {
    "forged": (ForgedManifestError, lambda t, d: meddled(t.made(d))),
    "untrusted key": (UntrustedKeyError, lambda t, d: t.made(d, signer=new_signer(Space.TRACES))),
    "expired": (ExpiredManifestError, lambda t, d: t.made(d, not_after_s=5)),
    "truncated": (PoisonedBlobError, lambda t, d: truncated(t.made(d))),
    "of another tenant": (ManifestMismatchError, lambda t, d: t.made(d, namespace="default/beta")),
    "a program": (CallerError, lambda t, d: t.made(d, space=Space.PROGRAMS)),
    "with blobs": (CallerError, lambda t, d: t.made(d, blobs=(blob_ref(b"b"),))),
    "untagged": (CallerError, lambda t, d: t.made(d, tags=())),
    "with a bad tag": (CallerError, lambda t, d: t.made(d, tags=("tenant:acme", "no tag"))),
    "no trace": (MalformedMessageError, lambda t, d: t.made(d, b"\xff\xff\xff")),
    "without a key": (MalformedMessageError, lambda t, d: t.made(d, trace_content(b"short"))),
    "empty": (MalformedMessageError, lambda t, d: t.made(d, trace_content(entry=b""))),
    "without a manifest": (
        MalformedMessageError, lambda t, d: manifest_pb2.SignedVariant(content=b"c"),
    ),
    "too large": (CallerError, lambda t, d: t.made(d, trace_content(entry=bytes(4 << 20)))),
}  # fmt: skip


@pytest.mark.parametrize("harm", REFUSED)
def test_a_trace_that_is_not_of_this_tenant_is_refused_and_not_stored(
    tenant_farm: TenantFarm,
    harm: str,
) -> None:
    kind, make = REFUSED[harm]
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    with pytest.raises(KernelfarmError) as caught:
        acme.put(make(acme, digest))
    assert type(caught.value) is kind, caught.value
    assert not acme.finds(digest)


@pytest.mark.parametrize(
    "asked", [{"digest": b"short"}, {"digest": bytes(32), "present_blobs": [b"x"]}]
)
def test_digests_of_a_wrong_length_are_refused(
    tenant_farm: TenantFarm, asked: dict[str, Any]
) -> None:
    with pytest.raises(CallerError, match="expected 32"):
        Traces(tenant_farm, "acme").look_up(**asked)


def test_invalidating_a_tenant_or_a_model_makes_its_traces_stale(tenant_farm: TenantFarm) -> None:
    acme, digest = Traces(tenant_farm, "acme"), a_digest()
    trace = acme.made(digest, tags=("model:m@1", "tenant:acme"))
    acme.put(trace)
    administrator = tenant_farm.caller("acme", Role.ADMINISTRATOR)
    for tag in ("model:m@1", "tenant:acme"):
        asked = cache_api.InvalidateRequest(tags=[tag], dry_run=True)
        assert administrator.cache("Invalidate", asked).traces >= 1
        administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=[tag]))
        (part,) = acme.look_up(digest)
        assert (part.miss.reason, part.miss.detail) == (cache_api.MISS_REASON_EPOCH, tag)
        # An earlier trace stays stale; a new one may be stored.
        assert acme.put(trace) == api.PUT_TRACE_OUTCOME_STALE
        trace = acme.made(digest, tags=("model:m@1", "tenant:acme"))
        assert acme.put(trace) == api.PUT_TRACE_OUTCOME_STORED
    # The model of the caller counts too, whatever model the trace states.
    administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=["model:mine@1"]))
    assert acme.look_up(digest, model="mine@1")[0].HasField("miss")
    assert acme.finds(digest)


def test_traces_count_in_usage_and_quotas_and_are_swept(tenant_farm: TenantFarm) -> None:
    poor, caller = Traces(tenant_farm, "poor"), tenant_farm.caller("poor")
    before = caller.usage()
    digest = a_digest()
    poor.put(poor.made(digest, trace_content(entry=bytes(5000))))
    poor.finds(digest)
    after = caller.usage()
    assert after.held_entries == before.held_entries + 1
    assert after.held_bytes > before.held_bytes + 5000
    counters = after.spaces[TRACES].counters
    assert after.spaces[TRACES].space == manifest_pb2.CACHE_SPACE_TRACES
    assert (counters["hits"], counters["published"]) == (1, 1) and counters["misses"] >= 1
    for quota, kind in (
        (Quota(max_entries=after.held_entries), EntriesQuotaError),
        (Quota(max_bytes=after.held_bytes), BytesQuotaError),
    ):
        set_quota(tenant_farm, "poor", quota)
        with pytest.raises(kind):
            poor.put(poor.made(a_digest()))
    set_quota(tenant_farm, "poor", Quota())
    administrator = tenant_farm.caller("poor", Role.ADMINISTRATOR)
    administrator.cache("Sweep", cache_api.SweepRequest())
    assert caller.usage().spaces[TRACES].entries == 1
    administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=["tenant:poor"]))
    administrator.cache("Sweep", cache_api.SweepRequest())
    assert caller.usage().spaces[TRACES].entries == 0


def parts_of(number: int, **changes: str) -> dict[str, str]:
    """The parts of the digest of a graph with this number."""
    parts = {"graph": f"g{number}", "calls": f"c{number}", "target": "cpu:x86-64-v3"}
    return {**parts, "torch": "2.13.0", "options": "deterministic=False", **changes}


def differences(reported: api.ExplainTraceMissResponse) -> dict[str, tuple[str, str]]:
    return {d.part: (d.requested, d.nearest) for d in reported.trace.differences}


def test_a_miss_is_explained_by_the_part_of_the_digest_that_differs(
    tenant_farm: TenantFarm,
) -> None:
    acme, parts = Traces(tenant_farm, "acme"), parts_of(1)
    digest = trace_digest(parts)
    acme.put(acme.made(digest), parts)
    reported = Traces(tenant_farm, "acme", Role.READER).explain(parts=parts_of(1, torch="2.11.0"))
    assert reported.trace.reason == cache_api.MISS_REASON_KEY and not reported.HasField("manifest")
    assert reported.trace.key == trace_digest(parts_of(1, torch="2.11.0"))
    assert reported.trace.nearest_key == digest
    assert differences(reported) == {"torch": ("2.11.0", "2.13.0")}
    # A part that only one of the two has differs too.
    more = differences(acme.explain(parts=parts_of(1, graph="other", mode="new")))
    assert more == {"graph": ("other", "g1"), "mode": ("new", "")}
    assert acme.explain(parts=parts_of(2, target="cpu:x86-64-v4")).trace.nearest_key == b""
    # The digest alone suffices after a trace with it was published.
    found = acme.explain(digest=digest)
    assert (found.trace.reason, found.manifest.key) == (cache_api.MISS_REASON_NONE, digest)
    assert found.program.reason == cache_api.MISS_REASON_KEY


def test_a_miss_is_explained_by_the_tag_that_was_invalidated(tenant_farm: TenantFarm) -> None:
    acme, parts = Traces(tenant_farm, "acme"), parts_of(3)
    tags = ("model:m@3", "tenant:acme")
    acme.put(acme.made(trace_digest(parts), tags=tags), parts)
    tenant_farm.caller("acme", Role.ADMINISTRATOR).cache(
        "Invalidate", cache_api.InvalidateRequest(tags=["model:m@3"])
    )
    reported = acme.explain(parts=parts)
    assert reported.trace.reason == cache_api.MISS_REASON_EPOCH
    assert reported.trace.nearest_key == trace_digest(parts)
    assert differences(reported)["tag"][1] == "model:m@3 was invalidated after it was made"


def test_explanations_show_shared_traces_but_none_of_other_tenants(
    tenant_farm: TenantFarm,
) -> None:
    acme, beta, warmer = (
        Traces(tenant_farm, "acme"),
        Traces(tenant_farm, "beta"),
        Traces(tenant_farm, "acme", Role.WARMER),
    )  # fmt: skip
    own, shared = parts_of(4, target="cpu:own"), parts_of(5, target="cpu:shared")
    acme.put(acme.made(trace_digest(own)), own)
    for asked in ({"parts": own}, {"parts": {**own, "torch": "9"}}, {"digest": trace_digest(own)}):
        reported = beta.explain(**asked).trace
        assert (reported.reason, reported.nearest_key) == (cache_api.MISS_REASON_KEY, b"")
        assert not reported.differences
    warmer.put(warmer.made(trace_digest(shared)), shared)
    assert beta.explain(parts=shared).trace.reason == cache_api.MISS_REASON_NONE
    near = beta.explain(parts={**shared, "torch": "9"})
    assert differences(near) == {"torch": ("9", "2.13.0")}
    with pytest.raises(UnauthenticatedError):
        Traces(tenant_farm, "acme", None).explain(parts=own)
    with pytest.raises(PermissionDeniedError):
        Traces(tenant_farm, "acme", Role.ADMINISTRATOR).explain(parts=own)


BAD_PARTS: dict[str, dict[str, str]] = {
    "of another digest": parts_of(7),
    "too many": {f"part_{'a' * number}": "" for number in range(33)},
    "too long": parts_of(6, torch="2" * 201),
    "not printable": parts_of(6, torch="2\n"),
    "of another name": parts_of(6, **{"a part": ""}),
}


@pytest.mark.parametrize("harm", BAD_PARTS)
def test_parts_that_do_not_give_the_digest_are_refused(tenant_farm: TenantFarm, harm: str) -> None:
    acme, digest = Traces(tenant_farm, "acme"), trace_digest(parts_of(6))
    with pytest.raises((CallerError, MalformedMessageError), match="expected"):
        acme.put(acme.made(digest), BAD_PARTS[harm])
    assert not acme.finds(digest)


@pytest.mark.parametrize("asked", [{}, {"digest": b"short"}, {"parts": BAD_PARTS["too long"]}])
def test_requests_without_a_valid_digest_are_refused(
    tenant_farm: TenantFarm, asked: dict[str, Any]
) -> None:
    with pytest.raises((CallerError, MalformedMessageError), match="expected"):
        Traces(tenant_farm, "acme").explain(**asked)
