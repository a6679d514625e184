"""Access control of a service: identifies callers, and counts refused calls."""

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
    """Counts refused calls by tenant (empty for unidentified callers) and reason."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def count(self, tenant: str, error: BaseException) -> None:
        """Counts an error if it is a refusal."""
        if isinstance(error, _REFUSALS):
            self._counts[tenant, error.reason] += 1

    def drain(self) -> dict[tuple[str, str], int]:
        """Returns the counts since the last call, and resets them."""
        counts, self._counts = dict(self._counts), Counter()
        return counts

    def restore(self, counts: dict[tuple[str, str], int]) -> None:
        """Adds counts that could not be reported."""
        self._counts.update(counts)


@dataclass(frozen=True, slots=True)
class AccessControl:
    """Who may call which method; `open_methods` (`/package.Service/Method`) need no credentials."""

    authenticator: Authenticator
    open_methods: frozenset[str] = frozenset()
    refusals: RefusalCounts = field(default_factory=RefusalCounts)

    def identify(self, method: str, metadata: Metadata, connection: CallOrigin) -> Identity:
        """Identifies the caller of a method.

        Raises:
            UnauthenticatedError: the credentials are missing or unknown, and the method is not
                open; or unknown credentials were sent to an open method.
        """
        if method in self.open_methods:
            return self.authenticator.identify_optional(metadata, connection)
        return self.authenticator.identify(metadata, connection)
