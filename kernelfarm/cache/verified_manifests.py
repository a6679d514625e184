"""Remembers what was checked: a signature need not be verified again at every look-up."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

from kernelfarm.cache.records import StoredVariant
from kernelfarm.cache.signing_policy import Trust
from kernelfarm.signing import Place

_BYTES_OF_AN_ENTRY = 1024
# What a manifest takes as bytes and, several times that, once it is read.
_READ_MANIFEST = 4


class _Checked(NamedTuple):
    variant: StoredVariant
    good_until_s: float
    size_bytes: int


class Belief:
    """The last checked variants of a key space, each until its time ends.

    What is stored now is compared with them byte by byte, which is quicker than a digest, and what
    was read of an equal manifest is used again.
    """

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._bytes = 0
        self._checked: OrderedDict[tuple[Place, bytes], _Checked] = OrderedDict()

    def checked(self, place: Place, found: StoredVariant) -> StoredVariant:
        """An equal variant that may be believed at this place.

        Raises:
            IntegrityError: it may not, see `kernelfarm.signing.verify`.
            MalformedMessageError: it is no manifest at all.
        """
        name = (place, found.manifest_bytes)
        known = self._checked.get(name)
        if (
            known is not None
            and known.variant.content == found.content
            and known.variant.facts == found.facts
            and self._trust.clock() < known.good_until_s
        ):
            self._checked.move_to_end(name)
            return known.variant
        self._trust.check(place, found)
        self._remember(name, found)
        return found

    def _remember(self, name: tuple[Place, bytes], found: StoredVariant) -> None:
        self._forget(name)
        size_bytes = len(found.content) + _READ_MANIFEST * len(found.manifest_bytes)
        size_bytes += _BYTES_OF_AN_ENTRY
        if size_bytes > self._trust.verified_bytes:
            return
        self._checked[name] = _Checked(found, self._trust.good_until_s(found.manifest), size_bytes)
        self._bytes += size_bytes
        while self._bytes > self._trust.verified_bytes:
            self._forget(next(iter(self._checked)))

    def _forget(self, name: tuple[Place, bytes]) -> None:
        known = self._checked.pop(name, None)
        if known is not None:
            self._bytes -= known.size_bytes
