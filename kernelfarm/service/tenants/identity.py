"""Who calls: the tenant, what it may do, and how much it may hold."""

from __future__ import annotations

import enum
from contextvars import ContextVar
from dataclasses import dataclass

from kernelfarm.errors import InternalError, OtherTenantError, PermissionDeniedError

SHARED_TENANT = "shared"
"""The tenant that nobody is: warmers publish under its name, and everybody reads there."""


class Role(enum.Enum):
    """What a credential may do.

    READER: find programs, read blobs. MEMBER: that, and compile what is missing. WARMER: compile
    into the shared namespace, which all tenants read. ADMINISTRATOR: invalidate, sweep, and see
    everybody's usage; alone it finds and compiles nothing.
    """

    READER = "reader"
    MEMBER = "member"
    WARMER = "warmer"
    ADMINISTRATOR = "administrator"


CACHE_USERS = (Role.READER, Role.MEMBER, Role.WARMER)
"""Roles that find programs and read blobs."""


@dataclass(frozen=True, slots=True)
class Quota:
    """How much one tenant may hold and have in flight; None is no limit."""

    max_bytes: int | None = None
    max_entries: int | None = None
    max_compiles: int | None = None


NO_LIMITS = Quota()


@dataclass(frozen=True, slots=True)
class NamespaceConfig:
    """The part of the cache that a caller works in: whose it is, what salts its keys, its limits.

    An empty tenant is the farm's own part, where no tenants are known.
    """

    tenant: str = ""
    salt: bytes = b""
    quota: Quota = NO_LIMITS

    def __repr__(self) -> str:
        return f"NamespaceConfig({self.tenant!r})"  # a salt is a secret


@dataclass(frozen=True, slots=True)
class Identity:
    """One caller. `credential` names what it showed, without its secret.

    `advice` tells a caller without a role how to get it.
    """

    tenant: str
    roles: frozenset[Role]
    namespace_config: NamespaceConfig
    credential: str = ""
    advice: str = "ask the farm's operator for a credential that has it"

    def require(self, *roles: Role) -> None:
        """Passes a caller that has one of some roles.

        Raises:
            PermissionDeniedError: it has none of them.
        """
        if self.roles.isdisjoint(roles):
            needed = " or ".join(role.value for role in roles)
            has = ", ".join(sorted(role.value for role in self.roles)) or "no role"
            raise PermissionDeniedError(
                f"this needs the role {needed}; {self.name} has {has}: {self.advice}"
            )

    def require_tenant(self, tenant: str) -> None:
        """Passes who asks for what is its own, and administrators.

        Raises:
            OtherTenantError: it is another tenant's.
        """
        if tenant != self.tenant and Role.ADMINISTRATOR not in self.roles:
            raise OtherTenantError(
                f"{self.name} asks for something of tenant {tenant!r}; expected its own tenant, or"
                " the role administrator"
            )

    @property
    def name(self) -> str:
        """The caller as messages and logs name it."""
        return f"tenant {self.tenant!r}" if self.tenant else "the caller"


_current: ContextVar[Identity | None] = ContextVar("identity", default=None)


def bind_identity(identity: Identity) -> None:
    """Tells who calls, for the rest of this call: each runs in a context of its own."""
    _current.set(identity)


def current_identity() -> Identity:
    """Who calls.

    Raises:
        InternalError: the service was started without anybody who identifies callers.
    """
    identity = _current.get()
    if identity is None:
        raise InternalError("nobody identified this caller")
    return identity


def current_tenant() -> str:
    """The tenant that calls; empty where nobody identified the caller, or it has none."""
    identity = _current.get()
    return identity.tenant if identity is not None else ""
