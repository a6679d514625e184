"""Operations on the epoch table and its announcements as values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache.calls import ScriptCall, Value, fresh_incarnation, script_sha1, script_source
from kernelfarm.cache.connection import Handshake
from kernelfarm.cache.redis_keys import RedisKeys

# Announcements to keep, so that a watcher that was away may resume; each has about 100 bytes.
INVALIDATION_LOG_ENTRIES = 10_000

MOST_TAGS = 8192
"""Tags whose last invalidation is known one by one; of more, the older half is forgotten."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """A point in the life of a namespace's epoch table; of another incarnation all is cold."""

    incarnation: str
    number: int


def invalidate(
    redis_keys: RedisKeys, tags: Sequence[str], most_tags: int = MOST_TAGS
) -> ScriptCall[Epoch]:
    """Makes stale what depends on one of the tags."""
    keys = (redis_keys.epochs, redis_keys.invalidation_log, redis_keys.stats)
    fresh = fresh_incarnation()
    args: tuple[Value, ...] = (fresh, INVALIDATION_LOG_ENTRIES, "invalidations", most_tags, *tags)
    return ScriptCall("invalidate", keys, args, _read_epoch)


def current(
    redis_keys: RedisKeys, gateway: str = "", applied: Epoch | None = None
) -> ScriptCall[Epoch]:
    """The present epoch; a gateway also tells how far it has obeyed."""
    keys = (redis_keys.epochs, redis_keys.invalidation_log, redis_keys.gateways)
    gateway_state = f"{applied.incarnation}:{applied.number}" if applied else ""
    return ScriptCall(
        "epoch", keys, (fresh_incarnation(), gateway if applied else "", gateway_state), _read_epoch
    )


def handshake(redis_keys: RedisKeys, may_write: bool) -> Handshake:
    """What connections ask first: whether the epoch table lives in this very server process.

    If not, its last invalidations may be lost, and who may write begins a new life of it.
    """
    keys = (redis_keys.epochs, redis_keys.invalidation_log)
    fresh = fresh_incarnation if may_write else str
    return Handshake(script_source("handshake"), script_sha1("handshake"), keys, fresh)


def advertise(redis_keys: RedisKeys, toolchains: Sequence[str]) -> ScriptCall[bool]:
    """Tells that these toolchains serve."""
    return ScriptCall("advertise", (redis_keys.toolchains,), tuple(toolchains), bool)


def _read_epoch(reply: Any) -> Epoch:
    return Epoch(reply[0].decode(), int(reply[1]))
