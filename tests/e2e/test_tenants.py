"""Tenants of a running farm, over real sockets: programs, quotas, roles and refusals."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from kernelfarm.errors import (
    BytesQuotaError,
    CallerError,
    CompilesQuotaError,
    EntriesQuotaError,
    KernelfarmError,
    NotFoundError,
    OtherTenantError,
    PermissionDeniedError,
    ReadOnlyRoleError,
    UnauthenticatedError,
    UnknownTokenError,
)
from kernelfarm.service.channels import open_blocking_channel
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.signing import CacheAddress, Space, check_manifest
from kernelfarm.signing.key_files import PUBLIC_KEYS, read_keyring
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1 import compile_service_pb2_grpc as api_grpc
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.wire.manifest import manifest_from_proto
from tests.support.command_line import run_command
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.small_graphs import h_request, slow_request
from tests.support.tenants_farm import Caller, TenantFarm, binary_of, counted, set_quota


def test_a_tenant_hits_only_its_own_programs(tenant_farm: TenantFarm) -> None:
    acme, beta = tenant_farm.caller("acme"), tenant_farm.caller("beta")
    request = h_request(301, 24)
    first = acme.compile(request)
    assert (first.outcome, first.codegen_jobs > 0) == (api.CACHE_OUTCOME_MISS, True)
    assert acme.compile(request).outcome == api.CACHE_OUTCOME_HIT
    with pytest.raises(NotFoundError):
        beta.lookup(first.key)
    with pytest.raises(NotFoundError):
        beta.read(binary_of(first))
    assert acme.read(binary_of(first))
    theirs = beta.compile(request)
    assert (theirs.outcome, theirs.codegen_jobs) == (api.CACHE_OUTCOME_MISS, first.codegen_jobs)
    assert theirs.key == first.key, "clients know the key of the program that they request"
    explained = beta.cache("ExplainMiss", cache_api.ExplainMissRequest(key=b"x" * 32))
    assert explained.nearest_key == b""


def test_a_program_is_signed_for_its_tenant(tenant_farm: TenantFarm) -> None:
    request = h_request(302, 24)
    request.wants_signed = True
    signed = tenant_farm.caller("acme").compile(request).signed
    keyring = read_keyring(tenant_farm.farm.data_dir / "keys" / PUBLIC_KEYS)
    manifest = manifest_from_proto(signed.manifest)
    address = CacheAddress("default/acme", Space.PROGRAMS, manifest.key)
    check_manifest(manifest, address, keyring, time.time())
    assert "tenant:acme" in manifest.tags
    content = api.ProgramResult.FromString(signed.content)
    assert content.key == manifest.key
    reported = tenant_farm.caller("acme").capabilities()
    assert (reported.namespace, reported.shared_namespace) == ("default/acme", "default/shared")
    assert (reported.needs_credentials, reported.is_encrypted) == (True, False)
    anonymous = Caller(tenant_farm.farm.endpoint, "").capabilities()
    assert (anonymous.namespace, anonymous.needs_credentials) == ("", True)


def test_every_tenant_finds_programs_of_warmers_and_only_warmers_publish_them(
    tenant_farm: TenantFarm,
) -> None:
    warmer, beta = tenant_farm.caller("acme", Role.WARMER), tenant_farm.caller("beta")
    request = h_request(303, 24)
    warmed = warmer.compile(request)
    found = beta.compile(request)
    assert (found.outcome, found.codegen_jobs) == (api.CACHE_OUTCOME_HIT, 0)
    assert beta.read(binary_of(warmed)) and beta.lookup(warmed.key).key == warmed.key
    assert tenant_farm.caller("beta", Role.READER).compile(request).outcome == api.CACHE_OUTCOME_HIT
    own = beta.compile(h_request(304, 24))
    with pytest.raises(NotFoundError):
        warmer.lookup(own.key)
    administrator = tenant_farm.caller("beta", Role.ADMINISTRATOR)
    assert administrator.usage("shared").held_entries >= 2


def test_a_tenants_own_program_takes_the_kernels_that_warmers_published(
    tenant_farm: TenantFarm,
) -> None:
    request = h_request(308, 24)
    warmed = tenant_farm.caller("acme", Role.WARMER).compile(request)
    assert warmed.codegen_jobs > 0
    own = h_request(308, 24)
    own.options.deterministic = True  # another program of equal kernels
    beta, administrator = tenant_farm.caller("beta"), tenant_farm.caller("beta", Role.ADMINISTRATOR)
    found = beta.compile(own)
    assert (found.outcome, found.codegen_jobs) == (api.CACHE_OUTCOME_MISS, 0)
    assert found.key != warmed.key and binary_of(found) == binary_of(warmed)
    assert beta.read(binary_of(found))
    # It is the tenant's own: changes to the shared namespace do not affect its blobs.
    administrator.cache("Sweep", cache_api.SweepRequest())
    assert beta.compile(own).outcome == api.CACHE_OUTCOME_HIT
    administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=["tenant:shared"]))
    assert beta.compile(own).codegen_jobs > 0, "its kernel is stale now"


def test_a_reader_finds_and_does_not_publish(tenant_farm: TenantFarm) -> None:
    reader = tenant_farm.caller("acme", Role.READER)
    refused = counted(tenant_farm, "refused_read_only_role", "acme")
    request = h_request(305, 24)
    with pytest.raises(ReadOnlyRoleError, match="role may only read"):
        reader.compile(request)
    tenant_farm.caller("acme").compile(request)
    assert reader.compile(request).outcome == api.CACHE_OUTCOME_HIT
    assert counted(tenant_farm, "refused_read_only_role", "acme") == refused + 1


def test_administrators_alone_invalidate_sweep_and_see_others(tenant_farm: TenantFarm) -> None:
    member, administrator = (
        tenant_farm.caller("acme"),
        tenant_farm.caller("acme", Role.ADMINISTRATOR),
    )
    denied = counted(tenant_farm, "refused_permission_denied", "acme")
    refused = counted(tenant_farm, "refused_other_tenant", "acme")
    for method, asked in (
        ("Invalidate", cache_api.InvalidateRequest(tags=["op:none"])),
        ("Sweep", cache_api.SweepRequest()),
        ("ImportProgram", cache_api.ImportProgramRequest()),
        ("ImportTuning", cache_api.ImportTuningRequest()),
    ):
        with pytest.raises(PermissionDeniedError, match="role administrator; tenant 'acme' has"):
            member.cache(method, asked)
    with pytest.raises(OtherTenantError, match="of tenant 'beta'"):
        member.usage("beta")
    with pytest.raises(OtherTenantError):
        member.usage("nobody")
    with pytest.raises(NotFoundError, match="no tenant 'nobody'"):
        administrator.usage("nobody")
    assert member.usage().tenant == member.usage("acme").tenant == "acme"
    assert administrator.usage("beta").tenant == "beta"
    assert counted(tenant_farm, "refused_permission_denied", "acme") == denied + 4
    assert counted(tenant_farm, "refused_other_tenant", "acme") == refused + 2
    with pytest.raises(PermissionDeniedError, match="role reader or member or warmer"):
        administrator.compile(h_request(306, 24))


def test_one_invalidation_reaches_every_tenant_and_a_sweep_all_namespaces(
    tenant_farm: TenantFarm,
) -> None:
    request = h_request(307, 24)
    for tenant in ("acme", "beta"):
        tenant_farm.caller(tenant).compile(request)
    administrator = tenant_farm.caller("acme", Role.ADMINISTRATOR)
    administrator.cache("Invalidate", cache_api.InvalidateRequest(tags=["tenant:beta"]))
    assert tenant_farm.caller("acme").compile(request).outcome == api.CACHE_OUTCOME_HIT
    assert tenant_farm.caller("beta").compile(request).outcome == api.CACHE_OUTCOME_MISS
    swept = administrator.cache("Sweep", cache_api.SweepRequest())
    assert swept.dead_variants > 0
    assert administrator.usage("beta").spaces[0].entries > 0


def test_watchers_receive_events_of_their_own_and_the_shared_namespace_alone(
    tenant_farm: TenantFarm,
) -> None:
    administrator = tenant_farm.caller("acme", Role.ADMINISTRATOR)
    metadata = (("authorization", f"Bearer {tenant_farm.tokens['beta', Role.READER]}"),)
    with open_blocking_channel(tenant_farm.farm.endpoint) as channel:
        request = cache_api.WatchInvalidationsRequest()
        events = CacheServiceStub(channel).WatchInvalidations(
            request, metadata=metadata, timeout=TIMEOUT_S
        )
        next(events)
        for tenant in ("acme", "beta", "shared"):
            asked = cache_api.InvalidateRequest(tags=[f"tenant:{tenant}", f"op:{tenant}"])
            administrator.cache("Invalidate", asked)
        reported = (list(event.tags) for event in events if event.tags)
        assert [next(reported) for _ in range(3)] == [
            ["op:acme"],
            ["tenant:beta", "op:beta"],
            ["tenant:shared", "op:shared"],
        ]
        events.cancel()


def test_wrong_and_missing_tokens_are_refused_and_counted(tenant_farm: TenantFarm) -> None:
    endpoint, request = tenant_farm.farm.endpoint, h_request(308, 24)
    names = ("refused_credentials_missing", "refused_token_unknown")
    before = [counted(tenant_farm, name) for name in names]
    for token, kind in (
        ("", UnauthenticatedError),
        (new_token(frozenset({Role.MEMBER}))[0], UnknownTokenError),
    ):
        with pytest.raises(KernelfarmError) as caught:
            Caller(endpoint, token).compile(request)
        assert type(caught.value) is kind
    assert [counted(tenant_farm, name) for name in names] == [count + 1 for count in before]


def test_quotas_on_entries_and_bytes_refuse_without_a_delay(tenant_farm: TenantFarm) -> None:
    poor = tenant_farm.caller("poor")
    names = ("refused_quota_entries", "refused_quota_bytes")
    before = [counted(tenant_farm, name, "poor") for name in names]
    poor.compile(h_request(309, 24))
    held = poor.usage()
    assert held.held_entries >= 2 and held.held_bytes > 1000
    for quota, kind in (
        (Quota(max_entries=held.held_entries), EntriesQuotaError),
        (Quota(max_bytes=held.held_bytes), BytesQuotaError),
    ):
        set_quota(tenant_farm, "poor", quota)
        with pytest.raises(kind, match=r"holds \d+ .* of \d+") as caught:
            poor.compile(h_request(310, 24))
        assert caught.value.retry_after_s is None
        assert poor.compile(h_request(309, 24)).outcome == api.CACHE_OUTCOME_HIT
    set_quota(tenant_farm, "poor", Quota())
    assert poor.compile(h_request(310, 24)).outcome == api.CACHE_OUTCOME_MISS
    assert [counted(tenant_farm, name, "poor") for name in names] == [n + 1 for n in before]


def test_the_command_line_shows_usage_and_limits(
    tenant_farm: TenantFarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELFARM_TOKEN", tenant_farm.tokens["acme", Role.READER])
    tenant_farm.caller("acme").compile(h_request(312, 24))

    command = ("usage", "--endpoint", tenant_farm.farm.endpoint)
    shown = run_command(*command)
    assert "tenant acme, now:" in shown and "of unlimited bytes" in shown
    assert "invalidations" not in shown
    with pytest.raises(OtherTenantError):
        run_command(*command, "--tenant", "beta")
    monkeypatch.setenv("KERNELFARM_ADMIN_TOKEN", tenant_farm.tokens["acme", Role.ADMINISTRATOR])
    assert "tenant beta, now:" in run_command(*command, "--tenant", "beta")


def test_a_quota_of_compilations_refuses_with_a_delay_and_costs_no_attempt(
    tenant_farm: TenantFarm,
) -> None:
    set_quota(tenant_farm, "poor", Quota(max_compiles=1))
    poor = tenant_farm.caller("poor")
    refused = counted(tenant_farm, "refused_quota_compiles", "poor")
    request = h_request(311, 24)
    request.targets[:] = ["cpu:x86-64-v3", "cpu:x86-64-v4"]
    with pytest.raises(CompilesQuotaError, match="1 compilations of tenant 'poor'") as caught:
        poor.compile(request)
    assert caught.value.retry_after_s == 1.0
    wait_until(
        lambda: poor.usage().compiles_in_flight == 0, TIMEOUT_S, "the end of the compilation"
    )
    for target in ("cpu:x86-64-v3", "cpu:x86-64-v4"):
        request.targets[:] = [target]
        assert poor.compile(request).target == target
    set_quota(tenant_farm, "poor", Quota())
    assert counted(tenant_farm, "refused_quota_compiles", "poor") == refused + 1
    assert counted(tenant_farm, "quarantined", "poor") == 0


def test_a_request_that_waits_for_an_in_flight_build_does_not_count(
    tenant_farm: TenantFarm,
) -> None:
    set_quota(tenant_farm, "poor", Quota(max_compiles=1))
    poor, request = tenant_farm.caller("poor"), slow_request()
    refused = counted(tenant_farm, "refused_quota_compiles", "poor")
    with open_blocking_channel(
        tenant_farm.farm.endpoint, None, tenant_farm.tokens["poor", Role.MEMBER]
    ) as own:
        events = api_grpc.CompileServiceStub(own).Compile(request, timeout=TIMEOUT_S)
        assert any(event.stage.stage == "decompose" for event in events)  # it holds the lease
        assert poor.compile(request).outcome == api.CACHE_OUTCOME_MERGED
        assert [e for e in events if e.WhichOneof("event") == "program"]
    set_quota(tenant_farm, "poor", Quota())
    assert counted(tenant_farm, "refused_quota_compiles", "poor") == refused


def test_a_bad_tenants_file_changes_nothing_and_is_logged(tenant_farm: TenantFarm) -> None:
    good = tenant_farm.path.read_bytes()
    tenant_farm.path.write_text("format = 1\n[tenants.acme]\n")

    def is_logged() -> bool:
        counts = counted(tenant_farm, "tenants_file_errors") >= 1  # each call checks the file
        return counts and "the salt is invalid" in tenant_farm.farm.log("frontend")

    wait_until(is_logged, TIMEOUT_S, "the fault")
    assert tenant_farm.caller("acme").usage().tenant == "acme"
    tenant_farm.path.write_bytes(good)


def test_a_farm_does_not_start_with_a_bad_tenants_file(tmp_path: Path) -> None:
    from kernelfarm.supervisor.run import FarmOptions, run_farm  # noqa: PLC0415 -- grpc, redis

    path = tmp_path / "tenants.toml"
    path.write_text("format = 3")
    options = FarmOptions("127.0.0.1:0", ("cpu",), 1, tmp_path, False, tenants_file=path)
    with pytest.raises(CallerError, match=r"tenants.toml cannot be used: format is 3"):
        run_farm(options)


def test_a_farm_without_tenants_says_once_that_it_is_open(farm: Farm) -> None:
    reported = Caller(farm.endpoint, "").capabilities()
    assert (reported.needs_credentials, reported.is_encrypted) == (False, False)
    assert (reported.namespace, reported.shared_namespace) == ("default", "")
    assert farm.log("frontend").count('"access_unrestricted"') == 1
