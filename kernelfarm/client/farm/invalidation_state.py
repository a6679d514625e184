"""What a client knows of a farm's invalidations, and what follows for a program that it holds.

A client hears of every invalidation after the epoch at which it began to listen (`base`). What it
knows of the time before, it knows from the farm: an answer vouches for its program
(`Confirmation`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache

from pydantic import TypeAdapter, ValidationError

from kernelfarm.client.disk.tier import Confirmation
from kernelfarm.client.farm.cache_client import WatchEvent
from kernelfarm.errors import MalformedMessageError
from kernelfarm.signing import Manifest

SETTLING_S = 5.0
"""A gateway may serve from memory for 3 s after an invalidation that another one tells of: an
answer vouches only for epochs that were known for so long when it was asked for."""

_MAX_TAGS = 4096
_MAX_FORMER = 8


@dataclass(frozen=True, slots=True)
class InvalidationState:
    """Every invalidation after `base` up to `epoch`, by tag; of one life of the epoch table.

    `former` are lives that ended. `settled` is the latest epoch that is known for `SETTLING_S`
    seconds, as of `seen_s` (seconds since 1970), when `epoch` was heard of.
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
        """Where to go on listening."""
        return f"{self.incarnation}:{self.epoch}"

    def settled_at(self, now_s: float) -> int:
        """The latest epoch that every gateway has obeyed; -1 if none is known to be so."""
        return self.epoch if now_s - self.seen_s >= SETTLING_S else self.settled

    def is_stale(self, manifest: Manifest, tags: Iterable[str]) -> bool:
        """True if we heard of an invalidation that hits a program, or of its caller's own tags."""
        if manifest.incarnation != self.incarnation:
            return manifest.incarnation in self.former
        return any(self.bumped.get(tag, -1) > manifest.epoch for tag in (*manifest.tags, *tags))

    def is_covered(
        self, manifest: Manifest, confirmation: Confirmation, tags: Iterable[str]
    ) -> bool:
        """True if we would have heard of any invalidation since the farm vouched for a program."""
        if manifest.incarnation != self.incarnation:
            return False
        if manifest.epoch >= self.base:
            return True
        named = confirmation.tags.union(manifest.tags)
        return confirmation.epoch >= self.base and named.issuperset(tags)

    def after(self, event: WatchEvent, now_s: float) -> InvalidationState:
        """What is known after an event.

        One without tags tells that nothing of ours was invalidated up to its epoch.
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
        # What is older must be vouched for again.
        return replace(invalidations, base=event.epoch, bumped={})

    def to_json(self) -> str:
        """Its stored form."""
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> InvalidationState:
        """From its stored form.

        Raises:
            MalformedMessageError: the text is none.
        """
        try:
            return _stored_form().validate_json(text, strict=True)
        except ValidationError as error:
            raise MalformedMessageError(f"no epochs: {error}") from error

    def _restarted(self, event: WatchEvent, now_s: float) -> InvalidationState:
        is_new = event.incarnation != self.incarnation
        former = (self.incarnation, *self.former)[:_MAX_FORMER] if is_new else self.former
        former = tuple(life for life in former if life != event.incarnation)
        return replace(initial_state(event, now_s), former=former)


@cache
def _stored_form() -> TypeAdapter[InvalidationState]:
    return TypeAdapter(InvalidationState)


def initial_state(event: WatchEvent, now_s: float) -> InvalidationState:
    """What is known after the first event of all."""
    return InvalidationState(event.incarnation, event.epoch, event.epoch, now_s)
