"""The public API of the cache: invalidation, explanations, usage and sweeps."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass

import grpc.aio

from frontend_svc.api.envelopes import Enveloped, Graph
from frontend_svc.api.requests import MAX_BLOBS_PER_READ, caller_of, options_of
from frontend_svc.cache.explain_miss import explain_miss
from frontend_svc.cache.invalidation_feed import FeedEvent, InvalidationFeed
from frontend_svc.cache.refusal_reporter import RefusalReporter
from frontend_svc.cache.sweeping import FarmSweeper
from frontend_svc.cache.tenant_caches import TenantCache
from frontend_svc.cache.tiered_programs import Caller
from frontend_svc.cache.watch_streams import WatchStreams
from frontend_svc.flow.admission import RateLimiter
from frontend_svc.flow.graph_job_client import GraphJobClient, GraphSource
from frontend_svc.flow.import_cache import BYTES_AT_ONCE
from frontend_svc.flow.import_program import ProgramImport, ProgramImporter
from frontend_svc.flow.import_tuning import TuningImporter
from frontend_svc.flow.services import FlowServices
from frontend_svc.flow.targets import check_targets
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import Epoch, Space, StoredVariant
from kernelfarm.cache.sweeper import SpaceUsage
from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import CallerError, MalformedMessageError, NotFoundError
from kernelfarm.internal.v1.envelopes_pb2 import ExplainMissEnvelope
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.authentication import TenantsFile
from kernelfarm.service.tenants.identity import (
    CACHE_USERS,
    NamespaceConfig,
    Role,
    current_identity,
)
from kernelfarm.signing.tags import check_tag
from kernelfarm.v1 import cache_service_pb2 as api
from kernelfarm.v1 import manifest_pb2
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceServicer

CACHE_SERVICE = "kernelfarm.v1.CacheService"
MAX_TAGS = 64

_TOKEN = re.compile(r"([0-9a-f]{32}):(\d{1,15})")

Context = grpc.aio.ServicerContext[object, object]


@dataclass(frozen=True, slots=True)
class CacheDependencies:
    """What the cache service calls."""

    services: FlowServices
    graph_jobs: GraphJobClient
    feed: InvalidationFeed
    sweeper: FarmSweeper
    importer: ProgramImporter
    tuning_importer: TuningImporter
    refusals: RefusalReporter
    tenants: TenantsFile | None


class CacheService(CacheServiceServicer):
    """Implements `kernelfarm.v1.CacheService`."""

    def __init__(self, work: CacheDependencies, settings: FrontendSettings) -> None:
        self._work = work
        self._settings = settings
        self._watches = WatchStreams(
            work.services.tenant_caches, settings.max_watches, settings.max_watches_per_tenant
        )
        self._dry_runs = RateLimiter(settings.dry_runs_per_minute)

    async def Invalidate(
        self, request: api.InvalidateRequest, context: Context
    ) -> api.InvalidateResponse:
        """Makes entries that depend on tags stale, or counts them."""
        current_identity().require(Role.ADMINISTRATOR)
        if not 1 <= len(request.tags) <= MAX_TAGS:
            raise CallerError(f"{len(request.tags)} tags; expected 1 to {MAX_TAGS}")
        for tag in request.tags:
            check_tag(tag)
        if request.dry_run:
            return await self._dry_run(frozenset(request.tags))
        epochs = self._work.services.cache.epochs
        epoch = await epochs.invalidate(request.tags)
        gateways = await epochs.wait_for_gateways(epoch)
        get_logger().warning(
            "invalidated", tags=list(request.tags), epoch=epoch.number, reason=request.reason
        )
        return api.InvalidateResponse(
            epoch=epoch.number, programs=-1, kernels=-1, traces=-1, gateways=gateways
        )

    async def WatchInvalidations(
        self, request: api.WatchInvalidationsRequest, context: Context
    ) -> AsyncIterator[api.WatchInvalidationsResponse]:
        """Streams invalidations, first the missed ones."""
        resumed = _epoch_of(request.resume_token) if request.resume_token else None
        identity = current_identity()
        with self._watches.watching(identity.tenant):
            async with aclosing(self._work.feed.watch(resumed)) as events:
                async for event in events:
                    yield _event(await self._watches.visible_to(identity, event))

    async def ExplainMiss(  # type: ignore[override] # `with_envelopes` registers it
        self, request: Enveloped[ExplainMissEnvelope], context: Context
    ) -> api.ExplainMissResponse:
        """Explains why a program is not found."""
        identity = current_identity()
        identity.require(*CACHE_USERS)
        tenant_cache = self._work.services.tenant_caches.of(identity.namespace_config)
        caller = _caller(request.fields)
        key, parts = await self._key_and_parts(request.fields, request.graph, identity.tenant)
        del request  # its memory is not needed during the look-ups
        explained = await explain_miss(tenant_cache.cache, tenant_cache.index, key, parts, caller)
        return explained.to_proto()

    async def GetUsage(
        self, request: api.GetUsageRequest, context: Context
    ) -> api.GetUsageResponse:
        """Returns the usage and the counters of a tenant."""
        tenant_cache = self._work.services.tenant_caches.of(self._requested_tenant(request.tenant))
        await self._work.refusals.report()
        usage = await self._work.sweeper.usage(tenant_cache.namespace)
        counters = await tenant_cache.cache.counters()
        spaces = usage.spaces if usage else dict.fromkeys(Space, SpaceUsage())
        response = api.GetUsageResponse(
            spaces=[
                _space(space, space_usage, counters[space]) for space, space_usage in spaces.items()
            ]
        )
        if usage is not None:
            response.counted_time.FromNanoseconds(round(usage.counted_s * 1e9))
            response.blobs, response.blob_bytes = usage.blobs, usage.blob_bytes
        if not tenant_cache.namespace_config.tenant:
            response.invalidations = await self._work.services.cache.epochs.invalidations()
        await _fill_quota(tenant_cache, response)
        return response

    async def Sweep(self, request: api.SweepRequest, context: Context) -> api.SweepResponse:
        """Deletes stale entries and unreferenced blobs."""
        current_identity().require(Role.ADMINISTRATOR)
        swept = await self._work.sweeper.sweep()
        return api.SweepResponse(
            entries=swept.entries,
            dead_variants=swept.dead_variants,
            incomplete_variants=swept.incomplete_variants,
            orphan_blobs=swept.orphan_blobs,
        )

    async def ImportProgram(
        self, request: api.ImportProgramRequest, context: Context
    ) -> api.ImportProgramResponse:
        """Imports a program that another farm signed."""
        identity = current_identity()
        identity.require(Role.ADMINISTRATOR)
        program = _stored(request.program, "program")
        sent = ProgramImport(program, request.contents, request.accepts_invalidated)
        tenant_cache = self._work.services.tenant_caches.of(identity.namespace_config)
        done = await self._work.importer.run(tenant_cache, sent)
        if done.missing:
            return api.ImportProgramResponse(
                outcome=api.IMPORT_OUTCOME_MISSING_BLOBS,
                missing_blobs=done.missing[:MAX_BLOBS_PER_READ],
            )
        stored, present = api.IMPORT_OUTCOME_STORED, api.IMPORT_OUTCOME_PRESENT
        return api.ImportProgramResponse(outcome=stored if done.is_stored else present)

    async def ImportTuning(
        self, request: api.ImportTuningRequest, context: Context
    ) -> api.ImportTuningResponse:
        """Imports the reports of a tuning record that another farm signed."""
        identity = current_identity()
        identity.require(Role.ADMINISTRATOR)
        tenant_cache = self._work.services.tenant_caches.of(identity.namespace_config)
        sent = _stored(request.record, "tuning record")
        return api.ImportTuningResponse(
            added=await self._work.tuning_importer.run(tenant_cache, sent)
        )

    async def _dry_run(self, tags: frozenset[str]) -> api.InvalidateResponse:
        self._dry_runs.take("dry runs")
        epoch = await self._work.services.cache.epochs.current()
        return api.InvalidateResponse(
            epoch=epoch.number,
            programs=await self._work.sweeper.count_hit(Space.PROGRAMS, tags),
            kernels=await self._work.sweeper.count_hit(Space.KERNELS, tags),
            traces=await self._work.sweeper.count_hit(Space.TRACES, tags),
        )

    def _requested_tenant(self, tenant: str) -> NamespaceConfig:
        """The namespace whose usage a call requests.

        Raises:
            OtherTenantError: another tenant's, and the caller is no administrator.
            NotFoundError: the farm has no such tenant.
        """
        identity, tenants = current_identity(), self._work.tenants
        identity.require(*Role)
        if not tenant and (tenants is None or Role.ADMINISTRATOR in identity.roles):
            return NamespaceConfig()
        tenant_name = tenant or identity.tenant
        identity.require_tenant(tenant_name)
        known = tenants.current().namespace_config_of(tenant_name) if tenants else None
        if known is None:
            raise NotFoundError(f"this farm has no tenant {tenant_name[:80]!r}")
        return known

    async def _key_and_parts(
        self, request: ExplainMissEnvelope, graph: Graph | None, tenant: str
    ) -> tuple[bytes, dict[str, str] | None]:
        if request.key:
            if len(request.key) != DIGEST_BYTES:
                raise CallerError(f"key has {len(request.key)} bytes; expected {DIGEST_BYTES}")
            return request.key, None
        if graph is None:
            raise CallerError("neither a graph nor a key; expected one of them")
        check_targets((request.target,))
        source = GraphSource(graph, await _digest(graph), tenant)
        options = options_of(request.options)
        return await self._work.graph_jobs.explain(source, request.target, options)


def _stored(sent: manifest_pb2.SignedVariant, kind: str) -> StoredVariant:
    """What an administrator sent, as it is stored.

    Raises:
        MalformedMessageError: it has no manifest.
    """
    if not sent.HasField("manifest"):
        raise MalformedMessageError(f"a {kind} without its manifest; expected one")
    return StoredVariant(sent.manifest.SerializeToString(deterministic=True), sent.content)


async def _digest(graph: Graph) -> bytes:
    """SHA-256 of a graph; a large graph is hashed in a thread."""
    if len(graph) <= BYTES_AT_ONCE:
        return hashlib.sha256(graph).digest()
    return (await asyncio.to_thread(hashlib.sha256, graph)).digest()


async def _fill_quota(tenant_cache: TenantCache, response: api.GetUsageResponse) -> None:
    held, quota = await tenant_cache.quotas.usage(), tenant_cache.namespace_config.quota
    response.tenant = tenant_cache.namespace_config.tenant
    response.held_bytes, response.held_entries = held.size_bytes, held.entries
    response.compiles_in_flight = await tenant_cache.quotas.compiles_in_flight()
    response.max_bytes = quota.max_bytes or 0
    response.max_entries = quota.max_entries or 0
    response.max_compiles = quota.max_compiles or 0


def _caller(request: ExplainMissEnvelope) -> Caller:
    return caller_of(request.model, request.facts)


def _epoch_of(token: str) -> Epoch:
    found = _TOKEN.fullmatch(token)
    if found is None:
        raise CallerError(f"resume token {token[:60]!r} was not made by this service")
    return Epoch(found.group(1), int(found.group(2)))


def _event(event: FeedEvent) -> api.WatchInvalidationsResponse:
    return api.WatchInvalidationsResponse(
        resume_token=f"{event.epoch.incarnation}:{event.epoch.number}",
        tags=event.tags,
        epoch=event.epoch.number,
        incarnation=event.epoch.incarnation,
        is_flush=event.is_flush,
    )


def _space(space: Space, usage: SpaceUsage, counters: dict[str, int]) -> api.SpaceUsage:
    return api.SpaceUsage(
        space=manifest_pb2.CacheSpace.Value(f"CACHE_SPACE_{space.name}"),
        entries=usage.entries,
        variants=usage.variants,
        bytes=usage.size_bytes,
        counters={name: max(0, count) for name, count in counters.items()},
    )
