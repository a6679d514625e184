"""The frontend's process: what it consists of, in which order it starts and ends."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from functools import partial

from frontend_svc.api.cache_service import CACHE_SERVICE, CacheService, CacheWork
from frontend_svc.api.compile_service import SERVICE_NAME, CompileService
from frontend_svc.api.envelopes import with_envelopes
from frontend_svc.api.trace_service import TRACE_SERVICE, TraceService
from frontend_svc.cache.gateway_tier import ProgramTier
from frontend_svc.cache.invalidation_feed import InvalidationFeed
from frontend_svc.cache.refusal_reporter import RefusalTeller
from frontend_svc.cache.sweeping import FarmSweeper
from frontend_svc.cache.tenant_caches import Parts
from frontend_svc.drain_deadline import DrainClock
from frontend_svc.flow.admission import Gate
from frontend_svc.flow.compile_flow import CompileFlow, Rooms
from frontend_svc.flow.downstream import CodegenRoom, KernelCheck, OptimizerRoom
from frontend_svc.flow.graph_job_client import CpuWork
from frontend_svc.flow.program_tags import frontend_toolchain
from frontend_svc.settings import FrontendSettings
from kernelfarm.cache import KernelCache, Space, StoredVariant, Trust
from kernelfarm.cache.connection import connect_async
from kernelfarm.end_task import end_task
from kernelfarm.errors import FarmFullError, UnavailableError
from kernelfarm.service.channels import open_channel
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.process_pool.pool import ProcessPool
from kernelfarm.service.server import Door, Registration, serve
from kernelfarm.service.tenants.access import Access
from kernelfarm.service.tenants.authentication import Authenticator, TenantsFile
from kernelfarm.signing import Place
from kernelfarm.targets import all_targets
from kernelfarm.v1.cache_service_pb2_grpc import add_CacheServiceServicer_to_server
from kernelfarm.v1.compile_service_pb2_grpc import add_CompileServiceServicer_to_server
from kernelfarm.v1.trace_service_pb2_grpc import add_TraceServiceServicer_to_server

# While the optimizer starts.
_SOON_S = 0.2
_LOCAL = ("unix:", "127.", "localhost:", "[::1]:")


async def serve_frontend(settings: FrontendSettings) -> None:
    """Serves until SIGTERM; compilations in progress are finished within the grace.

    Raises:
        CallerError: keys are missing or cannot be read.
    """
    access = _access(settings)
    all_targets()  # read now: the first request should not wait for files
    trust = Trust(
        signer=settings.signer(Space.PROGRAMS),
        keyring=settings.keyring(),
        validity_s=settings.offline_validity_s,
        verified_bytes=settings.verified_bytes,
    )
    cache = KernelCache(
        settings.cache_url, namespace=settings.namespace, space=Space.PROGRAMS, trust=trust
    )
    tier = ProgramTier(settings.gateway_cache_bytes, settings.gateway_max_age_s)
    gateway = f"{socket.gethostname()}:{os.getpid()}"
    feed = InvalidationFeed(cache, tier, gateway)
    optimizer = open_channel(settings.optimizer_address, settings.room_channel_tls())
    codegen = open_channel(settings.codegen_address, settings.room_channel_tls())
    rooms = Rooms(
        cache,
        Parts(cache, tier, trust),
        OptimizerRoom(optimizer, settings.optimizer_timeout_s),
        CodegenRoom(codegen, settings.codegen_timeout_s, _kernel_check(trust)),
    )
    sweeping_client = connect_async(settings.sweep_cache_url or settings.cache_url)
    sweeper = FarmSweeper(
        sweeping_client, settings.namespace, settings.sweep_keys_per_s, access.authenticator.tenants
    )
    refusals = RefusalTeller(access, rooms.parts)
    pool = ProcessPool("frontend_svc.graph_jobs", settings.pool_limits(settings.cpu_processes))
    cpu = CpuWork(pool, settings)
    flow = CompileFlow(rooms, cpu, settings)
    drain = DrainClock(settings.drain_grace_s)
    try:
        await pool.start()
        advertising, sweeping = _advertise(rooms, settings), _sweep(sweeper, settings)
        async with (
            _kept_running(advertising),
            _kept_running(sweeping),
            _kept_running(refusals.run()),
        ):
            feed.start()
            work = CacheWork(rooms, cpu, feed, sweeper, refusals, access.authenticator.tenants)
            await serve(
                _doors(settings),
                _services(flow, work, settings),
                settings,
                on_draining=partial(_begin_drain, feed, drain),
                access=access,
            )
            await flow.drain(drain.left_s())
    finally:
        await feed.close()
        await pool.close()
        await optimizer.close()
        await codegen.close()
        await cache.close()
        await sweeping_client.aclose()


def _begin_drain(feed: InvalidationFeed, drain: DrainClock) -> None:
    drain.begin()
    feed.end_watches()


def _doors(settings: FrontendSettings) -> tuple[Door, ...]:
    """The public ones and, for one of several gateways, one that leads to it alone."""
    own, by_certificate = settings.frontend_own_listen, settings.frontend_mtls_listen
    doors = [Door(settings.frontend_listen, settings.public_tls(), is_shared=bool(own))]
    if by_certificate:
        doors.append(Door(by_certificate, settings.certificate_tls(), is_shared=bool(own)))
    if own:
        doors.append(Door(own))
    return tuple(doors)


def _access(settings: FrontendSettings) -> Access:
    """Who is let in; a farm that lets everybody in says so."""
    tenants = None if settings.tenants_file is None else TenantsFile(settings.tenants_file)
    if tenants is None:
        get_logger().warning(
            "open_farm",
            message=f"whoever reaches {settings.frontend_listen} may compile: no tenants file"
            " (KERNELFARM_TENANTS_FILE)"
            + ("" if settings.public_tls() else ", no TLS (KERNELFARM_TLS_CERT_FILE)"),
        )
    elif settings.public_tls() is None and not settings.frontend_listen.startswith(_LOCAL):
        get_logger().warning("tokens_in_the_clear", address=settings.frontend_listen)
    authenticator = Authenticator(tenants, settings.admin_token.get_secret_value())
    return Access(authenticator, frozenset({f"/{SERVICE_NAME}/GetCapabilities"}))


def _services(flow: CompileFlow, work: CacheWork, settings: FrontendSettings) -> list[Registration]:
    rooms = work.rooms
    compiling = CompileService(flow, rooms, settings)
    caching = CacheService(work, settings)
    gate = Gate(settings.max_compiles_of_a_tenant, settings.lease_ttl_s)
    tracing = TraceService(rooms.parts, gate, settings)
    add_compiling = partial(add_CompileServiceServicer_to_server, compiling)
    add_caching = partial(add_CacheServiceServicer_to_server, caching)
    return [
        Registration(SERVICE_NAME, with_envelopes(add_compiling)),
        Registration(CACHE_SERVICE, with_envelopes(add_caching)),
        Registration(TRACE_SERVICE, partial(add_TraceServiceServicer_to_server, tracing)),
    ]


def _kernel_check(trust: Trust) -> KernelCheck:
    def check(stored: StoredVariant, namespace: str, key: bytes) -> None:
        trust.check(Place(namespace, Space.KERNELS, key), stored)

    return check


async def _advertise(rooms: Rooms, settings: FrontendSettings) -> None:
    """Tells again and again which toolchains of programs serve: what is not told becomes cold."""
    while True:
        toolchains = [frontend_toolchain()]
        try:
            with suppress(UnavailableError):
                toolchains.append((await rooms.optimizer.toolchain()).toolchain)
            await rooms.cache.advertise(toolchains)
        except UnavailableError as error:
            get_logger().warning("not_advertised", message=str(error))
        is_whole = len(toolchains) > 1
        await asyncio.sleep(settings.advertise_every_s if is_whole else _SOON_S)


async def _sweep(sweeper: FarmSweeper, settings: FrontendSettings) -> None:
    """Sweeps now and then; of several frontends one at a time."""
    while settings.sweep_every_s > 0:
        await asyncio.sleep(settings.sweep_every_s)
        try:
            get_logger().info("swept", **asdict(await sweeper.sweep()))
        except FarmFullError:
            continue  # another frontend does
        except UnavailableError as error:
            get_logger().warning("not_swept", message=str(error))


@asynccontextmanager
async def _kept_running(work: Coroutine[None, None, None]) -> AsyncIterator[None]:
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        await end_task(task)
