"""The base of each service's settings: one frozen object, read once from the environment."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import Field, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernelfarm.errors import CallerError
from kernelfarm.service.tls import ChannelTls, ServerTls

_MIB = 1024 * 1024

ENV_PREFIX = "KERNELFARM_"

# A 32-layer Llama is below 1 MB and constants travel up to 64 KiB each: room for every real graph.
DEFAULT_MAX_MESSAGE_BYTES = 64 * _MIB

_RENAMED = {
    "CPU_THREADS": "CPU_PROCESSES",
    "OPTIMIZER_THREADS": "OPTIMIZER_PROCESSES",
    "ROOM_CERT_FILE": "INTERNAL_CERT_FILE",
    "ROOM_KEY_FILE": "INTERNAL_KEY_FILE",
    "ROOM_CA_FILE": "INTERNAL_CA_FILE",
    "FRONTEND_OWN_LISTEN": "FRONTEND_PROCESS_LISTEN",
    "MAX_ANSWERS_BYTES": "MAX_RESPONSE_BYTES",
    "MAX_WATCHES_OF_A_TENANT": "MAX_WATCHES_PER_TENANT",
    "MAX_COMPILES_OF_A_TENANT": "MAX_COMPILES_PER_TENANT",
    "CLEAR_TOKEN": "ALLOW_CLEARTEXT_TOKEN",
    "QUEUE_PLACES": "QUEUE_HEADROOM",
    "MAX_JOBS_OF_A_TENANT": "MAX_JOBS_PER_TENANT",
}
"""Settings that have another name now: whoever sets an old one would be ignored in silence."""

SettingsT = TypeVar("SettingsT", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """What all services read: `KERNELFARM_LOG_LEVEL`, `KERNELFARM_DRAIN_GRACE_S`, ...

    Subclass it for a service's own settings; the prefix and the frozenness are inherited.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["json", "console"] = "json"
    max_message_bytes: int = Field(default=DEFAULT_MAX_MESSAGE_BYTES, gt=0, lt=2**31)
    drain_grace_s: float = Field(default=20.0, ge=0)

    max_requests_bytes: int = Field(default=512 * _MIB, gt=0)
    """Requests that one process receives and serves at once, in bytes; more must come again. Where
    the farm knows its tenants, each may have half."""
    max_bodies: int = Field(default=64, gt=0)
    """Requests whose bytes arrive at once; more wait. Each tenant may have a quarter."""
    tenant_bytes_per_s: int = Field(default=32 * _MIB, gt=0)
    """What one tenant may send in the long run while others call, four seconds of it at once."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """A request that did not arrive by then is refused."""
    max_connections: int = Field(default=0, ge=0)
    """Connections that one process accepts; 0: three quarters of the files that it may open."""
    connection_idle_s: float = Field(default=300.0, gt=0)
    """A connection without a call is closed after this time; clients connect again themselves."""
    handshake_timeout_s: float = Field(default=10.0, gt=0)
    """A connection that does not begin to speak HTTP/2 (and TLS) by then is closed."""
    max_streams: int = Field(default=1024, gt=0)
    """Calls at once on one connection; clients hold back more."""
    reflection: bool = True
    """Whether the server describes its API (`grpcurl list`), to those who may call."""

    internal_cert_file: Path | None = None
    internal_key_file: Path | None = None
    """This room's own certificate for the other rooms, and its key; PEM."""
    internal_ca_file: Path | None = None
    """Who signs the rooms' certificates, and nobody else's: whoever bears one is a room. With these
    three, rooms talk by TLS and show each other their certificates; without, in the clear."""

    def internal_server_tls(self) -> ServerTls | None:
        """How a room listens for other rooms; None in the clear.

        Raises:
            CallerError: some of the three files are set, but not all.
        """
        files = self._internal_files()
        return ServerTls(*files) if files else None

    def internal_channel_tls(self) -> ChannelTls | None:
        """How a room connects to another one; None in the clear.

        Raises:
            CallerError: some of the three files are set, but not all.
        """
        files = self._internal_files()
        return ChannelTls(files[2], files[0], files[1]) if files else None

    def _internal_files(self) -> tuple[Path, Path, Path] | None:
        cert, key, ca = self.internal_cert_file, self.internal_key_file, self.internal_ca_file
        if cert and key and ca:
            return cert, key, ca
        if cert or key or ca:
            raise CallerError(
                "KERNELFARM_INTERNAL_CERT_FILE, KERNELFARM_INTERNAL_KEY_FILE and"
                " KERNELFARM_INTERNAL_CA_FILE go"
                " together: set all three, or none for services without TLS"
            )
        return None


def load_settings(kind: type[SettingsT]) -> SettingsT:
    """A service's settings from the environment.

    Raises:
        CallerError: a variable has a value that cannot be used, or a name of an older version; the
            message names each.
    """
    _check_names()
    try:
        return kind()
    except ValidationError as error:
        faults = (
            f"{ENV_PREFIX}{'_'.join(str(part) for part in fault['loc']).upper()}: {fault['msg']}"
            f" (seen: {fault['input']!r})"
            for fault in error.errors()
        )
        raise CallerError(f"bad settings: {'; '.join(faults)}") from error


def _check_names() -> None:
    old = [name for name in _RENAMED if ENV_PREFIX + name in os.environ]
    if old:
        renamed = ", ".join(
            f"{ENV_PREFIX}{name} is {ENV_PREFIX}{_RENAMED[name]} now" for name in old
        )
        raise CallerError(f"bad settings: {renamed}; set it by its new name")
