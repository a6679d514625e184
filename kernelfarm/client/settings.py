"""The client's settings, from the environment or from code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from kernelfarm.errors import CallerError
from kernelfarm.service.tenants.identity import SHARED_TENANT
from kernelfarm.service.tls import ChannelTls

ENV_PREFIX = "KERNELFARM_"
Mode = Literal["wait", "swap", "strict"]

_GIB = 1 << 30

_WORDS = {"true": True, "1": True, "yes": True, "on": True}
_WORDS |= {"false": False, "0": False, "no": False, "off": False}


class SecretText:
    """A text that is not printed."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SecretText) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return "SecretText('**********')" if self._text else "SecretText('')"

    def get_secret_value(self) -> str:
        """The text."""
        return self._text


@dataclass(frozen=True, slots=True)
class Bound:
    """The limit of a number: above `gt`, or at least `ge`."""

    gt: float | None = None
    ge: float | None = None


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


@dataclass(frozen=True, init=False)
class ClientSettings:
    """`KERNELFARM_ENDPOINT`, `KERNELFARM_TIMEOUT_S`, `KERNELFARM_MODE`, and so on.

    Settings that are not stated come from the environment. This class is no pydantic model as those
    of the services are: importing pydantic takes longer than all other imports of a warm start.

    Modes: `wait` runs a graph eager if the farm cannot serve it within `timeout_s`; `swap` runs it
    eager until a background thread has fetched the program; `strict` raises.

    Raises:
        CallerError: a value is not valid; the message names it.
    """

    endpoint: str = "127.0.0.1:50051"
    """Address of the farm: `HOST:PORT` or `unix:PATH`."""
    timeout_s: Annotated[float, Bound(gt=0)] = 60.0
    """How long one graph waits for the farm in all; tracing does not count."""
    mode: Mode = "wait"
    """What a graph does until its program is there, and if the farm cannot serve it."""
    cuda_graphs: bool = False
    """Records the programs of GPUs as CUDA graphs; `mode="reduce-overhead"` is the same."""
    autotune: Literal["fleet", "measure", "first"] = "fleet"
    """How autotuned Triton kernels of a model choose a configuration: a few clients of the farm
    measure and all use what is the fastest, or the first launch measures all of them, or the first
    one that fits the device is launched. With `first`, no tuned products are measured here."""
    autotune_limit_s: Annotated[float, Bound(gt=0)] = 30.0
    """How long the first launch of an autotuned kernel measures, or a thread the candidates of a
    tuned product. Then the fastest one so far is launched from then on."""

    token: SecretText = SecretText("")  # noqa: RUF009 -- it does not change
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

    namespace: str = "default"
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
    processor runs. A target that the processor does not run is refused. A package of another vendor
    may run its own targets on this machine, for example by emulation."""

    trace_key_file: Path | None = None
    """A private key for traces. With it, the client publishes its traces, and other clients run the
    programs that these name: give it only to processes that may decide this."""

    packages: Literal["off", "trusted"] = "off"
    """`trusted` lets `kernelfarm.packaged` run the code of packages that a pinned key for traces
    signed; it needs `trusted_keys_file`."""

    drop_in_caches: Literal["off", "trusted"] = "off"
    """`trusted` lets the caches of Triton and Inductor use entries that a pinned key for traces
    signed; it needs `trusted_keys_file`. Entries are code."""
    inductor_cache: Literal["off", "on"] = "off"
    """`on` installs the farm as Inductor's remote cache when PyTorch is imported; it needs
    `drop_in_caches`."""
    drop_in_wait_s: Annotated[float, Bound(ge=0)] = 30.0
    """How long such a cache waits for an entry that another process is making, and how long a
    publisher may take until others stop waiting for it; at most 600 s; 0 compiles at once."""

    disk_cache_dir: Path = field(default_factory=default_cache_dir)
    """Folder of the disk tier, which processes of one user share. Default: `kernelfarm` in
    `~/.cache` (or `XDG_CACHE_HOME`), `~/Library/Caches` or `%LOCALAPPDATA%`."""
    disk_cache_bytes: Annotated[int, Bound(ge=0)] = 2 * _GIB
    """Size limit of the disk tier; 0 turns it off."""

    def __init__(self, **stated: Any) -> None:
        unknown = stated.keys() - _types().keys()
        if unknown:
            raise TypeError(f"no such settings: {', '.join(sorted(unknown))}")
        faults = []
        for setting in fields(self):
            variable = f"{ENV_PREFIX}{setting.name.upper()}"
            if setting.name in stated:
                value = stated[setting.name]
            elif variable in os.environ:
                value = os.environ[variable]
            else:
                factory = setting.default_factory
                value = factory() if callable(factory) else setting.default
            try:
                object.__setattr__(self, setting.name, _read(_types()[setting.name], value))
            except ValueError as error:
                faults.append(f"{variable}: {error} (seen: {value!r})")
        if not faults and not self.namespace:
            faults.append(f"{ENV_PREFIX}NAMESPACE: expected a name (seen: '')")
        if faults:
            raise CallerError(f"bad client settings: {'; '.join(faults)}")

    def changed(self, **changes: Any) -> ClientSettings:
        """These settings with other values of some."""
        return replace(self, **changes)

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
    if overrides:
        return ClientSettings(**overrides)
    return _of_environment(frozenset(os.environ.items()))


def is_in_environment(name: str) -> bool:
    """True if the environment states a setting."""
    return f"{ENV_PREFIX}{name.upper()}" in os.environ


@lru_cache(maxsize=4)
def _of_environment(_: frozenset[tuple[str, str]]) -> ClientSettings:
    """Settings of one state of the environment: each graph reads them."""
    return ClientSettings()


@cache
def _types() -> dict[str, Any]:
    return get_type_hints(ClientSettings, include_extras=True)


def _read(kind: Any, value: Any) -> Any:
    """A value of a field's type, from that type or from text.

    Raises:
        ValueError: it is none; the text says what was expected.
    """
    if get_origin(kind) is Annotated:
        number, bound = get_args(kind)
        return _number(number, bound, value)
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            raise ValueError(f"expected {' or '.join(map(repr, get_args(kind)))}")
        return value
    if kind is bool:
        return _flag(value)
    kinds = get_args(kind) or (kind,)
    if isinstance(value, kinds):
        return value
    if not isinstance(value, str):
        raise ValueError("expected text")
    return kinds[0](value)


def _flag(value: Any) -> bool:
    found = value if isinstance(value, bool) else _WORDS.get(str(value).lower())
    if found is None:
        raise ValueError("expected true or false")
    return found


def _number(kind: Callable[[Any], float], bound: Bound, value: Any) -> float:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise ValueError("expected a number") from None
    if bound.gt is not None and not number > bound.gt:
        raise ValueError(f"expected a number greater than {bound.gt}")
    if bound.ge is not None and not number >= bound.ge:
        raise ValueError(f"expected a number of at least {bound.ge}")
    return number
