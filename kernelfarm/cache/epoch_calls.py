"""The script calls that read and change the epoch table, the invalidation log and toolchains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.calls import new_incarnation
from kernelfarm.cache.connection import Handshake
from kernelfarm.cache.lua_script import ScriptCall
from kernelfarm.cache.redis_keys import RedisKeys

INVALIDATION_LOG_ENTRIES = 10_000
"""Records of the invalidation log, from which disconnected watchers resume; 100 bytes each."""

INVALIDATIONS_COUNTER = "invalidations"

MOST_TAGS = 8192
"""Tags of the epoch table. A table with more discards the older half, see `invalidate.lua`."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch of a farm's epoch table. Entries of another incarnation are stale."""

    incarnation: str
    number: int


def invalidate(
    redis_keys: RedisKeys, tags: Sequence[str], most_tags: int = MOST_TAGS
) -> ScriptCall[Epoch]:
    """Makes every entry stale that depends on one of the tags."""
    parameters = lua.Invalidate(
        epochs=redis_keys.epochs,
        invalidation_log=redis_keys.invalidation_log,
        stats=redis_keys.stats,
        new_incarnation=new_incarnation(),
        log_entries=INVALIDATION_LOG_ENTRIES,
        counter=INVALIDATIONS_COUNTER,
        most_tags=most_tags,
        tags=" ".join(tags),
    )
    return lua.INVALIDATE.call(parameters, _read_epoch)


def current(
    redis_keys: RedisKeys, gateway: str = "", applied: Epoch | None = None
) -> ScriptCall[Epoch]:
    """The current epoch; a gateway also acknowledges the epoch that it has applied."""
    parameters = lua.CurrentEpoch(
        epochs=redis_keys.epochs,
        invalidation_log=redis_keys.invalidation_log,
        gateways=redis_keys.gateways,
        new_incarnation=new_incarnation(),
        gateway=gateway if applied else "",
        applied=f"{applied.incarnation}:{applied.number}" if applied else "",
    )
    return lua.EPOCH.call(parameters, _read_epoch)


def handshake(redis_keys: RedisKeys, may_write: bool) -> Handshake:
    """Checks for each new connection that the epoch table began in this server process.

    In another process its last invalidations may be lost. A client that may write then begins a new
    incarnation.
    """

    def parameters() -> lua.ServerCheck:
        return lua.ServerCheck(
            epochs=redis_keys.epochs,
            invalidation_log=redis_keys.invalidation_log,
            new_incarnation=new_incarnation() if may_write else "",
        )

    return Handshake(lambda: lua.HANDSHAKE.call(parameters(), int))


def advertise(redis_keys: RedisKeys, toolchains: Sequence[str]) -> ScriptCall[bool]:
    """Reports that toolchains are in use."""
    parameters = lua.Advertise(toolchains=redis_keys.toolchains, names=" ".join(toolchains))
    return lua.ADVERTISE.call(parameters, bool)


def _read_epoch(reply: Any) -> Epoch:
    return Epoch(reply[0].decode(), int(reply[1]))
