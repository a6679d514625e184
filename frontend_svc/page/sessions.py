"""Who asks for a page: a bearer token, or a session that a log-in form began.

A session is a random name in a cookie; its token stays in this process. Each request identifies its
caller by the token again, so a token that is revoked or has expired ends its sessions.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from kernelfarm.errors import FarmFullError, KernelfarmError, UnauthenticatedError
from kernelfarm.service.logs.logger import get_logger
from kernelfarm.service.rates import TokenBuckets
from kernelfarm.service.tenants.access import AccessControl
from kernelfarm.service.tenants.identity import Identity

MAX_SESSIONS = 1024
"""Sessions of one gateway; beyond it, the oldest one ends."""
_WRONG_BURST, _WRONG_PER_S = 5, 0.1
"""Wrong credentials of one address; there is no limit for all, which would lock everyone out."""
METHOD = "/page"
"""The method by which access control and logs name requests of the page."""


@dataclass(frozen=True, slots=True)
class PageOrigin:
    """Where a request came from, as the authenticator asks for it; see `CallOrigin`."""

    address: str

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        """Browsers send no client certificates to this listener."""
        return {}

    def peer(self) -> str:
        """The address in gRPC's form."""
        is_v6 = ":" in self.address
        return f"ipv6:[{self.address}]:0" if is_v6 else f"ipv4:{self.address}:0"


class PageAccess:
    """Identifies callers of the page, and limits how often credentials may be wrong."""

    def __init__(
        self, access: AccessControl, session_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._access = access
        self._session_s = session_s
        self._clock = clock
        self._sessions: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._wrong: TokenBuckets[str] = TokenBuckets(_WRONG_BURST, _WRONG_PER_S, clock)

    def identify(self, header: str, session: str, address: str) -> Identity:
        """The caller of a request with this `authorization` header or session.

        Raises:
            UnauthenticatedError: the credentials are missing, wrong or expired.
            FarmFullError: too many credentials were wrong; retry later.
        """
        if not header and session:
            header = f"Bearer {self._token_of(session)}"
        self._check_rate(address)
        metadata = [("authorization", header)] if header else []
        try:
            return self._access.identify(METHOD, metadata, PageOrigin(address))
        except KernelfarmError as error:
            if header:
                self._note_failure(address, error)
            raise

    def log_in(self, token: str, address: str) -> str:
        """Begins a session with a token; returns the session's name.

        Raises:
            UnauthenticatedError, FarmFullError: see `identify`.
        """
        self.identify(f"Bearer {token}", "", address)
        session = secrets.token_urlsafe(32)
        self._sessions[_digest(session)] = (token, self._clock() + self._session_s)
        while len(self._sessions) > MAX_SESSIONS:
            self._sessions.popitem(last=False)
        return session

    def log_out(self, session: str) -> None:
        """Ends a session, if it exists."""
        self._sessions.pop(_digest(session), None)

    def _token_of(self, session: str) -> str:
        token, ends_s = self._sessions.get(_digest(session), ("", 0.0))
        if not token or self._clock() >= ends_s:
            self.log_out(session)
            raise UnauthenticatedError("the session has ended; log in again")
        return token

    def _check_rate(self, address: str) -> None:
        waits_s = self._wrong.retry_after_s(address)
        if waits_s > 0:
            error = FarmFullError(
                f"too many wrong credentials from {address}; retry in {waits_s:.0f} s"
            )
            error.retry_after_s = waits_s
            raise error

    def _note_failure(self, address: str, error: KernelfarmError) -> None:
        self._wrong.take(address)
        self._access.refusals.count("", error)
        get_logger().info("page_login_failed", address=address, reason=error.reason)


def _digest(session: str) -> bytes:
    return hashlib.sha256(session.encode()).digest()
