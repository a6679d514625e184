"""The process of one gateway: its components, and the order in which they start and end."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial

from frontend_svc.api.cache_service import CACHE_SERVICE, CacheDependencies, CacheService
from frontend_svc.api.compile_service import SERVICE_NAME, CompileService
from frontend_svc.api.envelopes import with_envelopes
from frontend_svc.api.trace_service import TRACE_SERVICE, TraceService
from frontend_svc.api.tuning_service import TUNING_SERVICE, TuningService
from frontend_svc.cache.farm_metrics import exported_farm_metrics
from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.invalidation_feed import InvalidationFeed
from frontend_svc.cache.refusal_reporter import RefusalReporter
from frontend_svc.cache.signed_tuning import TuningSigner
from frontend_svc.cache.sweeping import FarmSweeper
from frontend_svc.cache.tenant_caches import TenantCaches
from frontend_svc.drain_deadline import DrainDeadline
from frontend_svc.flow.admission import AdmissionControl
from frontend_svc.flow.compile_flow import CompileFlow
from frontend_svc.flow.downstream import CodegenClient, KernelCheck, OptimizerClient
from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.flow.import_program import ProgramImporter
from frontend_svc.flow.import_trust import ImportTrust
from frontend_svc.flow.import_tuning import TuningImporter
from frontend_svc.flow.program_tags import frontend_toolchain
from frontend_svc.flow.services import FlowServices
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, SigningPolicy, Space, StoredVariant
from kernelfarm.cache.connection import connect_async
from kernelfarm.end_task import end_task
from kernelfarm.errors import FarmFullError, UnavailableError
from kernelfarm.service.channels import open_channel
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.endpoint import state_build
from kernelfarm.service.metrics.processes import join_shared_metrics
from kernelfarm.service.process_pool.pool import ProcessPool
from kernelfarm.service.server import Listener, ServiceRegistration, serve
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.signing import CacheAddress
from kernelfarm.targets import all_targets
from kernelfarm.v1.cache_service_pb2_grpc import add_CacheServiceServicer_to_server
from kernelfarm.v1.compile_service_pb2_grpc import add_CompileServiceServicer_to_server
from kernelfarm.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server
from kernelfarm.v1.tuning_service_pb2_grpc import add_TuningServiceServicer_to_server

# The interval while the optimizer starts.
_RETRY_S = 0.2
_LOCAL = ("unix:", "127.", "localhost:", "[::1]:")


async def serve_frontend(settings: FrontendSettings) -> None:
    """Serves until SIGTERM; compilations in progress are finished within the grace.

    Raises:
        CallerError: keys are missing or cannot be read.
    """
    # Gateways on one port are scraped together, and the process that started them exports the
    # farm's metrics. The name of a gateway's own address is its number.
    join_shared_metrics(settings.frontend_process_listen.rpartition("/")[2])
    state_build("frontend", frontend_toolchain())
    access = _access(settings)
    tenants = access.authenticator.tenants
    all_targets()  # so that the first request does not wait for files
    drain = DrainDeadline(settings.drain_grace_s)
    async with AsyncExitStack() as closing:
        sweeper = _sweeper(settings, tenants, closing)
        tier = GatewayTier(settings.gateway_cache_bytes, settings.gateway_max_age_s)
        services = _flow_services(settings, tier, closing)
        pool = ProcessPool("frontend_svc.graph_jobs", settings.pool_limits(settings.cpu_processes))
        closing.push_async_callback(pool.close)
        feed = InvalidationFeed(services.cache, tier, f"{socket.gethostname()}:{os.getpid()}")
        closing.push_async_callback(feed.close)
        graph_jobs = GraphJobClient(pool, settings)
        flow = CompileFlow(services, graph_jobs, settings)
        admission = AdmissionControl(settings.max_compiles_per_tenant, settings.lease_ttl_s)
        trust = ImportTrust(settings)
        importer = ProgramImporter(settings, admission, trust)
        refusals = RefusalReporter(access, services.tenant_caches)
        await pool.start()
        async with (
            _farm_metrics(settings, tenants),
            _background_task(_advertise(services, settings)),
            _background_task(_sweep(sweeper, settings)),
            _background_task(refusals.run()),
        ):
            feed.start()
            work = CacheDependencies(
                services,
                graph_jobs,
                feed,
                sweeper,
                importer,
                TuningImporter(trust),
                refusals,
                tenants,
            )
            async with _page(services, pool, access, settings):
                await serve(
                    _listeners(settings),
                    _services(flow, work, settings),
                    settings,
                    on_draining=partial(_begin_drain, feed, drain),
                    access=access,
                )
            await flow.drain(drain.left_s())


def _flow_services(
    settings: FrontendSettings, tier: GatewayTier, closing: AsyncExitStack
) -> FlowServices:
    """The cache and the clients of the other services, which `closing` closes.

    Raises:
        CallerError: keys are missing or cannot be read.
    """
    signing = SigningPolicy(
        signer=settings.signer(Space.PROGRAMS),
        keyring=settings.keyring(),
        validity_s=settings.offline_validity_s,
        verified_bytes=settings.verified_bytes,
    )
    cache = KernelCache(
        settings.cache_url, namespace=settings.namespace, space=Space.PROGRAMS, signing=signing
    )
    closing.push_async_callback(cache.close)
    codegen = open_channel(settings.codegen_address, settings.internal_channel_tls())
    closing.push_async_callback(codegen.close)
    optimizer = open_channel(settings.optimizer_address, settings.internal_channel_tls())
    closing.push_async_callback(optimizer.close)
    return FlowServices(
        cache,
        TenantCaches(cache, tier, signing),
        OptimizerClient(optimizer, settings.optimizer_timeout_s),
        CodegenClient(codegen, settings.codegen_timeout_s, _kernel_check(signing)),
    )


def _sweeper(
    settings: FrontendSettings, tenants: TenantsFile | None, closing: AsyncExitStack
) -> FarmSweeper:
    client = connect_async(settings.sweep_cache_url or settings.cache_url)
    closing.push_async_callback(client.aclose)
    return FarmSweeper(client, settings.namespace, settings.sweep_keys_per_s, tenants)


@asynccontextmanager
async def _farm_metrics(
    settings: FrontendSettings, tenants: TenantsFile | None
) -> AsyncIterator[None]:
    """Exports the farm's metrics if this process serves metrics."""
    if not settings.metrics_listen:
        yield
        return
    with exported_farm_metrics(settings.cache_url, settings.namespace, tenants):
        yield


@asynccontextmanager
async def _page(
    services: FlowServices, pool: ProcessPool, access: AccessControl, settings: FrontendSettings
) -> AsyncIterator[None]:
    """Serves the page for browsers, if its address is set."""
    if not settings.page_listen:
        yield
        return
    # Most gateways have no page, and need neither templates nor an HTTP server.
    from frontend_svc.page.app import serve_page  # noqa: PLC0415
    from frontend_svc.page.farm_data import FarmData  # noqa: PLC0415

    async with serve_page(FarmData(services, pool, access), settings):
        yield


def _begin_drain(feed: InvalidationFeed, drain: DrainDeadline) -> None:
    drain.begin()
    feed.end_watches()


def _listeners(settings: FrontendSettings) -> tuple[Listener, ...]:
    """The public listeners; if gateways share the port, also one for this gateway alone."""
    own, by_certificate = settings.frontend_process_listen, settings.frontend_mtls_listen
    listeners = [Listener(settings.frontend_listen, settings.public_tls(), is_shared=bool(own))]
    if by_certificate:
        listeners.append(Listener(by_certificate, settings.certificate_tls(), is_shared=bool(own)))
    if own:
        listeners.append(Listener(own))
    return tuple(listeners)


def _access(settings: FrontendSettings) -> AccessControl:
    """Access control; logs a warning if everyone may compile or tokens are not encrypted."""
    tenants = None if settings.tenants_file is None else TenantsFile(settings.tenants_file)
    if tenants is None:
        get_logger().warning(
            "access_unrestricted",
            message=f"anyone who reaches {settings.frontend_listen} may compile: no tenants file"
            " (KERNELFARM_TENANTS_FILE)"
            + ("" if settings.public_tls() else ", no TLS (KERNELFARM_TLS_CERT_FILE)"),
        )
    elif settings.public_tls() is None and not settings.frontend_listen.startswith(_LOCAL):
        get_logger().warning("tokens_unencrypted", address=settings.frontend_listen)
    authenticator = Authenticator(tenants, settings.admin_token.get_secret_value())
    return AccessControl(authenticator, frozenset({f"/{SERVICE_NAME}/GetCapabilities"}))


def _services(
    flow: CompileFlow, work: CacheDependencies, settings: FrontendSettings
) -> list[ServiceRegistration]:
    services = work.services
    compiling = CompileService(flow, services, settings)
    caching = CacheService(work, settings)
    admission = AdmissionControl(settings.max_compiles_per_tenant, settings.lease_ttl_s)
    tracing = TraceService(services.tenant_caches, admission, settings)
    tuning = TuningService(services.tenant_caches, TuningSigner(services.tenant_caches.signing))
    add_compiling = partial(add_CompileServiceServicer_to_server, compiling)
    add_caching = partial(add_CacheServiceServicer_to_server, caching)
    return [
        ServiceRegistration(SERVICE_NAME, with_envelopes(add_compiling)),
        ServiceRegistration(CACHE_SERVICE, with_envelopes(add_caching)),
        ServiceRegistration(TRACE_SERVICE, partial(add_TraceServiceServicer_to_server, tracing)),
        ServiceRegistration(TUNING_SERVICE, partial(add_TuningServiceServicer_to_server, tuning)),
    ]


def _kernel_check(signing: SigningPolicy) -> KernelCheck:
    def check(stored: StoredVariant, namespace: str, key: bytes) -> None:
        signing.check(CacheAddress(namespace, Space.KERNELS, key), stored)

    return check


async def _advertise(services: FlowServices, settings: FrontendSettings) -> None:
    """Advertises toolchains of programs periodically; entries of other toolchains become stale."""
    while True:
        toolchains = [frontend_toolchain()]
        try:
            with suppress(UnavailableError):
                toolchains.append((await services.optimizer.toolchain()).toolchain)
            await services.cache.advertise(toolchains)
        except UnavailableError as error:
            get_logger().warning("advertise_failed", message=str(error))
        is_complete = len(toolchains) > 1
        await asyncio.sleep(settings.advertise_every_s if is_complete else _RETRY_S)


async def _sweep(sweeper: FarmSweeper, settings: FrontendSettings) -> None:
    """Sweeps periodically; of several frontends, one sweeps at a time."""
    while settings.sweep_every_s > 0:
        await asyncio.sleep(settings.sweep_every_s)
        try:
            get_logger().info("swept", **asdict(await sweeper.sweep()))
        except FarmFullError:
            continue  # another frontend sweeps
        except UnavailableError as error:
            get_logger().warning("sweep_failed", message=str(error))


@asynccontextmanager
async def _background_task(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end_task(task)
