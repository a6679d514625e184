"""A client's knowledge of a farm's invalidations, and whether a program is stale by it.

A client receives every invalidation after the epoch at which its watch began (`base`). For the time
before, it relies on the farm: a response confirms that its program was valid (`Confirmation`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING

from kernelfarm.client.disk.tier import Confirmation
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import Manifest

if TYPE_CHECKING:
    from kernelfarm.client.farm.cache_client import WatchEvent

SETTLING_S = 5.0
"""A gateway may serve from memory for 3 s after another gateway has announced an invalidation. So a
response confirms only epochs that this client had known for this long when it sent the request."""

_MAX_TAGS = 4096
_MAX_FORMER = 8


@dataclass(frozen=True, slots=True)
class InvalidationState:
    """Every invalidation after `base` up to `epoch`, by tag, in one incarnation.

    `bumped` maps each tag to the epoch of its last invalidation. `former` are ended incarnations.
    `seen_s` (seconds since 1970) is the time at which the client received `epoch`; `settled` is the
    latest epoch that it had known for `SETTLING_S` seconds at that time.
    """

    incarnation: str
    base: int
    epoch: int
    seen_s: float
    settled: int = -1
    bumped: Mapping[str, int] = field(default_factory=dict)
    former: tuple[str, ...] = ()

    @property
    def resume_token(self) -> str:
        """The token with which a watch continues after this state."""
        return f"{self.incarnation}:{self.epoch}"

    def settled_at(self, now_s: float) -> int:
        """The latest epoch that every gateway has applied; -1 if none is known."""
        return self.epoch if now_s - self.seen_s >= SETTLING_S else self.settled

    def is_stale(self, manifest: Manifest, tags: Iterable[str]) -> bool:
        """True if an invalidation of one of the program's tags, or of `tags`, made it stale."""
        if manifest.incarnation != self.incarnation:
            return manifest.incarnation in self.former
        return any(self.bumped.get(tag, -1) > manifest.epoch for tag in (*manifest.tags, *tags))

    def is_covered(
        self, manifest: Manifest, confirmation: Confirmation, tags: Iterable[str]
    ) -> bool:
        """True if this state has every invalidation since the farm confirmed the program."""
        if manifest.incarnation != self.incarnation:
            return False
        if manifest.epoch >= self.base:
            return True
        named = confirmation.tags.union(manifest.tags)
        return confirmation.epoch >= self.base and named.issuperset(tags)

    def after(self, event: WatchEvent, now_s: float) -> InvalidationState:
        """The state after an event.

        An event without tags confirms that there was no other invalidation up to its epoch.
        """
        if event.incarnation != self.incarnation or event.is_flush:
            return self._restarted(event, now_s)
        if event.epoch <= self.epoch:
            return self
        bumped = {**self.bumped, **dict.fromkeys(event.tags, event.epoch)}
        invalidations = replace(
            self, epoch=event.epoch, seen_s=now_s, settled=self.settled_at(now_s), bumped=bumped
        )
        is_gap = bool(event.tags) and event.epoch > self.epoch + 1
        if not is_gap and len(bumped) <= _MAX_TAGS:
            return invalidations
        # Older programs must be confirmed again.
        return replace(invalidations, base=event.epoch, bumped={})

    def to_json(self) -> str:
        """The state as JSON text."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> InvalidationState:
        """The state of a JSON text.

        Raises:
            MalformedMessageError: the text is not a state.
        """
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise MalformedMessageError(f"not an invalidation state: {error}") from error
        if not _is_state(found):
            raise MalformedMessageError("not an invalidation state: other fields or types")
        return InvalidationState(**{**found, "former": tuple(found["former"])})

    def _restarted(self, event: WatchEvent, now_s: float) -> InvalidationState:
        is_new = event.incarnation != self.incarnation
        former = (self.incarnation, *self.former)[:_MAX_FORMER] if is_new else self.former
        former = tuple(ended for ended in former if ended != event.incarnation)
        return replace(initial_state(event, now_s), former=former)


def _is_state(found: object) -> bool:
    """True for the fields of a state with values of their types."""
    if not isinstance(found, dict) or found.keys() != {f.name for f in fields(InvalidationState)}:
        return False
    bumped, former = found["bumped"], found["former"]
    return (
        isinstance(found["incarnation"], str)
        and all(type(found[name]) is int for name in ("base", "epoch", "settled"))
        and type(found["seen_s"]) in (int, float)
        and isinstance(bumped, dict)
        and all(type(epoch) is int for epoch in bumped.values())
        and isinstance(former, list)
        and all(isinstance(ended, str) for ended in former)
    )


def initial_state(event: WatchEvent, now_s: float) -> InvalidationState:
    """The state after the first event that any process received."""
    return InvalidationState(event.incarnation, event.epoch, event.epoch, now_s)


@dataclass(frozen=True, slots=True)
class KnownAtRequest:
    """The invalidations that a client knew when it sent a request.

    Units: `requested_s` is in seconds since 1970.
    """

    invalidations: InvalidationState | None
    requested_s: float

    def confirmation(self, manifest: Manifest, tags: tuple[str, ...]) -> Confirmation:
        """What the farm's response to the request confirms about its program.

        Epochs of another incarnation say nothing about the one that answered.
        """
        known, settled = self.invalidations, -1
        if known is not None and known.incarnation == manifest.incarnation:
            settled = known.settled_at(self.requested_s)
        return Confirmation(max(settled, manifest.epoch), frozenset(tags))
