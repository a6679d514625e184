"""Bearer tokens: created and printed once, stored as digests.

token = "kft_" ID "_" SECRET    ID: 12 hex digits; SECRET: 32 random bytes, base64url

A secret of 256 random bits cannot be guessed, so its digest needs no slow hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime

from kernelfarm.service.tenants.identity import Role

_ID_BYTES = 6
_SECRET_BYTES = 32
_TOKEN = re.compile(r"kft_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")


@dataclass(frozen=True, slots=True)
class StoredToken:
    """The stored form of a token: id, SHA-256 of the whole token (hex), roles and expiry."""

    token_id: str
    sha256: str
    roles: frozenset[Role]
    not_after: datetime | None = None
    note: str = ""

    def is_of(self, token: str) -> bool:
        """True if this is the stored form of the token; the time does not depend on the token."""
        return hmac.compare_digest(_digest(token), self.sha256)


def new_token(
    roles: frozenset[Role], not_after: datetime | None = None, note: str = ""
) -> tuple[str, StoredToken]:
    """A new token and its stored form."""
    token_id = secrets.token_hex(_ID_BYTES)
    token = f"kft_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return token, StoredToken(token_id, _digest(token), roles, not_after, note)


def token_id_of(token: str) -> str:
    """The id of a token; empty if the text is not a token."""
    found = _TOKEN.fullmatch(token)
    return found.group(1) if found else ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
