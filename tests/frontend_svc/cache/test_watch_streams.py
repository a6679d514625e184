"""Invalidation streams: limited for each tenant, and without the models of other tenants."""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator

import pytest

from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.invalidation_feed import FeedEvent
from frontend_svc.cache.tenant_caches import TenantCaches
from frontend_svc.cache.tiered_programs import Caller
from frontend_svc.cache.watch_streams import WatchStreams
from kernelfarm.cache import Epoch, KernelCache, SigningPolicy, Space
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.cache.limits import BLOB_TTL_S
from kernelfarm.cache.named_models import MAX_MODELS, NamedModels
from kernelfarm.errors import WatchesQuotaError
from kernelfarm.service.tenants.identity import Identity, NamespaceConfig, Role

KEY = hashlib.sha256(b"a program").digest()
OURS, THEIRS = "model:ours@1", "model:theirs@1"
EPOCH = Epoch("0" * 32, 7)


def identity_of(tenant: str, role: Role = Role.READER) -> Identity:
    return Identity(tenant, frozenset({role}), NamespaceConfig(tenant, tenant.encode() * 8))


@pytest.fixture(scope="module")
def server() -> AsyncIterator[EmbeddedServer]:
    started = start_server(ServerRole.CACHE)
    yield started
    started.stop()


@pytest.fixture
async def tenant_caches(
    server: EmbeddedServer, request: pytest.FixtureRequest
) -> AsyncIterator[TenantCaches]:
    name = "farm-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    async with KernelCache(server.url, namespace=name, space=Space.PROGRAMS) as cache:
        yield TenantCaches(cache, GatewayTier(2**20, 30.0), SigningPolicy())


async def look_up(parts: TenantCaches, tenant: str, *tags: str) -> None:
    await parts.of(identity_of(tenant).namespace_config).programs.find(KEY, Caller(tags))


async def shown(parts: TenantCaches, identity: Identity, *tags: str) -> FeedEvent:
    return await WatchStreams(parts, 10, 10).visible_to(identity, FeedEvent(EPOCH, tags))


async def test_a_watch_shows_the_models_that_its_tenant_named_and_the_shared_ones(
    tenant_caches: TenantCaches,
) -> None:
    await look_up(tenant_caches, "acme", OURS)
    await look_up(tenant_caches, "beta", THEIRS)
    await tenant_caches.shared_models().record(["model:everybodys"])
    reported = await shown(
        tenant_caches, identity_of("acme"), OURS, THEIRS, "model:everybodys", "op:x"
    )
    assert reported == FeedEvent(EPOCH, (OURS, "model:everybodys", "op:x"))
    assert await shown(tenant_caches, identity_of("acme"), THEIRS) == FeedEvent(EPOCH)
    everything = await shown(
        tenant_caches, identity_of("acme", Role.ADMINISTRATOR), THEIRS, "tenant:beta"
    )
    assert everything == FeedEvent(EPOCH, (THEIRS, "tenant:beta"))


async def test_a_tenant_whose_models_were_not_recorded_from_the_start_drops_everything(
    tenant_caches: TenantCaches,
) -> None:
    part = tenant_caches.of(identity_of("acme").namespace_config)
    await part.cache.count("misses")
    assert await shown(tenant_caches, identity_of("acme"), THEIRS) == FeedEvent(
        EPOCH, is_flush=True
    )
    await look_up(tenant_caches, "acme", OURS)
    assert await shown(tenant_caches, identity_of("acme"), THEIRS) == FeedEvent(
        EPOCH, is_flush=True
    )
    assert await shown(tenant_caches, identity_of("acme"), OURS) == FeedEvent(EPOCH, (OURS,))
    # After everything that was not recorded has expired, tags of other tenants are hidden.
    long_ago_ms = round((time.time() - BLOB_TTL_S - 1) * 1e3)
    await part.cache.client.hset(part.cache.redis_keys.models, "@since", long_ago_ms)
    assert await shown(tenant_caches, identity_of("acme"), THEIRS) == FeedEvent(EPOCH)


async def test_too_many_models_are_not_recorded_and_nothing_is_missed(
    tenant_caches: TenantCaches,
) -> None:
    part = tenant_caches.of(identity_of("acme").namespace_config)
    await part.programs.models.record([f"model:{n}" for n in range(MAX_MODELS + 1)])
    assert await part.cache.client.hlen(part.cache.redis_keys.models) == 2
    assert await shown(tenant_caches, identity_of("acme"), "model:1") == FeedEvent(
        EPOCH, is_flush=True
    )


async def test_models_are_recorded_after_the_store_is_back(
    tenant_caches: TenantCaches, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tenant_caches.of(identity_of("acme").namespace_config).cache.client
    models = NamedModels(
        client, tenant_caches.of(identity_of("acme").namespace_config).cache.redis_keys
    )
    with monkeypatch.context() as patch:

        def gone(*args: object, **kwargs: object) -> None:
            raise ConnectionError

        patch.setattr(client, "pipeline", gone)
        await models.record([OURS])
    await models.record([])
    assert await models.unnamed([OURS]) == (set(), True)


def test_a_tenant_has_a_limit_of_streams_and_others_have_theirs(
    tenant_caches: TenantCaches,
) -> None:
    watches = WatchStreams(tenant_caches, 3, 2)
    with watches.watching("acme"), watches.watching("acme"):
        with pytest.raises(WatchesQuotaError, match=r"2 streams .* tenant 'acme'"):
            watches.watching("acme").__enter__()
        with watches.watching("beta"), pytest.raises(WatchesQuotaError, match="at this gateway"):
            watches.watching("gamma").__enter__()
    with watches.watching("acme"):
        pass
