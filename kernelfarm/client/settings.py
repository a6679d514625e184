"""The client's settings, from the environment or from code."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.identity import SHARED_TENANT
from kernelfarm.service.tls import ChannelTls

ENV_PREFIX = "KERNELFARM_"
Mode = Literal["wait", "swap", "strict"]

_GIB = 1 << 30


def default_cache_dir() -> Path:
    """Where this platform keeps what its user's programs can make again."""
    if sys.platform == "darwin":
        base = Path("~/Library/Caches").expanduser()
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    else:
        # XDG Base Directory Specification: a relative path is to be ignored.
        stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return base / "kernelfarm"


class ClientSettings(BaseSettings):
    """`KERNELFARM_ENDPOINT`, `KERNELFARM_TIMEOUT_S`, `KERNELFARM_MODE`, and so on.

    Modes: `wait` runs a graph eager if the farm cannot serve it within the time; `swap` runs it
    eager until the farm has answered in the background; `strict` raises.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    endpoint: str = "127.0.0.1:50051"
    timeout_s: float = Field(default=60.0, gt=0)
    mode: Mode = "wait"

    token: SecretStr = SecretStr("")
    """Who we are, where the farm knows its tenants; it travels with every call."""
    token_file: Path | None = None
    """A file that holds the token instead."""
    ca_file: Path | None = None
    """Whose signature the farm's certificate bears, PEM; `system` believes the system's roots."""
    client_cert_file: Path | None = None
    client_key_file: Path | None = None
    """Our own certificate and its key, PEM, where the farm asks for one."""
    server_name: str = ""
    """The name in the farm's certificate, where it is not that of the endpoint."""
    allow_cleartext_token: bool = False
    """Allows to send the token to another machine without TLS."""

    namespace: str = Field(default="default", min_length=1)
    """The farm's namespace, or FARM/TENANT where it knows its tenants: programs that were made for
    another one are refused."""
    model: str = ""
    """What is compiled here, as `id@revision`, so that it can be invalidated by name."""

    signing: Literal["required", "off"] = "required"
    """`off` states that the farm signs nothing and is believed all the same."""
    trusted_keys_file: Path | None = None
    """Public keys that are believed. Without it, a farm on this machine is asked for its keys, and
    any other one is refused."""

    host_target: str = ""
    """What is compiled for this machine's processor, as `cpu:x86-64-v3`; empty for the best that it
    runs. What it does not run is refused."""

    trace_key_file: Path | None = None
    """A private key for traces: what is traced here is published for others, who believe it. Only
    for who may decide what all of them run."""

    disk_cache_dir: Path = Field(default_factory=default_cache_dir)
    """Where programs are kept for the next process; processes share it."""
    disk_cache_bytes: int = Field(default=2 * _GIB, ge=0)
    """How much is kept there; 0 turns it off."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """Whose programs are believed: our own, and those that all tenants share."""
        farm, is_tenant, _ = self.namespace.partition("/")
        return (self.namespace, f"{farm}/{SHARED_TENANT}") if is_tenant else (self.namespace,)

    def bearer(self) -> str:
        """The token that calls bear; empty without one.

        Raises:
            CallerError: the token's file cannot be read.
        """
        if self.token_file is None:
            return self.token.get_secret_value()
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise CallerError(f"cannot read the token in {self.token_file}: {error}") from error

    def tls(self) -> ChannelTls | None:
        """How to connect; None in the clear."""
        if self.ca_file is None and self.client_cert_file is None:
            return None
        ca_file = None if str(self.ca_file) == "system" else self.ca_file
        return ChannelTls(ca_file, self.client_cert_file, self.client_key_file, self.server_name)


def client_settings(**overrides: object) -> ClientSettings:
    """The settings of the environment, with what the caller states instead.

    Raises:
        CallerError: a value cannot be used; the message names it.
    """
    try:
        return ClientSettings(**overrides)  # type: ignore[arg-type] # pydantic checks the values
    except ValidationError as error:
        faults = (
            f"{ENV_PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']} (seen: {fault['input']!r})"
            for fault in error.errors()
        )
        raise CallerError(f"bad client settings: {'; '.join(faults)}") from error
