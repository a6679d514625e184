"""What goes into the cache and comes out of it."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass, field
from functools import cached_property

from kernelfarm.errors import ErrorFacts
from kernelfarm.ir.guards import Guard
from kernelfarm.signing import BlobRef, Manifest, Space
from kernelfarm.wire.manifest import manifest_from_bytes

__all__ = [
    "AdoptedJob",
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
"""The detail of an epoch miss of what is older than all tags whose invalidation is still known."""

STALE_SERVES_COUNTER = "stale_serves"
"""The counter of serves against the rules; it must stay 0."""


class PublishStatus(enum.Enum):
    """How a publication ended.

    FENCED: the lease lapsed or somebody else has it; drop the result. MISSING_BLOB: a blob that a
    variant names is not stored (evicted since); store it again. STALE_INC, STALE_EPOCH: the epoch
    table was lost, or something that the result depends on was invalidated, since the lease was
    given; drop the result and make it anew. NONDET: another result of the same toolchain is there;
    drop ours, theirs is served. All but MISSING_BLOB end the lease.
    """

    OK = "OK"
    FENCED = "FENCED"
    MISSING_BLOB = "MISSING_BLOB"
    STALE_INC = "STALE_INC"
    STALE_EPOCH = "STALE_EPOCH"
    NONDET = "NONDET"


@dataclass(frozen=True, slots=True)
class Lease:
    """The right to make one key's result, until its time to live passes without a renewal.

    `fence` grows with every lease given, so that a late publication can be told from a current one.
    `attempts` counts earlier holders that vanished without a result. `incarnation` and `epoch` tell
    when it was given: what is invalidated later must not be published under it.
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
    """A job that a worker took over, and its lease; the job is empty if its input was evicted."""

    job: bytes
    lease: Lease


@dataclass(frozen=True, slots=True)
class UnsignedVariant:
    """One variant to publish: opaque bytes, the blobs that they name, and when it may be used.

    `tags` are what it depends on, see `kernelfarm.signing.tags`.
    """

    content: bytes
    blobs: tuple[BlobRef, ...] = ()
    guard: Guard = ()
    tags: tuple[str, ...] = ()
    cost_ms: float = 0.0


@dataclass(frozen=True)
class StoredVariant:
    """One variant as it is stored.

    `facts` are those beside the manifest, by which the store judges whether it is live; None where
    it does not come from there.
    """

    manifest_bytes: bytes
    content: bytes
    stored_facts: tuple[bytes, ...] | None = field(default=None, compare=False)

    @cached_property
    def manifest(self) -> Manifest:
        """What its publisher states.

        Raises:
            MalformedMessageError: the stored bytes are no manifest.
        """
        return manifest_from_bytes(self.manifest_bytes)


@dataclass(frozen=True, slots=True)
class LookupResult:
    """What a look-up met: the live variants, most specific first, or why there are none.

    `reason` is `hit`, `absent`, `incarnation`, `epoch`, `expired`, `toolchain`, `hole` or
    `disbelieved`; `detail` is the tag, toolchain, digest or fault behind it. `stamp` names this
    version of the entry: a lease is given only to who saw the present one. `incarnation` and
    `epoch` are those of the epoch table.
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
    return json.dumps(asdict(facts), ensure_ascii=False)


def facts_from_json(text: bytes) -> ErrorFacts:
    """A failure from its stored form."""
    return ErrorFacts(**json.loads(text))
