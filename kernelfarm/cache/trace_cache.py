"""Stores traces: entries of one variant, which clients sign and the farm cannot make again.

They are found, counted, salted, expired and swept like programs (`KernelCache.for_space`). Only
their publication differs: it takes no lease, because the farm makes nothing, and a live trace is
not replaced.
"""

from __future__ import annotations

import enum
from typing import Any

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.calls import new_incarnation
from kernelfarm.cache.limits import MANIFEST_TTL_S, TOOLCHAIN_WINDOW_MS
from kernelfarm.cache.lua_script import ScriptCall
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Manifest, Space
from kernelfarm.wire.manifest import manifest_to_bytes


class PutTraceStatus(enum.Enum):
    """How the publication of a trace ended.

    OK: the trace is stored. PRESENT: a live trace is stored, and stays. STALE_INC: the epoch table
    was lost since the trace was made. STALE_EPOCH: a dependency was invalidated since then.
    """

    OK = "OK"
    PRESENT = "PRESENT"
    STALE_INC = "STALE_INC"
    STALE_EPOCH = "STALE_EPOCH"


async def put_trace(
    client: Any, redis_keys: RedisKeys, manifest: Manifest, content: bytes
) -> PutTraceStatus:
    """Stores a verified trace under its manifest's key.

    Raises:
        UnavailableError: Redis does not serve.
    """
    return await AsyncScripts(client).run(_call(redis_keys, manifest, content))


def _call(redis_keys: RedisKeys, manifest: Manifest, content: bytes) -> ScriptCall[PutTraceStatus]:
    parameters = lua.PutTrace(
        entry=redis_keys.entry(Space.TRACES, manifest.key),
        stats=redis_keys.stats,
        epochs=redis_keys.epochs,
        invalidation_log=redis_keys.invalidation_log,
        toolchains=redis_keys.toolchains,
        quota=redis_keys.quota_usage,
        entry_ttl_s=MANIFEST_TTL_S,
        counter_prefix=f"{Space.TRACES.value}.",
        new_incarnation=new_incarnation(),
        toolchain_window_ms=TOOLCHAIN_WINDOW_MS,
        variant_id=manifest.variant_id.hex(),
        incarnation=manifest.incarnation,
        epoch=manifest.epoch,
        not_after_s=manifest.not_after_s,
        tags=" ".join(manifest.tags),
        manifest=manifest_to_bytes(manifest),
        content=content,
    )
    return lua.PUT_TRACE.call(parameters, lambda reply: PutTraceStatus(reply.decode()))
