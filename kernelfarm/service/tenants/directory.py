"""The farm's tenants with their credentials and limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kernelfarm.errors import (
    CredentialsDisagreeError,
    ExpiredTokenError,
    UnauthenticatedError,
    UnknownCertificateError,
    UnknownTokenError,
)
from kernelfarm.service.tenants.identity import (
    NO_LIMITS,
    SHARED_TENANT,
    Identity,
    NamespaceConfig,
    Quota,
    Role,
)
from kernelfarm.service.tenants.tokens import StoredToken, token_id_of


@dataclass(frozen=True, slots=True)
class StoredCertificate:
    """A name in client certificates: a SAN (DNS or URI), or the CN of a certificate without SAN."""

    name: str
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class Tenant:
    """One tenant; with an empty salt, its keys are not salted."""

    name: str
    salt: bytes
    quota: Quota = NO_LIMITS
    tokens: tuple[StoredToken, ...] = ()
    certificates: tuple[StoredCertificate, ...] = ()

    def __repr__(self) -> str:
        return f"Tenant({self.name!r})"  # a salt is a secret


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of one call: its token, or empty, and the names in its certificate."""

    token: str = ""
    certificate_names: tuple[str, ...] = ()


class TenantDirectory:
    """All tenants by their credentials."""

    def __init__(self, tenants: Iterable[Tenant], shared_quota: Quota = NO_LIMITS) -> None:
        self.tenants: Mapping[str, Tenant] = {tenant.name: tenant for tenant in tenants}
        self.shared = NamespaceConfig(SHARED_TENANT, b"", shared_quota)
        self._tokens = {t.token_id: (owner, t) for owner in self._all() for t in owner.tokens}
        self._certificates = {
            c.name: (owner, c) for owner in self._all() for c in owner.certificates
        }

    def identify(self, credentials: Credentials, now: datetime) -> Identity:
        """The caller with these credentials.

        Raises:
            UnauthenticatedError: there are no credentials, or they belong to no tenant, have
                expired, or belong to two tenants.
        """
        by_certificate = self._of_certificate(credentials.certificate_names)
        if not credentials.token:
            if by_certificate is None:
                raise UnauthenticatedError(
                    "no credentials: send the header `authorization: Bearer TOKEN`"
                    " (KERNELFARM_TOKEN), or connect with a client certificate"
                )
            return by_certificate
        by_token = self._of_token(credentials.token, now)
        if by_certificate is not None and by_certificate.tenant != by_token.tenant:
            raise CredentialsDisagreeError(
                f"the token belongs to tenant {by_token.tenant!r}, the client certificate to"
                f" {by_certificate.tenant!r}; expected one tenant"
            )
        return by_token

    def namespace_config_of(self, tenant: str) -> NamespaceConfig | None:
        """The namespace of a tenant; None for an unknown tenant."""
        if tenant == SHARED_TENANT:
            return self.shared
        known = self.tenants.get(tenant)
        return None if known is None else NamespaceConfig(known.name, known.salt, known.quota)

    def _of_token(self, token: str, now: datetime) -> Identity:
        owner, stored = self._tokens.get(token_id_of(token), (None, _NO_TOKEN))
        # Compared for unknown ids too, so that the time does not reveal which ids exist.
        if not stored.is_of(token) or owner is None:
            raise UnknownTokenError(
                "the token belongs to no tenant; expected one that `kernelfarm tenants token`"
                " printed and that was not revoked"
            )
        if stored.not_after is not None and stored.not_after <= now:
            raise ExpiredTokenError(
                f"the token {stored.token_id} of tenant {owner.name!r} expired at"
                f" {stored.not_after.isoformat()}; make a new one with `kernelfarm tenants token`"
            )
        return self._identity(owner, stored.roles, f"token {stored.token_id}")

    def _of_certificate(self, names: tuple[str, ...]) -> Identity | None:
        if not names:
            return None
        found = {name: known for name in names if (known := self._certificates.get(name))}
        owners = {owner.name for owner, _ in found.values()}
        if len(owners) != 1:
            why = "belong to several tenants" if owners else "belong to no tenant"
            raise UnknownCertificateError(
                f"the client certificate's names {', '.join(names)[:200]!r} {why}; expected a name"
                " of one tenant in the farm's tenants file"
            )
        owner = next(iter(found.values()))[0]
        roles = frozenset[Role]().union(*(stored.roles for _, stored in found.values()))
        return self._identity(owner, roles, f"certificate {', '.join(sorted(found))}")

    def _identity(self, owner: Tenant, roles: frozenset[Role], credential: str) -> Identity:
        own = NamespaceConfig(owner.name, owner.salt, owner.quota)
        namespace_config = self.shared if Role.WARMER in roles else own
        return Identity(owner.name, roles, namespace_config, credential)

    def _all(self) -> Iterable[Tenant]:
        return self.tenants.values()


_NO_TOKEN = StoredToken("", "0" * 64, frozenset())
