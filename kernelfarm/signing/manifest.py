"""The statement that a publisher makes about one variant of one entry."""

from __future__ import annotations

import enum
import hashlib
from dataclasses import dataclass

from kernelfarm.ir.guards import Guard


class Space(enum.Enum):
    """A key space: programs, kernels and traces never share keys, and each has its publishers.

    Frontends sign programs, workers kernels, and clients that are trusted with it traces.
    """

    PROGRAMS = "p"
    KERNELS = "k"
    TRACES = "t"


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Content by digest: SHA-256 (32 bytes) and length."""

    sha256: bytes
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is published and signed about one variant.

    `epoch` and `incarnation` tell when its compilation began, in the counting of its namespace's
    epoch table; `tags` tell what it depends on. `not_after_s` is seconds since 1970. An empty
    `key_id` means that the farm states that it signs nothing.
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
    """The reference to a content."""
    return BlobRef(hashlib.sha256(content).digest(), len(content))
