"""Checks of what comes out of a cache, before anything of it is believed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class CacheAddress:
    """Where a manifest was found: what it says of itself must agree."""

    namespace: str
    space: Space
    key: bytes


def check_manifest(
    manifest: Manifest, address: CacheAddress, keyring: Keyring | None, now_s: float
) -> None:
    """Passes a manifest that somebody whom we believe made for this place, and that is not too old.

    A keyring of None is for farms that state that they sign nothing: the place and the age are
    checked all the same.

    Raises:
        UntrustedKeyError: unsigned, or signed by a key that we do not believe (any more).
        ForgedManifestError: the signature is not that key's over this statement.
        ManifestMismatchError: it was made for another namespace, space, key or guard.
        ExpiredManifestError: it is older than its publisher allows.
    """
    where = f"manifest of {address.space.name.lower()} {address.key.hex()[:16]}"
    if keyring is not None:
        _check_signature(manifest, keyring, now_s, where)
    stated = CacheAddress(manifest.namespace, manifest.space, manifest.key)
    if stated != address:
        raise ManifestMismatchError(
            f"{where} in {address.namespace!r} was made for {stated.space.name.lower()}"
            f" {stated.key.hex()[:16]} in {stated.namespace!r}"
        )
    if manifest.variant_id != variant_id(manifest.guard):
        raise ManifestMismatchError(f"{where} bears the name of another guard than its own")
    if manifest.not_after_s < now_s:
        raise ExpiredManifestError(
            f"{where} was good until {manifest.not_after_s}, {now_s - manifest.not_after_s:.0f} s"
            " ago; ask the farm again"
        )


def check_content(manifest: Manifest, content: bytes) -> None:
    """Passes the content that a manifest names.

    Raises:
        PoisonedBlobError: it has another digest or length.
    """
    check_blob(manifest.content, content)


def check_blob(named: BlobRef, content: bytes) -> None:
    """Passes a content that is what its reference names.

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
        who = manifest.key_id or "nobody"
        raise UntrustedKeyError(
            f"{where} is signed by {who}; nobody of that name may sign"
            f" {manifest.space.name.lower()}"
        )
    if trusted.not_after_s is not None and trusted.not_after_s < now_s:
        raise UntrustedKeyError(f"{where} is signed by {trusted.key_id}, which ended")
    try:
        Ed25519PublicKey.from_public_bytes(trusted.public_key).verify(
            manifest.signature, canonical_bytes(manifest)
        )
    except InvalidSignature as error:
        raise ForgedManifestError(f"{where}: not what {trusted.key_id} signed") from error
