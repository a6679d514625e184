"""The optimizer's toolchain: a digest over its code and the code that services share."""

from __future__ import annotations

from functools import lru_cache

import optimizer_svc
from kernelfarm.service.fingerprint import service_fingerprint


@lru_cache(maxsize=1)
def toolchain() -> str:
    """`optimizer@fingerprint`; computed once in a process."""
    return f"optimizer@{service_fingerprint(optimizer_svc)}"
