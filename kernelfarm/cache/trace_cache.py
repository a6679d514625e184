"""Traces in the store: entries of one variant, which clients sign and the farm cannot make anew.

They are found, counted, salted, aged and swept as programs are (`KernelCache.for_space`). Only
their publication differs: no lease is taken, since the farm makes nothing, and the first live one
stays.
"""

from __future__ import annotations

import enum
import uuid
from typing import Any

from kernelfarm.cache.calls import MANIFEST_TTL_S, TOOLCHAIN_WINDOW_S, ScriptCall
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.cache.scripts import AsyncScripts
from kernelfarm.signing import Manifest, Space
from kernelfarm.wire.manifest import manifest_to_bytes


class PutTraceStatus(enum.Enum):
    """What became of a trace.

    PRESENT: a live one is there, which stays. STALE_INC, STALE_EPOCH: the epoch table was lost, or
    something that it depends on was invalidated, since it was made.
    """

    OK = "OK"
    PRESENT = "PRESENT"
    STALE_INC = "STALE_INC"
    STALE_EPOCH = "STALE_EPOCH"


async def put_trace(
    client: Any, redis_keys: RedisKeys, manifest: Manifest, content: bytes
) -> PutTraceStatus:
    """Stores a trace that was checked, under the digest that is its key.

    Raises:
        UnavailableError: Redis does not serve.
    """
    return await AsyncScripts(client).run(_call(redis_keys, manifest, content))


def _call(redis_keys: RedisKeys, manifest: Manifest, content: bytes) -> ScriptCall[PutTraceStatus]:
    keys = (
        redis_keys.entry(Space.TRACES, manifest.key),
        redis_keys.stats,
        redis_keys.epochs,
        redis_keys.invalidation_log,
        redis_keys.toolchains,
        redis_keys.quota_usage,
    )
    args = (
        MANIFEST_TTL_S,
        f"{Space.TRACES.value}.",
        uuid.uuid4().hex,
        TOOLCHAIN_WINDOW_S * 1000,
        manifest.variant_id.hex(),
        manifest.incarnation,
        manifest.epoch,
        manifest.not_after_s,
        " ".join(manifest.tags),
        manifest_to_bytes(manifest),
        content,
    )
    return ScriptCall("put_trace", keys, args, lambda reply: PutTraceStatus(reply.decode()))
