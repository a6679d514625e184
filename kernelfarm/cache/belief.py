"""Remembers what was checked: a signature need not be verified again at every look-up."""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from kernelfarm.cache.records import StoredVariant
from kernelfarm.cache.statements import Trust
from kernelfarm.signing import Place

_MOST = 4096


class Belief:
    """The last checked variants of a key space, byte by byte, each until its time ends."""

    def __init__(self, trust: Trust) -> None:
        self._trust = trust
        self._good_until_s: OrderedDict[bytes, float] = OrderedDict()

    def check(self, place: Place, found: StoredVariant) -> None:
        """Passes a stored variant that may be believed at this place.

        Raises:
            IntegrityError: it may not, see `kernelfarm.signing.verify`.
            MalformedMessageError: it is no manifest at all.
        """
        memo = _digest(place, found)
        if self._trust.clock() < self._good_until_s.get(memo, 0.0):
            self._good_until_s.move_to_end(memo)
            return
        self._trust.check(place, found)
        self._good_until_s[memo] = self._trust.good_until_s(found.manifest)
        while len(self._good_until_s) > _MOST:
            self._good_until_s.popitem(last=False)


def _digest(place: Place, found: StoredVariant) -> bytes:
    hasher = hashlib.sha256()
    for part in (
        place.namespace.encode(),
        place.space.value.encode(),
        place.key,
        found.manifest_bytes,
        found.content,
    ):
        hasher.update(b"%d:" % len(part))
        hasher.update(part)
    return hasher.digest()
