"""A gRPC server that serves until a signal stops it, and then drains in stages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from kernelfarm.end_task import end_task
from kernelfarm.errors import UnavailableError
from kernelfarm.service.call_statistics import CallStatistics
from kernelfarm.service.collector import collect_rarely
from kernelfarm.service.edge_calls import EdgeRegistrar
from kernelfarm.service.inbound.connections import Connections
from kernelfarm.service.inbound.server_limits import inbound_limits, max_connections, server_options
from kernelfarm.service.logs.limits import limit
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.metrics.declarations import CALL_SECONDS
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tls import ServerTls

_RECORD_EVERY_S = 1.0


@dataclass(frozen=True, slots=True)
class ServiceRegistration:
    """One gRPC service: its full name, and the function that adds its servicer to a server.

    Example:
        `ServiceRegistration("kernelfarm.v1.CompileService", partial(add_..._to_server, servicer))`
    """

    service_name: str
    add: Callable[[Any], None]  # called with an `EdgeRegistrar`


@dataclass(frozen=True, slots=True)
class Listener:
    """An address to listen on: `host:port` (port 0: any free one) or `unix:PATH`.

    It is unencrypted without `tls`. If it `is_shared`, other processes listen on it too, and each
    connection reaches one of them.
    """

    listen: str
    tls: ServerTls | None = None
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that accepts calls until `drain`; it has one address for each listener."""

    addresses: tuple[str, ...]
    server: grpc.aio.Server
    health: HealthServicer
    watching: asyncio.Task[None]
    recording: asyncio.Task[None]

    @property
    def address(self) -> str:
        """The address of the first listener."""
        return self.addresses[0]

    async def drain(self, grace_s: float) -> None:
        """Stops in stages: reports unhealthy, refuses new calls, ends calls after `grace_s`."""
        await self.health.enter_graceful_shutdown()
        get_logger().info("draining", grace_s=grace_s)
        await self.server.stop(grace_s)
        self.watching.cancel()
        await end_task(self.recording)
        limit.report_dropped()
        get_logger().info("stopped")


async def start_server(
    listeners: str | Sequence[Listener],
    registrations: Sequence[ServiceRegistration],
    settings: ServiceSettings,
    access: AccessControl | None = None,
) -> RunningServer:
    """Starts a server and returns it once it is healthy.

    An address in place of `listeners` means one listener without TLS.

    Raises:
        UnavailableError: an address cannot be bound.
        CallerError: a certificate or key cannot be read.
    """
    opened = [Listener(listeners)] if isinstance(listeners, str) else listeners
    options = server_options(settings, is_shared=any(listener.is_shared for listener in opened))
    statistics = CallStatistics(CALL_SECONDS, logs_each=settings.log_level == "debug")
    connections = Connections(max_connections(settings))
    server = grpc.aio.server(options=options)
    edge = EdgeRegistrar(server, access, statistics, inbound_limits(settings, access), connections)
    health = HealthServicer()
    names = [registration.service_name for registration in registrations]
    for registration in registrations:
        registration.add(edge)
    health_pb2_grpc.add_HealthServicer_to_server(health, edge)
    if settings.reflection:
        described = [*names, "grpc.health.v1.Health", reflection.SERVICE_NAME]
        servicer = reflection.aio.ReflectionServicer(described)
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, edge)
    addresses = tuple(_bind(server, listener) for listener in opened)
    await server.start()
    for name in names:
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    for listener, address in zip(opened, addresses, strict=True):
        get_logger().info(
            "listening", address=address, services=names, is_encrypted=listener.tls is not None
        )
    connections.listen(addresses)
    watching = asyncio.create_task(connections.run())
    recording = asyncio.create_task(_record(edge))
    return RunningServer(addresses, server, health, watching, recording)


async def serve(
    listeners: str | Sequence[Listener],
    registrations: Sequence[ServiceRegistration],
    settings: ServiceSettings,
    on_listening: Callable[[str], None] = lambda address: None,
    on_draining: Callable[[], None] = lambda: None,
    access: AccessControl | None = None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; returns when the last call has ended.

    `on_listening` is called with the first bound address. `on_draining` is called before the drain,
    to end streams that do not end by themselves. A second signal changes nothing, because the grace
    bounds the drain.

    Raises:
        UnavailableError, CallerError: see `start_server`.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = await start_server(listeners, registrations, settings, access)
    collect_rarely()
    on_listening(running.address)
    await stop.wait()
    on_draining()
    await running.drain(settings.drain_grace_s)


async def _record(edge: EdgeRegistrar) -> None:
    """Records metrics and quick calls once a second, and when it is cancelled."""
    try:
        while True:
            await asyncio.sleep(_RECORD_EVERY_S)
            edge.record()
    finally:
        edge.record()


def _bind(server: grpc.aio.Server, listener: Listener) -> str:
    listen = listener.listen
    try:
        if listener.tls is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, listener.tls.credentials())
    except RuntimeError as error:
        raise UnavailableError(f"cannot listen on {listen}: {error}") from error
    if listen.startswith("unix:"):
        return listen
    if port == 0:
        raise UnavailableError(f"cannot listen on {listen}: is the address in use?")
    return f"{listen.rpartition(':')[0]}:{port}"
