"""The manifest: a publisher's statement about one variant of one entry."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from kernelfarm.ir.guards import Guard


class Space(enum.Enum):
    """A key space: programs, kernels or traces. They share no keys, and have different publishers.

    Frontends sign programs, workers sign kernels, and clients with a trace key sign traces.
    """

    PROGRAMS = "p"
    KERNELS = "k"
    TRACES = "t"


@dataclass(frozen=True, slots=True)
class BlobRef:
    """A reference to a content: its SHA-256 (32 bytes) and length."""

    sha256: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a publisher states and signs about one variant.

    `key` is the unsalted program or kernel key, or trace digest. `variant_id` identifies the guard.
    `epoch` and `incarnation` are those of the farm's epoch table when the compilation began. `tags`
    are the variant's dependencies. `content` and `blobs` refer to what the variant consists of.
    `cost_ms` is the time that it took to make. `not_after_s` is in seconds since 1970. The `key_id`
    is empty in a farm that signs nothing.
    """

    namespace: str
    space: Space
    key: bytes
    variant_id: bytes
    guard: Guard
    tags: tuple[str, ...]
    epoch: int
    incarnation: str
    content: BlobRef
    blobs: tuple[BlobRef, ...]
    cost_ms: float
    not_after_s: int
    key_id: str = ""
    signature: bytes = b""


def blob_ref(content: bytes) -> BlobRef:
    """A reference to a content."""
    return BlobRef(hashlib.sha256(content).digest(), len(content))
