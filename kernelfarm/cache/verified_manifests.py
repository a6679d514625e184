"""Keeps verified manifests, so that a signature is not verified again at every look-up."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from kernelfarm.cache.records import StoredVariant
from kernelfarm.cache.signing_policy import SigningPolicy
from kernelfarm.signing import CacheAddress

_BYTES_OF_AN_ENTRY = 1024
# The memory of a manifest, as bytes and decoded, in multiples of its bytes.
_DECODED_FACTOR = 4


class _VerifiedVariant(NamedTuple):
    variant: StoredVariant
    expires_s: float
    size_bytes: int


class VerifiedManifests:
    """The last verified variants of a key space, each until it expires.

    A stored variant is compared with them byte by byte, which is faster than a digest. If they are
    equal, the decoded manifest is used again.
    """

    def __init__(self, signing: SigningPolicy) -> None:
        self._signing = signing
        self._bytes = 0
        self._variants: OrderedDict[tuple[CacheAddress, bytes], _VerifiedVariant] = OrderedDict()

    def verify(self, address: CacheAddress, found: StoredVariant) -> StoredVariant:
        """Returns an equal variant whose manifest is verified for the address.

        Raises:
            IntegrityError: the verification failed, see `kernelfarm.signing.verify`.
            MalformedMessageError: the stored bytes are not a manifest.
        """
        name = (address, found.manifest_bytes)
        known = self._variants.get(name)
        if (
            known is not None
            and known.variant.content == found.content
            and known.variant.stored_facts == found.stored_facts
            and self._signing.clock() < known.expires_s
        ):
            self._variants.move_to_end(name)
            return known.variant
        self._signing.check(address, found)
        self._store(name, found)
        return found

    def _store(self, name: tuple[CacheAddress, bytes], found: StoredVariant) -> None:
        self._evict(name)
        size_bytes = len(found.content) + _DECODED_FACTOR * len(found.manifest_bytes)
        size_bytes += _BYTES_OF_AN_ENTRY
        if size_bytes > self._signing.verified_bytes:
            return
        self._variants[name] = _VerifiedVariant(
            found, self._signing.expires_s(found.manifest), size_bytes
        )
        self._bytes += size_bytes
        while self._bytes > self._signing.verified_bytes:
            self._evict(next(iter(self._variants)))

    def _evict(self, name: tuple[CacheAddress, bytes]) -> None:
        known = self._variants.pop(name, None)
        if known is not None:
            self._bytes -= known.size_bytes
