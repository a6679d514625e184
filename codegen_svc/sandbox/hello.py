"""The first message of a zygote."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True, slots=True)
class ZygoteHello:
    """A zygote's toolchain and confinement level, or the error that it met (`reason`, `message`).

    `takes_many_jobs` is true if a child may compile several kernels, `takes_jobs_ahead` if it may
    get the next one while it compiles one.
    """

    fingerprint: str = ""
    makes_runnable_binaries: bool = False
    level: str = ""
    warm_up_ms: float = 0.0
    takes_many_jobs: bool = False
    takes_jobs_ahead: bool = False
    reason: str = ""
    message: str = ""

    def to_bytes(self) -> bytes:
        """The message as one line of JSON."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_bytes(cls, line: bytes) -> ZygoteHello:
        """The message of a line."""
        return cls(**json.loads(line))
