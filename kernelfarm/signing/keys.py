"""Ed25519 keys: signers and trusted keys.

Keys are rotated with an overlap: all readers get the new public key, then publishers change to the
new private key, then the old public key is removed, or expires by its `not_after_s`.
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
    """A public key (32 bytes) for the manifests of one key space.

    It is trusted until `not_after_s`, in seconds since 1970, or without limit.
    """

    public_key: bytes
    space: Space
    not_after_s: int | None = None

    @property
    def key_id(self) -> str:
        """Its name in manifests."""
        return hashlib.sha256(self.public_key).hexdigest()[:_KEY_ID_CHARS]


class Keyring:
    """The trusted public keys; a key space has several while keys are rotated."""

    def __init__(self, keys: Iterable[TrustedKey]) -> None:
        self._keys = {key.key_id: key for key in keys}

    @property
    def keys(self) -> tuple[TrustedKey, ...]:
        """All keys, sorted by key id."""
        return tuple(self._keys[key_id] for key_id in sorted(self._keys))

    def find(self, key_id: str) -> TrustedKey | None:
        """The key with this id, or None."""
        return self._keys.get(key_id)


class Signer:
    """A private key that signs the manifests of one key space."""

    def __init__(self, private_key: bytes, space: Space) -> None:
        if len(private_key) != KEY_BYTES:
            raise CallerError(f"a private key of {len(private_key)} bytes; expected {KEY_BYTES}")
        self.private_key = private_key
        self._key = _loaded(private_key)
        self.trusted = TrustedKey(self._key.public_key().public_bytes_raw(), space)

    def __repr__(self) -> str:
        return f"Signer({self.trusted.key_id}, {self.trusted.space.name})"

    def sign(self, manifest: Manifest) -> Manifest:
        """The manifest with this key's id and signature."""
        named = replace(manifest, key_id=self.trusted.key_id, signature=b"")
        return replace(named, signature=self._key.sign(canonical_bytes(named)))

    def sign_bytes(self, content: bytes) -> bytes:
        """This key's signature of bytes, which begin with a domain of their own."""
        return self._key.sign(content)


def new_signer(space: Space) -> Signer:
    """A signer with a new key."""
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415 -- see `_loaded`

    return Signer(ed25519.Ed25519PrivateKey.generate().private_bytes_raw(), space)


def _loaded(private_key: bytes) -> Ed25519PrivateKey:
    # Imported when first used, because it is slow and not every client needs it.
    from cryptography.hazmat.primitives.asymmetric import ed25519  # noqa: PLC0415

    return ed25519.Ed25519PrivateKey.from_private_bytes(private_key)
