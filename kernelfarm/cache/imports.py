"""What an import asks the store: which blobs are missing, and which toolchains are others."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.cache.connection import translated_errors
from kernelfarm.cache.kernel_cache import KernelCache
from kernelfarm.cache.limits import TOOLCHAIN_WINDOW_MS


async def missing_blobs(cache: KernelCache, digests: Sequence[bytes]) -> list[bytes]:
    """Those of the blobs that are not stored; of a large blob, only its head is checked.

    Raises:
        UnavailableError: Redis does not serve.
    """
    unique = list(dict.fromkeys(digests))
    with translated_errors():
        pipeline = cache.client.pipeline(transaction=False)
        for sha256 in unique:
            pipeline.exists(cache.redis_keys.blob(sha256))
        stored = await pipeline.execute()
    return [sha256 for sha256, is_there in zip(unique, stored, strict=True) if not is_there]


async def other_toolchains(cache: KernelCache, names: Sequence[str]) -> dict[str, str]:
    """Those of the toolchains by which a look-up would ignore a program, with the newest ones.

    They are not advertised, and another one of their backend is. See `unadvertised` in
    `lua/entries.lua`.

    Raises:
        UnavailableError: Redis does not serve.
    """
    if not names:
        return {}
    backends = [f"@{name.partition('@')[0]}" for name in names]
    with translated_errors():
        reported = await cache.client.hmget(cache.redis_keys.toolchains, *names, *backends)
        seconds, _ = await cache.client.time()
    times, newest = reported[: len(names)], reported[len(names) :]
    oldest_ms = seconds * 1000 - TOOLCHAIN_WINDOW_MS
    return {
        name: here.decode()
        for name, time_ms, here in zip(names, times, newest, strict=True)
        if here and here.decode() != name and not (time_ms and int(time_ms) > oldest_ms)
    }
