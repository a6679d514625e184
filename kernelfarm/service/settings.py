"""The base of each service's settings: a frozen object that is read once from the environment."""

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

# The graph of a 32-layer Llama is below 1 MB, and a constant has at most 64 KiB.
DEFAULT_MAX_MESSAGE_BYTES = 64 * _MIB

_RENAMED = {
    "CPU_THREADS": "CPU_PROCESSES",
    "OPTIMIZER_THREADS": "OPTIMIZER_PROCESSES",
    "ROOM_CERT_FILE": "INTERNAL_CERT_FILE",  # retired-word: ok, an old name
    "ROOM_KEY_FILE": "INTERNAL_KEY_FILE",  # retired-word: ok, an old name
    "ROOM_CA_FILE": "INTERNAL_CA_FILE",  # retired-word: ok, an old name
    "FRONTEND_OWN_LISTEN": "FRONTEND_PROCESS_LISTEN",
    "MAX_ANSWERS_BYTES": "MAX_RESPONSE_BYTES",
    "MAX_WATCHES_OF_A_TENANT": "MAX_WATCHES_PER_TENANT",
    "MAX_COMPILES_OF_A_TENANT": "MAX_COMPILES_PER_TENANT",
    "CLEAR_TOKEN": "ALLOW_CLEARTEXT_TOKEN",
    "QUEUE_PLACES": "QUEUE_HEADROOM",
    "MAX_JOBS_OF_A_TENANT": "MAX_JOBS_PER_TENANT",
}
"""Old names of settings, with the new ones: setting an old name is an error, not ignored."""

SettingsT = TypeVar("SettingsT", bound="ServiceSettings")


class ServiceSettings(BaseSettings):
    """Settings of all services: `KERNELFARM_LOG_LEVEL`, `KERNELFARM_DRAIN_GRACE_S`, ...

    Each service has a subclass with its own settings, which inherits the prefix.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged; with `debug`, each call has a log line."""
    log_format: Literal["json", "console"] = "json"
    """`json` writes one object for each line, `console` writes text for people."""
    max_message_bytes: int = Field(default=DEFAULT_MAX_MESSAGE_BYTES, gt=0, lt=2**31)
    """The largest request that the service accepts."""
    drain_grace_s: float = Field(default=20.0, ge=0)
    """For how long calls in flight may continue after SIGTERM."""

    max_requests_bytes: int = Field(default=512 * _MIB, gt=0)
    """The bytes of all requests that one process serves at once; further requests are refused and
    may be repeated. In a farm with tenants, each tenant may have half of it."""
    max_bodies: int = Field(default=64, gt=0)
    """How many requests are received at once; further requests wait. In a farm with tenants, each
    tenant may have a quarter of it."""
    tenant_bytes_per_s: int = Field(default=32 * _MIB, gt=0)
    """The average rate at which one tenant may send while others call; four seconds of it may
    arrive at once."""
    body_timeout_s: float = Field(default=30.0, gt=0)
    """A request that has not arrived after this time is refused."""
    max_connections: int = Field(default=0, ge=0)
    """How many connections one process accepts; 0 means three quarters of its limit of open
    files."""
    connection_idle_s: float = Field(default=300.0, gt=0)
    """A connection without a call is closed after this time; clients connect again."""
    connection_age_s: float = Field(default=0.0, ge=0)
    """A connection is closed after this time, once its calls have ended, so that clients resolve
    the name again and find new replicas; 0: no limit."""
    handshake_timeout_s: float = Field(default=10.0, gt=0)
    """A connection that has not completed its TLS and HTTP/2 handshakes after this time is
    closed."""
    max_streams: int = Field(default=1024, gt=0)
    """How many calls one connection may have at once; clients delay further calls."""
    reflection: bool = True
    """Whether the server describes its API (`grpcurl list`) to callers that it serves."""

    metrics_listen: str = ""
    """Address at which the process serves its metrics for Prometheus (`/metrics`), HOST:PORT;
    empty: it serves none. With internal TLS it is encrypted by the same certificate."""
    metrics_client_ca_file: Path | None = None
    """The CA whose certificates callers of the metrics must present; PEM. None: anyone who reaches
    the address may read them."""

    internal_cert_file: Path | None = None
    """The service's certificate for internal TLS; PEM. Set all three internal files or none:
    without them, the services of the farm connect to each other unencrypted."""
    internal_key_file: Path | None = None
    """The private key of `internal_cert_file`; PEM."""
    internal_ca_file: Path | None = None
    """The CA that signs the certificates of the farm's services, and no others, because every
    holder of such a certificate counts as a service of the farm; PEM."""

    def internal_server_tls(self) -> ServerTls | None:
        """The TLS of the listener for other services; None if it is unencrypted.

        Raises:
            CallerError: some of the three files are set, but not all.
        """
        files = self._internal_files()
        return ServerTls(*files) if files else None

    def internal_channel_tls(self) -> ChannelTls | None:
        """The TLS of channels to other services; None if they are unencrypted.

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
                " KERNELFARM_INTERNAL_CA_FILE go together: set all three, or none for services"
                " without TLS"
            )
        return None


def load_settings(kind: type[SettingsT]) -> SettingsT:
    """A service's settings from the environment.

    Raises:
        CallerError: a variable has an invalid value, or is the old name of a setting; the message
            names each of them.
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
