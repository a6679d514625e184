"""A server's limits and gRPC options, computed from its settings."""

from __future__ import annotations

import resource

from kernelfarm.service.inbound.bodies import InboundLimits
from kernelfarm.service.inbound.byte_rate import ByteRateLimits
from kernelfarm.service.settings import ServiceSettings
from kernelfarm.service.tenants.access import AccessControl

_WINDOW_BYTES = 64 * 1024
"""How much of a body gRPC receives before the behavior reads it; the default of HTTP/2."""

_METADATA_BYTES = 16 * 1024

_NO_LIMIT_MS = 2**31 - 1
"""gRPC's own default, which means no limit."""

_BURST_S = 4
"""A tenant may send at once what its rate allows in this many seconds."""


def inbound_limits(settings: ServiceSettings, access: AccessControl | None) -> InboundLimits:
    """The limits of inbound bytes; a tenant may have half of the bytes, a quarter of the bodies."""
    has_tenants = access is not None and access.authenticator.tenants is not None
    held, bodies = settings.max_requests_bytes, settings.max_bodies
    return InboundLimits(
        message_bytes=settings.max_message_bytes,
        held_bytes=held,
        held_bytes_per_sender=held // 2 if has_tenants else held,
        bodies=bodies,
        bodies_per_sender=max(1, bodies // 4) if has_tenants else bodies,
        body_s=settings.body_timeout_s,
        byte_rate=ByteRateLimits(
            bytes_per_s=settings.tenant_bytes_per_s,
            burst_bytes=_BURST_S * settings.tenant_bytes_per_s,
        ),
    )


def max_connections(settings: ServiceSettings) -> int:
    """How many connections a process accepts; other files are for Redis, services and logs."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = 2**20 if soft == resource.RLIM_INFINITY else soft
    return settings.max_connections or max(1, files * 3 // 4)


def server_options(settings: ServiceSettings, *, is_shared: bool) -> list[tuple[str, int]]:
    """The gRPC options of a server, for all of its listeners."""
    return [
        ("grpc.max_receive_message_length", settings.max_message_bytes),
        ("grpc.max_send_message_length", -1),
        # Two servers on one port would share its connections without a warning.
        ("grpc.so_reuseport", int(is_shared)),
        # Accept the keepalive pings of clients (every 20 s) and services (every 8 s).
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
        # Until the behavior reads a body, only one window of it is received. The bandwidth probe
        # would enlarge the windows of all streams, also of unauthenticated callers.
        ("grpc.http2.bdp_probe", 0),
        ("grpc.http2.lookahead_bytes", _WINDOW_BYTES),
        ("grpc.max_concurrent_streams", settings.max_streams),
        ("grpc.max_metadata_size", _METADATA_BYTES // 2),
        ("grpc.absolute_max_metadata_size", _METADATA_BYTES),
        ("grpc.max_allowed_incoming_connections", max_connections(settings)),
        ("grpc.max_connection_idle_ms", round(settings.connection_idle_s * 1e3)),
        ("grpc.max_connection_age_ms", _age_ms(settings)),
        ("grpc.server_handshake_timeout_ms", round(settings.handshake_timeout_s * 1e3)),
        ("grpc.http2.settings_timeout", round(settings.handshake_timeout_s * 1e3)),
    ]


def _age_ms(settings: ServiceSettings) -> int:
    return round(settings.connection_age_s * 1e3) or _NO_LIMIT_MS
