"""Ed25519 keys: who signs, and whom one believes.

Keys are rotated by overlap: everybody learns the new public key, then publishers change to the new
private key, then the old public key is taken away, or ends by its `not_after_s`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kernelfarm.errors import CallerError
from kernelfarm.signing.encoding import canonical_bytes
from kernelfarm.signing.manifest import Manifest, Space

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_BYTES = 32
_KEY_ID_CHARS = 16


@dataclass(frozen=True, slots=True)
class TrustedKey:
    """A public key (32 bytes) that may sign one space's manifests until `not_after_s`, if set."""

    public_key: bytes
    space: Space
    not_after_s: int | None = None

    @property
    def key_id(self) -> str:
        """Its name in manifests."""
        return hashlib.sha256(self.public_key).hexdigest()[:_KEY_ID_CHARS]


class Keyring:
    """The public keys that one believes; several at a time while keys are rotated."""

    def __init__(self, keys: Iterable[TrustedKey]) -> None:
        self._keys = {key.key_id: key for key in keys}

    @property
    def keys(self) -> tuple[TrustedKey, ...]:
        """All keys, sorted by name."""
        return tuple(self._keys[name] for name in sorted(self._keys))

    def find(self, key_id: str) -> TrustedKey | None:
        """The key of a name."""
        return self._keys.get(key_id)


class Signer:
    """A private key that signs one space's manifests."""

    def __init__(self, private_key: bytes, space: Space) -> None:
        if len(private_key) != KEY_BYTES:
            raise CallerError(f"a private key of {len(private_key)} bytes; expected {KEY_BYTES}")
        self.private_key = private_key
        self._key = _loaded(private_key)
        self.trusted = TrustedKey(self._key.public_key().public_bytes_raw(), space)

    def __repr__(self) -> str:
        return f"Signer({self.trusted.key_id}, {self.trusted.space.name})"

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest under this key's name, signed."""
        named = replace(manifest, key_id=self.trusted.key_id, signature=b"")
        return replace(named, signature=self._key.sign(canonical_bytes(named)))


def new_signer(space: Space) -> Signer:
    """A signer with a fresh key."""
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 -- see `_loaded`

    return Signer(ed25519.Ed25519PrivateKey.generate().private_bytes_raw(), space)


def _loaded(private_key: bytes) -> Ed25519PrivateKey:
    # Imported when first used: a client that checks nothing does not pay for it.
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    return ed25519.Ed25519PrivateKey.from_private_bytes(private_key)
