"""A gRPC server that serves until it is told to stop, and then drains in stages."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer
from grpc_reflection.v1alpha import reflection

from kernelfarm.errors import UnavailableError
from kernelfarm.service.collector import collect_rarely
from kernelfarm.service.interceptors import EdgeInterceptor
from kernelfarm.service.logs import get_logger
from kernelfarm.service.settings import ServiceSettings


@dataclass(frozen=True, slots=True)
class Registration:
    """One gRPC service of a room: its full name and what adds its servicer to a server.

    Example: `Registration("kernelfarm.v1.CompileService", partial(add_..._to_server, servicer))`.
    """

    service_name: str
    add: Callable[[grpc.aio.Server], None]


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that accepts calls at `address` until `drain`."""

    address: str
    server: grpc.aio.Server
    health: HealthServicer

    async def drain(self, grace_s: float) -> None:
        """Stops in stages: unhealthy, no new calls, `grace_s` for calls in flight, then an end."""
        await self.health.enter_graceful_shutdown()
        get_logger().info("draining", grace_s=grace_s)
        await self.server.stop(grace_s)
        get_logger().info("stopped")


async def start_server(
    listen: str, registrations: Sequence[Registration], settings: ServiceSettings
) -> RunningServer:
    """A server that listens (`host:port`, port 0 for any free one, or `unix:PATH`) and is healthy.

    Raises:
        UnavailableError: the address cannot be bound.
    """
    server = grpc.aio.server(interceptors=[EdgeInterceptor()], options=_options(settings))
    health = HealthServicer()
    names = [registration.service_name for registration in registrations]
    for registration in registrations:
        registration.add(server)
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
    reflection.enable_server_reflection(
        [*names, "grpc.health.v1.Health", reflection.SERVICE_NAME], server
    )
    address = _bind(server, listen)
    await server.start()
    for name in names:
        await health.set(name, health_pb2.HealthCheckResponse.SERVING)
    get_logger().info("listening", address=address, services=names)
    return RunningServer(address, server, health)


async def serve(
    listen: str,
    registrations: Sequence[Registration],
    settings: ServiceSettings,
    on_listening: Callable[[str], None] = lambda address: None,
) -> None:
    """Serves until SIGTERM or SIGINT, then drains; returns when the last call has ended.

    `on_listening` is told the bound address. A second signal during the drain changes nothing: the
    grace bounds it.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    running = await start_server(listen, registrations, settings)
    collect_rarely()
    on_listening(running.address)
    await stop.wait()
    await running.drain(settings.drain_grace_s)


def _bind(server: grpc.aio.Server, listen: str) -> str:
    try:
        port = server.add_insecure_port(listen)
    except RuntimeError as error:
        raise UnavailableError(f"cannot listen on {listen}: {error}") from error
    if listen.startswith("unix:"):
        return listen
    if port == 0:
        raise UnavailableError(f"cannot listen on {listen}: is it in use?")
    return f"{listen.rpartition(':')[0]}:{port}"


def _options(settings: ServiceSettings) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its calls in silence.
        ("grpc.so_reuseport", 0),
        # Clients ping idle connections each 20 s (see `channels`): do not cut them for it.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]
