"""What optimizes here: a digest over the room's code and what it shares with other rooms."""

from __future__ import annotations

from functools import lru_cache

import optimizer_svc
from kernelfarm.service.fingerprint import service_fingerprint


@lru_cache(maxsize=1)
def toolchain() -> str:
    """`optimizer@fingerprint`, read once in a process."""
    return f"optimizer@{service_fingerprint(optimizer_svc)}"
