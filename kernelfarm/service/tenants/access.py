"""What guards the methods of a service: who is identified, what is open, what is counted."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from kernelfarm.errors import (
    CompilesQuotaError,
    PermissionDeniedError,
    QuotaError,
    UnauthenticatedError,
)
from kernelfarm.service.tenants.authentication import Authenticator, CallOrigin, Metadata
from kernelfarm.service.tenants.identity import Identity

_REFUSALS = (UnauthenticatedError, PermissionDeniedError, QuotaError, CompilesQuotaError)


class RefusalCounts:
    """Counts refused calls by tenant (empty: nobody that was identified) and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, tenant: str, error: BaseException) -> None:
        """Counts a refusal; other errors are not counted here."""
        if isinstance(error, _REFUSALS):
            self._counts[tenant, error.reason] += 1

    def drain(self) -> dict[tuple[str, str], int]:
        """What was counted since the last time."""
        taken, self._counts = dict(self._counts), Counter()
        return taken

    def restore(self, counts: dict[tuple[str, str], int]) -> None:
        """Counts again what could not be told."""
        self._counts.update(counts)


@dataclass(frozen=True, slots=True)
class AccessControl:
    """`open_methods` need no identity (`/package.Service/Method`)."""

    authenticator: Authenticator
    open_methods: frozenset[str] = frozenset()
    refusals: RefusalCounts = field(default_factory=RefusalCounts)

    def identify(self, method: str, metadata: Metadata, connection: CallOrigin) -> Identity:
        """Who calls a method.

        Raises:
            UnauthenticatedError: nobody that this farm knows, and the method is not open.
        """
        if method in self.open_methods:
            return self.authenticator.identify_optional(metadata, connection)
        return self.authenticator.identify(metadata, connection)
