"""The values that the cache takes and returns."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import NamedTuple

from kernelfarm.errors import ErrorFacts
from kernelfarm.ir.guards import Guard
from kernelfarm.signing import BlobRef, Manifest, Space
from kernelfarm.wire.manifest import manifest_from_bytes

__all__ = [
    "AdoptedJob",
    "KernelLookup",
    "Lease",
    "LookupResult",
    "PublishStatus",
    "Space",
    "StoredVariant",
    "UnsignedVariant",
    "WorkerReport",
    "facts_from_json",
    "facts_to_json",
]


TAGS_DISCARDED = "discarded"
"""The detail of an epoch miss if the entry is older than the discarded tags of the epoch table."""

STALE_SERVES_COUNTER = "stale_serves"
"""The counter of programs that were served although they were stale; it must stay 0."""


class PublishStatus(enum.Enum):
    """How a publication ended.

    OK: the result is stored. FENCED: the lease lapsed or has another holder; drop the result.
    MISSING_BLOB: a blob that a variant names is not stored (it was evicted); store it again, the
    lease is still held. STALE_INC: the epoch table was lost since the lease was acquired;
    STALE_EPOCH: a dependency of the result was invalidated since then; make the result again.
    NONDET: a different result of the same toolchain is stored and stays; drop ours.
    """

    OK = "OK"
    FENCED = "FENCED"
    MISSING_BLOB = "MISSING_BLOB"
    STALE_INC = "STALE_INC"
    STALE_EPOCH = "STALE_EPOCH"
    NONDET = "NONDET"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one key's result, until its time to live ends without a renewal.

    `fence` is larger for every later lease of the farm, so that a late publication is recognized.
    `attempts` counts earlier holders that vanished without a result. `incarnation` and `epoch` are
    those of the epoch table when the lease was acquired: a result that depends on a later
    invalidation cannot be published with this lease.
    """

    key: bytes
    owner: str
    fence: int
    ttl_s: float
    attempts: int
    incarnation: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class AdoptedJob:
    """A job and its lease, which a worker has taken over; the job is empty if it was evicted."""

    job: bytes
    lease: Lease


@dataclass(frozen=True, slots=True)
class UnsignedVariant:
    """One variant to publish: opaque content, the blobs that it names, and its guard.

    `tags` are its dependencies, see `kernelfarm.signing.tags`; `cost_ms` is what it cost to make.
    """

    content: bytes
    blobs: tuple[BlobRef, ...] = ()
    guard: Guard = ()
    tags: tuple[str, ...] = ()
    cost_ms: float = 0.0


@dataclass(frozen=True)
class StoredVariant:
    """One variant as it is stored.

    `stored_facts` are the facts beside the manifest, by which scripts judge whether the variant is
    live; None if the variant was not read from Redis.
    """

    manifest_bytes: bytes
    content: bytes
    stored_facts: tuple[bytes, ...] | None = field(default=None, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        """The publisher's statement.

        Raises:
            MalformedMessageError: the stored bytes are not a manifest.
        """
        return manifest_from_bytes(self.manifest_bytes)


class LookupResult(NamedTuple):
    """The live variants of a key, most specific first, or the reason of the miss.

    `reason` is `hit`, `absent`, `incarnation`, `epoch`, `expired`, `toolchain`, `missing_blob` or
    `untrusted`; `detail` is the tag, toolchain, digest or fault that caused the miss. `stamp`
    identifies this version of the entry: a caller acquires a lease only if it saw the current
    version. `incarnation` and `epoch` are those of the epoch table.
    """

    variants: tuple[StoredVariant, ...]
    reason: str
    detail: str
    stamp: str
    incarnation: str
    epoch: int

    @property
    def is_hit(self) -> bool:
        """True if there is a live variant."""
        return bool(self.variants)


class KernelLookup(NamedTuple):
    """What is stored of a kernel: a look-up's result, its failure, and whether it compiles long.

    It is slow if a worker has recently found that its compilation takes long.
    """

    lookup: LookupResult
    failure: ErrorFacts | None
    is_slow: bool


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's report: its queue (the vendor) and its toolchain, empty if that is missing."""

    worker: str
    queue: str
    toolchain: str
    makes_runnable_binaries: bool

    def to_json(self) -> str:
        """Its stored form."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: bytes) -> WorkerReport:
        """The report of a stored form."""
        return WorkerReport(**json.loads(text))


def facts_to_json(facts: ErrorFacts) -> str:
    """The stored form of a failure."""
    return json.dumps(asdict(facts), ensure_ascii=False)


def facts_from_json(text: bytes) -> ErrorFacts:
    """The failure of a stored form."""
    return ErrorFacts(**json.loads(text))
