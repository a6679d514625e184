"""What goes into the cache and comes out of it."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass

from kernelfarm.errors import ErrorFacts


class Space(enum.Enum):
    """A key space: programs and kernels never share keys."""

    PROGRAMS = "p"
    KERNELS = "k"


class Published(enum.Enum):
    """How a publication ended.

    FENCED: the lease lapsed or somebody else has it; drop the result. MISSING_BLOB: a blob that a
    variant names is not stored (evicted since); store it again.
    """

    OK = "OK"
    FENCED = "FENCED"
    MISSING_BLOB = "MISSING_BLOB"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one key's result, until its time to live passes without a renewal.

    `fence` grows with every lease given, so that a late publication can be told from a current one.
    `attempts` counts earlier holders that vanished without a result.
    """

    key: bytes
    owner: str
    fence: int
    ttl_s: float
    attempts: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One variant of a result: opaque bytes, and the SHA-256 digests of the blobs it names."""

    payload: bytes
    blobs: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """What a worker tells of itself: its queue (the vendor), and what compiles there."""

    worker: str
    queue: str
    toolchain: str
    makes_runnable_binaries: bool

    def to_json(self) -> str:
        """Its stored form."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: bytes) -> WorkerReport:
        """A report from its stored form."""
        return WorkerReport(**json.loads(text))


def facts_to_json(facts: ErrorFacts) -> str:
    """The stored form of a failure."""
    return json.dumps(asdict(facts))


def facts_from_json(text: bytes) -> ErrorFacts:
    """A failure from its stored form."""
    return ErrorFacts(**json.loads(text))
