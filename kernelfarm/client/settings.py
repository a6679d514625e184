"""The client's settings, from the environment or from code."""

from __future__ import annotations

import os
import sys
from functools import lru_cache
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
    """The platform's folder for data of this user that can be regenerated."""
    if sys.platform == "darwin":
        base = Path("~/Library/Caches").expanduser()
    elif sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA", "~/AppData/Local")).expanduser()
    else:
        # XDG Base Directory Specification: relative paths must be ignored.
        stated = Path(os.environ.get("XDG_CACHE_HOME", ""))
        base = stated if stated.is_absolute() else Path("~/.cache").expanduser()
    return base / "kernelfarm"


class ClientSettings(BaseSettings):
    """`KERNELFARM_ENDPOINT`, `KERNELFARM_TIMEOUT_S`, `KERNELFARM_MODE`, and so on.

    Modes: `wait` runs a graph eager if the farm cannot serve it within `timeout_s`; `swap` runs it
    eager until a background thread has fetched the program; `strict` raises.
    """

    model_config = SettingsConfigDict(env_prefix=ENV_PREFIX, frozen=True, extra="ignore")

    endpoint: str = "127.0.0.1:50051"
    """Address of the farm: `HOST:PORT` or `unix:PATH`."""
    timeout_s: float = Field(default=60.0, gt=0)
    """How long one graph waits for the farm in all; tracing does not count."""
    mode: Mode = "wait"
    """What a graph does until its program is there, and if the farm cannot serve it."""

    token: SecretStr = SecretStr("")
    """The tenant's token, for a farm with tenants; sent with every call."""
    token_file: Path | None = None
    """A file that contains the token; used instead of `token`."""
    ca_file: Path | None = None
    """The CA that signed the farm's certificate, PEM; `system` trusts the system's roots."""
    client_cert_file: Path | None = None
    """The client's own certificate, PEM, for a farm that requires one."""
    client_key_file: Path | None = None
    """The private key of the client's certificate, PEM."""
    server_name: str = ""
    """The name in the farm's certificate, if it differs from the endpoint's."""
    allow_cleartext_token: bool = False
    """Allows sending the token to another machine without TLS."""

    namespace: str = Field(default="default", min_length=1)
    """The farm's namespace; FARM/TENANT for a farm with tenants. The client refuses programs that
    were made for another namespace."""
    model: str = ""
    """The model's name, as `id@revision`; its programs can be invalidated by this name."""

    signing: Literal["required", "off"] = "required"
    """`off` accepts programs of a farm that does not sign them."""
    trusted_keys_file: Path | None = None
    """The public keys that the client trusts. Without it, the client asks a farm on this machine
    for its keys and refuses the programs of any other farm."""

    host_target: str = ""
    """The target for this machine's processor, such as `cpu:x86-64-v3`; empty for the best that the
    processor runs. A target that the processor does not run is refused."""

    trace_key_file: Path | None = None
    """A private key for traces. With it, the client publishes its traces, and other clients run the
    programs that these name: give it only to processes that may decide this."""

    disk_cache_dir: Path = Field(default_factory=default_cache_dir)
    """Folder of the disk tier, which processes of one user share. Default: `kernelfarm` in
    `~/.cache` (or `XDG_CACHE_HOME`), `~/Library/Caches` or `%LOCALAPPDATA%`."""
    disk_cache_bytes: int = Field(default=2 * _GIB, ge=0)
    """Size limit of the disk tier; 0 turns it off."""

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The namespaces whose programs are accepted: the client's own, then the shared one."""
        farm, is_tenant, _ = self.namespace.partition("/")
        return (self.namespace, f"{farm}/{SHARED_TENANT}") if is_tenant else (self.namespace,)

    def bearer(self) -> str:
        """The token to send with calls; empty if there is none.

        Raises:
            CallerError: the token file cannot be read.
        """
        if self.token_file is None:
            return self.token.get_secret_value()
        try:
            return self.token_file.read_text().strip()
        except OSError as error:
            raise CallerError(f"cannot read the token in {self.token_file}: {error}") from error

    def tls(self) -> ChannelTls | None:
        """TLS files and names for the channel; None to connect without TLS."""
        if self.ca_file is None and self.client_cert_file is None:
            return None
        ca_file = None if str(self.ca_file) == "system" else self.ca_file
        return ChannelTls(ca_file, self.client_cert_file, self.client_key_file, self.server_name)


def client_settings(**overrides: object) -> ClientSettings:
    """The settings of the environment, with `overrides` in place of single values.

    Raises:
        CallerError: a value is not valid; the message names it.
    """
    try:
        if overrides:
            return ClientSettings(**overrides)  # type: ignore[arg-type] # pydantic checks the values
        return _of_environment(frozenset(os.environ.items()))
    except ValidationError as error:
        faults = (
            f"{ENV_PREFIX}{str(fault['loc'][0]).upper()}: {fault['msg']} (seen: {fault['input']!r})"
            for fault in error.errors()
        )
        raise CallerError(f"bad client settings: {'; '.join(faults)}") from error


@lru_cache(maxsize=4)
def _of_environment(_: frozenset[tuple[str, str]]) -> ClientSettings:
    """Settings of one state of the environment: reading them takes milliseconds, for each graph."""
    return ClientSettings()
