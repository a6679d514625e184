"""Identifies callers by the tenants file or, in a farm without one, by token or address."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from kernelfarm.errors import CallerError, UnauthenticatedError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.tenants.directory import Credentials, TenantDirectory
from kernelfarm.service.tenants.identity import Identity, NamespaceConfig, Role
from kernelfarm.service.tenants.toml_file import read_tenants

_SCHEME = "Bearer "
_LOCAL = ("unix:", "ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D")
_RELOAD_CHECK_S = 0.5
_SEND_TOKEN = "send the administrator's token (KERNELFARM_ADMIN_TOKEN)"
_SET_TOKEN = (
    "this farm has no administrator's token, so only callers on its own machine have the role: set"
    " KERNELFARM_ADMIN_TOKEN at the frontend"
)

Metadata = Sequence[tuple[str, str | bytes]]
"""A call's headers."""


class CallOrigin(Protocol):
    """Where a call came from; the contexts of gRPC have this form."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """The properties of the TLS connection; empty without TLS."""

    def peer(self) -> str:
        """The caller's address."""


class TenantsFile:
    """The tenants of a file, which is read again when it has changed.

    A file that cannot be used leaves the tenants as they are; `failed_reloads` counts these cases.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._version = self._file_version()
        self._directory = read_tenants(path)
        self._checked_s = clock()
        self.failed_reloads = 0

    @property
    def latest(self) -> TenantDirectory:
        """The tenants as they were read last; other threads may ask for them."""
        return self._directory

    def current(self) -> TenantDirectory:
        """The tenants; a change of the file is visible after at most half a second."""
        now_s = self._clock()
        if now_s - self._checked_s >= _RELOAD_CHECK_S:
            self._checked_s = now_s
            version = self._file_version()
            if version != self._version:
                self._version = version
                self._reload()
        return self._directory

    def _reload(self) -> None:
        try:
            self._directory = read_tenants(self._path)
        except CallerError as error:
            self.failed_reloads += 1
            get_logger().error(
                "tenants_reload_failed", message=f"{error}; the last valid tenants stay in use"
            )
            return
        get_logger().info("tenants_reloaded", tenants=len(self._directory.tenants))

    def _file_version(self) -> tuple[int, int, int] | None:
        try:
            stat = self._path.stat()
        except OSError:
            return None
        return stat.st_mtime_ns, stat.st_ino, stat.st_size


class Authenticator:
    """Identifies the callers of one service.

    Without a tenants file, all callers are members of the farm's own namespace. Callers that send
    `admin_token` are administrators too; if there is no such token, callers from this machine are.
    """

    def __init__(self, tenants: TenantsFile | None = None, admin_token: str = "") -> None:
        if tenants is not None and admin_token:
            raise CallerError(
                "KERNELFARM_ADMIN_TOKEN is for farms without tenants; give a token of the tenants"
                " file the role administrator instead"
            )
        self._tenants = tenants
        self._admin_token = admin_token
        advice = _SEND_TOKEN if admin_token else _SET_TOKEN
        self._member = _caller(advice)
        self._administrator = _caller(advice, Role.ADMINISTRATOR)

    @property
    def tenants(self) -> TenantsFile | None:
        """The tenants; None in a farm without tenants."""
        return self._tenants

    def identify(self, metadata: Metadata, connection: CallOrigin) -> Identity:
        """The caller, from a call's headers, its connection's certificate and its address.

        Raises:
            UnauthenticatedError: the credentials are missing, unknown, expired or contradictory.
        """
        if self._tenants is None:
            return self._identify_without_tenants(metadata, connection)
        credentials = Credentials(_bearer(metadata), _certificate_names(connection))
        return self._tenants.current().identify(credentials, datetime.now(UTC))

    def identify_optional(self, metadata: Metadata, connection: CallOrigin) -> Identity:
        """As `identify`, but a caller without credentials is `ANONYMOUS`, without a role."""
        if self._tenants is None or _bearer(metadata) or _certificate_names(connection):
            return self.identify(metadata, connection)
        return ANONYMOUS

    def _identify_without_tenants(self, metadata: Metadata, connection: CallOrigin) -> Identity:
        if self._admin_token:
            is_administrator = hmac.compare_digest(
                _bearer(metadata).encode(), self._admin_token.encode()
            )
            return self._administrator if is_administrator else self._member
        is_local = connection.peer().startswith(_LOCAL)
        return self._administrator if is_local else self._member


def _caller(advice: str, *more: Role) -> Identity:
    """A member of a farm without tenants."""
    return Identity("", frozenset({Role.MEMBER, *more}), NamespaceConfig(), advice=advice)


ANONYMOUS = Identity("", frozenset(), NamespaceConfig())
"""The caller without credentials in a farm with tenants."""


def _bearer(metadata: Metadata) -> str:
    sent = [value for name, value in metadata if name == "authorization"]
    if not sent:
        return ""
    value = sent[0]
    if len(sent) > 1 or not isinstance(value, str) or not value.startswith(_SCHEME):
        raise UnauthenticatedError(
            "the call has no valid header `authorization`; send it once, as `Bearer TOKEN`"
        )
    return value.removeprefix(_SCHEME).strip()


def _certificate_names(connection: CallOrigin) -> tuple[str, ...]:
    """The names in a verified client certificate: its SANs, or its CN if it has no SAN."""
    auth = connection.auth_context()
    for kind in ("x509_subject_alternative_name", "x509_common_name"):
        names = tuple(dict.fromkeys(name.decode("ascii", "replace") for name in auth.get(kind, ())))
        if names:
            return names
    return ()
