"""Verifies manifests, contents and blobs from a cache before they are used."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from kernelfarm.errors import (
    ExpiredManifestError,
    ForgedManifestError,
    ManifestMismatchError,
    PoisonedBlobError,
    UntrustedKeyError,
)
from kernelfarm.signing.encoding import canonical_bytes, variant_id
from kernelfarm.signing.keys import Keyring
from kernelfarm.signing.manifest import BlobRef, Manifest, Space


class CacheAddress(NamedTuple):
    """The namespace, key space and key under which a manifest was found; it must state the same."""

    namespace: str
    space: Space
    key: bytes


def check_manifest(
    manifest: Manifest, address: CacheAddress, keyring: Keyring | None, now_s: float
) -> None:
    """Verifies that a manifest is signed by a trusted key, is for the address, and has not expired.

    Without a keyring, for farms that sign nothing, only address and expiry are verified.

    Raises:
        UntrustedKeyError: it is unsigned, or signed by a key that is not, or no longer, trusted.
        ForgedManifestError: the signature is not that key's signature of this manifest.
        ManifestMismatchError: it is for another namespace, key space, key or guard.
        ExpiredManifestError: it has expired.
    """
    where = f"manifest of {address.space.name.lower()} {address.key.hex()[:16]}"
    if keyring is not None:
        _check_signature(manifest, keyring, now_s, where)
    stated = CacheAddress(manifest.namespace, manifest.space, manifest.key)
    if stated != address:
        raise ManifestMismatchError(
            f"{where} in {address.namespace!r} is for {stated.space.name.lower()}"
            f" {stated.key.hex()[:16]} in {stated.namespace!r}"
        )
    if manifest.variant_id != variant_id(manifest.guard):
        raise ManifestMismatchError(f"{where} has a variant id that is not that of its guard")
    if manifest.not_after_s < now_s:
        raise ExpiredManifestError(
            f"{where} expired at {manifest.not_after_s}, {now_s - manifest.not_after_s:.0f} s ago;"
            " ask the farm again"
        )


def check_content(manifest: Manifest, content: bytes) -> None:
    """Verifies that a content is the one that a manifest names.

    Raises:
        PoisonedBlobError: it has another digest or length.
    """
    check_blob(manifest.content, content)


def check_blob(named: BlobRef, content: bytes) -> None:
    """Verifies that a content is the one that a reference names.

    Raises:
        PoisonedBlobError: it has another digest or length.
    """
    seen = hashlib.sha256(content).digest()
    if seen != named.sha256 or len(content) != named.size_bytes:
        raise PoisonedBlobError(
            f"a blob of {len(content)} bytes with digest {seen.hex()}; expected"
            f" {named.size_bytes} bytes with {named.sha256.hex()}"
        )


def _check_signature(manifest: Manifest, keyring: Keyring, now_s: float, where: str) -> None:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 -- see keys._loaded
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (  # noqa: PLC0415
        Ed25519PublicKey,
    )

    trusted = keyring.find(manifest.key_id) if manifest.key_id else None
    if trusted is None or trusted.space is not manifest.space:
        seen = f"signed by key {manifest.key_id}" if manifest.key_id else "not signed"
        raise UntrustedKeyError(
            f"{where} is {seen}; expected a trusted key for {manifest.space.name.lower()}"
        )
    if trusted.not_after_s is not None and trusted.not_after_s < now_s:
        raise UntrustedKeyError(f"{where} is signed by key {trusted.key_id}, which has expired")
    try:
        Ed25519PublicKey.from_public_bytes(trusted.public_key).verify(
            manifest.signature, canonical_bytes(manifest)
        )
    except InvalidSignature as error:
        raise ForgedManifestError(
            f"{where} has a signature that key {trusted.key_id} did not make for it"
        ) from error
