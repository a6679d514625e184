"""Operations on the epoch table and its announcements as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache.calls import Call, Value, fresh_incarnation, script_sha1, script_source
from kernelfarm.cache.connection import Greeting
from kernelfarm.cache.redis_keys import Names

# Announcements to keep, so that a watcher that was away may resume; each has about 100 bytes.
ANNOUNCEMENTS_KEPT = 10_000

MOST_TAGS = 8192
"""Tags whose last invalidation is known one by one; of more, the older half is forgotten."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A point in the life of a namespace's epoch table; of another incarnation all is cold."""

    incarnation: str
    number: int


def bump(names: Names, tags: Sequence[str], most_tags: int = MOST_TAGS) -> Call[Epoch]:
    """Makes stale what depends on one of the tags."""
    keys = (names.epochs, names.announcements, names.stats)
    fresh = fresh_incarnation()
    args: tuple[Value, ...] = (fresh, ANNOUNCEMENTS_KEPT, "invalidations", most_tags, *tags)
    return Call("bump", keys, args, _read_epoch)


def current(names: Names, gateway: str = "", obeyed: Epoch | None = None) -> Call[Epoch]:
    """The present epoch; a gateway also tells how far it has obeyed."""
    keys = (names.epochs, names.announcements, names.gateways)
    told = f"{obeyed.incarnation}:{obeyed.number}" if obeyed else ""
    return Call("epoch", keys, (fresh_incarnation(), gateway if obeyed else "", told), _read_epoch)


def greeting(names: Names, may_write: bool) -> Greeting:
    """What connections ask first: whether the epoch table lives in this very server process.

    If not, its last invalidations may be lost, and who may write begins a new life of it.
    """
    keys = (names.epochs, names.announcements)
    fresh = fresh_incarnation if may_write else str
    return Greeting(script_source("greet"), script_sha1("greet"), keys, fresh)


def advertise(names: Names, toolchains: Sequence[str]) -> Call[bool]:
    """Tells that these toolchains serve."""
    return Call("advertise", (names.toolchains,), tuple(toolchains), bool)


def _read_epoch(reply: Any) -> Epoch:
    return Epoch(reply[0].decode(), int(reply[1]))
