"""What a zygote says of itself before its first job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ZygoteHello:
    """Its toolchain and level, or why it has none (`reason`, `message`).

    `takes_many_jobs` is true if its children take one job after the other.
    """

    fingerprint: str = ""
    makes_runnable_binaries: bool = False
    level: str = ""
    warm_up_ms: float = 0.0
    takes_many_jobs: bool = False
    reason: str = ""
    message: str = ""

    def to_bytes(self) -> bytes:
        """One line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes) -> ZygoteHello:
        """What a line says."""
        return cls(**json.loads(line))
