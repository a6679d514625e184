"""Probes running services: their health, and which vendors' workers have reported.

As a command, for containers: `python -m kernelfarm.service.probes HOST:PORT [--worker VENDOR]`.
It reads the same `KERNELFARM_INTERNAL_..._FILE` settings as the service that it probes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kernelfarm.errors import CallerError
from kernelfarm.internal.v1 import codegen_service_pb2, codegen_service_pb2_grpc
from kernelfarm.service.settings import ServiceSettings, load_settings
from kernelfarm.service.tls import ChannelTls, tls_to_self

_TIMEOUT_S = 1.0
# Probes repeat soon; the default backoff is seconds after the first refused connection.
_OPTIONS = [
    ("grpc.initial_reconnect_backoff_ms", 20),
    ("grpc.min_reconnect_backoff_ms", 20),
    ("grpc.max_reconnect_backoff_ms", 100),
    ("grpc.use_local_subchannel_pool", 1),
]


async def is_serving(address: str, tls: ChannelTls | None = None) -> bool:
    """True if the service at the address is healthy."""
    async with _channel(address, tls) as channel:
        return await _is_healthy(channel, _TIMEOUT_S)


class ServiceProbe:
    """Probes the health of one service repeatedly, on one connection."""

    def __init__(self, address: str, timeout_s: float = _TIMEOUT_S) -> None:
        self._address = address
        self._timeout_s = timeout_s
        self._channel: grpc.aio.Channel | None = None

    async def __call__(self) -> bool:
        """True if the service reports that it serves, which also shows that its event loop runs."""
        if self._channel is None:  # made here, because a channel belongs to one event loop
            self._channel = _channel(self._address, None)
        return await _is_healthy(self._channel, self._timeout_s)


async def _is_healthy(channel: grpc.aio.Channel, timeout_s: float) -> bool:
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        response = await stub.Check(health_pb2.HealthCheckRequest(), timeout=timeout_s)
    except grpc.aio.AioRpcError:
        return False
    return bool(response.status == health_pb2.HealthCheckResponse.SERVING)


async def reported_vendors(codegen_address: str, tls: ChannelTls | None = None) -> dict[str, bool]:
    """The vendors of which a worker has reported, and whether the worker has its toolchain.

    The result is empty while the service is down. A worker without its toolchain reports too; its
    jobs fail with a message that says what to install.
    """
    async with _channel(codegen_address, tls) as channel:
        stub = codegen_service_pb2_grpc.CodegenServiceStub(channel)
        try:
            response = await stub.GetToolchains(
                codegen_service_pb2.GetToolchainsRequest(), timeout=_TIMEOUT_S
            )
        except grpc.aio.AioRpcError:
            return {}
    return {t.target.partition(":")[0]: bool(t.toolchain) for t in response.targets}


def _channel(address: str, tls: ChannelTls | None) -> grpc.aio.Channel:
    if tls is None:
        return grpc.aio.insecure_channel(address, options=_OPTIONS)
    return grpc.aio.secure_channel(address, tls.credentials(), options=[*_OPTIONS, *tls.options()])


def main(argv: list[str]) -> int:
    """Returns 0 if the probed service or worker serves, 1 if not, and 2 for unusable settings."""
    parser = argparse.ArgumentParser(
        prog="python -m kernelfarm.service.probes",
        description="Exits with 0 if a service is healthy, with 1 if it is not.",
        epilog="example: python -m kernelfarm.service.probes 127.0.0.1:50051",
    )
    parser.add_argument("address", help="HOST:PORT or unix:PATH of the service")
    parser.add_argument(
        "--worker",
        metavar="VENDOR",
        help="ask the code generators' edge at the address for a worker of this vendor that has its"
        " toolchain",
    )
    parser.add_argument("--public", action="store_true", help="probe a frontend without TLS")
    parser.add_argument(
        "--public-cert",
        metavar="FILE",
        type=Path,
        help="connect by TLS, and trust only the server with this certificate (a frontend's)",
    )
    arguments = parser.parse_args(argv)
    try:
        is_healthy, subject = _probe(arguments)
    except CallerError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not is_healthy:
        sys.stderr.write(f"no {subject} at {arguments.address}\n")
    return 0 if is_healthy else 1


def _probe(arguments: argparse.Namespace) -> tuple[bool, str]:
    """Whether the subject of the arguments is healthy, and its name for messages."""
    tls = load_settings(ServiceSettings).internal_channel_tls()
    if arguments.worker is not None:
        vendors = asyncio.run(reported_vendors(arguments.address, tls))
        return vendors.get(arguments.worker, False), f"{arguments.worker} worker with its toolchain"
    if arguments.public_cert is not None:
        tls = tls_to_self(arguments.public_cert)
    elif arguments.public:
        tls = None
    return asyncio.run(is_serving(arguments.address, tls)), "service"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
