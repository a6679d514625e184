"""Signed programs for the disk tier, made without a farm."""

from __future__ import annotations

import hashlib
import time

from kernelfarm.client.disk.tier import Confirmation, DiskTier
from kernelfarm.signing import BlobRef, Manifest, Signer, Space, variant_id

INCARNATION = "a" * 32

BIG = 1 << 30

SIGNER = Signer(b"\7" * 32, Space.PROGRAMS)


def contents_of(number: int, size_bytes: int = 2000) -> dict[bytes, bytes]:
    """Four contents, of which one is shared by all programs."""
    seeds = [f"{number}.{part}" for part in range(3)] + ["shared"]
    made = [hashlib.shake_256(seed.encode()).digest(size_bytes) for seed in seeds]
    return {hashlib.sha256(content).digest(): content for content in made}


def manifest_of(number: int, contents: dict[bytes, bytes]) -> Manifest:
    blobs = tuple(BlobRef(sha256, len(content)) for sha256, content in contents.items())
    return SIGNER.sign(
        Manifest(
            namespace="default",
            space=Space.PROGRAMS,
            key=key_of(number),
            variant_id=variant_id(()),
            guard=(),
            tags=("op:aten.add",),
            epoch=1,
            incarnation=INCARNATION,
            content=blobs[0],
            blobs=blobs,
            cost_ms=1.0,
            not_after_s=int(time.time()) + 1000,
        )
    )


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"key %d" % number).digest()


def put(tier: DiskTier, number: int, size_bytes: int = 2000) -> None:
    contents = contents_of(number, size_bytes)
    tier.put(manifest_of(number, contents), Confirmation(1), contents)
