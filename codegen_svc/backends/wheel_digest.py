"""Digests of installed wheels: the content of a toolchain, not the version that it claims."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib import metadata

from kernelfarm.errors import UnavailableError


@lru_cache(maxsize=8)
def wheel_digest(name: str, remedy: str) -> str:
    """Hex digest of an installed wheel's RECORD, which lists the SHA-256 of each of its files.

    It does not depend on the folder of the installation. Hashing the files themselves would read
    500 MB.

    Raises:
        UnavailableError: the wheel is not installed; the message gives the remedy.
    """
    try:
        record = metadata.distribution(name).read_text("RECORD")
    except metadata.PackageNotFoundError as error:
        raise UnavailableError(f"{name} is not installed; {remedy}") from error
    lines = sorted(
        line
        for line in (record or "").splitlines()
        if ",sha256=" in line and "/INSTALLER" not in line
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()
