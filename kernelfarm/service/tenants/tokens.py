"""Bearer tokens: made once, printed once, kept as digests.

token = "kft_" ID "_" SECRET    ID: 12 hex digits, its name; SECRET: 32 random bytes, base64url

A secret of 256 random bits needs no slow hash: nobody guesses it, whatever the digest costs.
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
    """What is kept of a token: its name, the SHA-256 of the whole (hex), its roles, its end."""

    token_id: str
    sha256: str
    roles: frozenset[Role]
    not_after: datetime | None = None
    note: str = ""

    def is_of(self, token: str) -> bool:
        """True for the token that this was made from; takes as long for any other."""
        return hmac.compare_digest(_digest(token), self.sha256)


def new_token(
    roles: frozenset[Role], not_after: datetime | None = None, note: str = ""
) -> tuple[str, StoredToken]:
    """A fresh token, and what to keep of it."""
    token_id = secrets.token_hex(_ID_BYTES)
    token = f"kft_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return token, StoredToken(token_id, _digest(token), roles, not_after, note)


def token_id_of(token: str) -> str:
    """The name of a token; empty for what is none."""
    found = _TOKEN.fullmatch(token)
    return found.group(1) if found else ""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
