"""The identity of a caller: its tenant, roles, namespace and quota."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass

from kernelfarm.errors import InternalError, OtherTenantError, PermissionDeniedError

SHARED_TENANT = "shared"
"""The tenant name of the shared namespace, which warmers fill and all tenants read."""


class Role(enum.Enum):
    """What a credential may do.

    READER: find programs and read blobs. MEMBER: also compile missing programs. WARMER: compile
    into the shared namespace, which all tenants read. ADMINISTRATOR: invalidate, sweep, and see the
    usage of all tenants; without another role it may not find or compile programs.
    """

    READER = "reader"
    MEMBER = "member"
    WARMER = "warmer"
    ADMINISTRATOR = "administrator"


CACHE_USERS = (Role.READER, Role.MEMBER, Role.WARMER)
"""The roles that find programs and read blobs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much one tenant may hold and have in flight; None means no limit."""

    max_bytes: int | None = None
    max_entries: int | None = None
    max_compiles: int | None = None


NO_LIMITS = Quota()


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """The namespace of a caller: its tenant, the salt of its keys, and its quota.

    An empty tenant means the farm's own namespace, in a farm without tenants.
    """

    tenant: str = ""
    salt: bytes = b""
    quota: Quota = NO_LIMITS

    def __repr__(self) -> str:
        return f"NamespaceConfig({self.tenant!r})"  # a salt is a secret


@dataclass(frozen=True, slots=True)
class Identity:
    """One caller; `credential` names its credential without the secret.

    `advice` is for messages about a missing role: how to get it.
    """

    tenant: str
    roles: frozenset[Role]
    namespace_config: NamespaceConfig
    credential: str = ""
    advice: str = "ask the farm's operator for a credential that has it"

    def require(self, *roles: Role) -> None:
        """Checks that the caller has one of the roles.

        Raises:
            PermissionDeniedError: it has none of them.
        """
        if self.roles.isdisjoint(roles):
            needed = " or ".join(role.value for role in roles)
            has = ", ".join(sorted(role.value for role in self.roles)) or "no role"
            raise PermissionDeniedError(
                f"this call needs the role {needed}; {self.name} has {has}: {self.advice}"
            )

    def require_tenant(self, tenant: str) -> None:
        """Checks that the caller belongs to the tenant or is an administrator.

        Raises:
            OtherTenantError: it belongs to another tenant.
        """
        if tenant != self.tenant and Role.ADMINISTRATOR not in self.roles:
            raise OtherTenantError(
                f"{self.name} asks for data of tenant {tenant!r}; expected its own tenant, or the"
                " role administrator"
            )

    @property
    def name(self) -> str:
        """The name of the caller in messages and logs."""
        return f"tenant {self.tenant!r}" if self.tenant else "the caller"


_current: ContextVar[Identity | None] = ContextVar("identity", default=None)


def bind_identity(identity: Identity) -> None:
    """Sets the caller for the rest of this call, which runs in its own context."""
    _current.set(identity)


def current_identity() -> Identity:
    """The caller of this call.

    Raises:
        InternalError: the service was started without access control.
    """
    identity = _current.get()
    if identity is None:
        raise InternalError("this call has no identity; start the server with access control")
    return identity


def current_tenant() -> str:
    """The tenant of the caller; empty if the caller has none or was not identified."""
    identity = _current.get()
    return identity.tenant if identity is not None else ""
