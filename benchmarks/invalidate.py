"""The time of invalidating many kernels by one call, and of a look-up compared with a GET.

    python -m benchmarks.invalidate [--kernels 20000]

It starts a server with entries as workers sign and publish them; look-ups check signatures. Times
in microseconds, p50 and p99.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import statistics
import time
from collections.abc import Awaitable, Callable

from kernelfarm.cache import KernelCache, SigningPolicy, Space, UnsignedVariant
from kernelfarm.cache.embedded import ServerRole, start_server
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.signing import Keyring, new_signer

TAG = "op:aten.gelu.default"
TAGS = (TAG, "toolchain:cuda@0123", "driver:cuda", *(f"pass:pass-{n}" for n in range(14)))
CONTENT = b"x" * 2048
ROUNDS = 2000
PUBLISHED = 500


async def main(kernels: int) -> None:
    """Prints one line for each figure."""
    server = start_server(ServerRole.CACHE)
    signer = new_signer(Space.KERNELS)
    trust = SigningPolicy(signer, Keyring([signer.trusted]))
    try:
        async with KernelCache(
            server.url, namespace="bench", space=Space.KERNELS, signing=trust
        ) as cache:
            keys = [hashlib.sha256(b"%d" % number).digest() for number in range(kernels)]
            await _publish(cache, keys)
            await _time_all(cache, keys[:PUBLISHED], kernels)
    finally:
        server.stop()


async def _time_all(cache: KernelCache, keys: list[bytes], kernels: int) -> None:
    await cache.client.set("beside", CONTENT)
    await _report("bare GET", lambda at: cache.client.get("beside"))
    await _report("look-up, hit", lambda at: cache.lookup(keys[at % len(keys)]))
    await cache.epochs.invalidate(["op:another"])
    await _report("look-up, hit, after a bump", lambda at: cache.lookup(keys[at % len(keys)]))
    began_s = time.perf_counter()
    await cache.epochs.invalidate([TAG])
    print(f"{kernels} kernels invalidated in {1e6 * (time.perf_counter() - began_s):.0f} us")
    await _report("look-up, stale", lambda at: cache.lookup(keys[at % len(keys)]))


async def _publish(cache: KernelCache, keys: list[bytes]) -> None:
    """Publishes some kernels, and copies one on the server, which is faster, to fill the cache."""
    for key in keys[:PUBLISHED]:
        lease = await cache.acquire(key, "maker", 30)
        if lease is None:
            raise RuntimeError("a kernel that nobody makes could not be leased")
        await cache.publish(lease, [UnsignedVariant(CONTENT, tags=TAGS)])
    names = RedisKeys(cache.namespace)
    source = names.entry(Space.KERNELS, keys[0])
    pipeline = cache.client.pipeline(transaction=False)
    for key in keys[PUBLISHED:]:
        pipeline.copy(source, names.entry(Space.KERNELS, key))
    await pipeline.execute()


async def _report(name: str, call: Callable[[int], Awaitable[object]]) -> None:
    taken = []
    for number in range(ROUNDS):
        began_s = time.perf_counter()
        await call(number)
        taken.append(1e6 * (time.perf_counter() - began_s))
    taken.sort()
    print(f"{name}: p50 {statistics.median(taken):.0f} us, p99 {taken[ROUNDS * 99 // 100]:.0f} us")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kernels", type=int, default=20_000)
    asyncio.run(main(parser.parse_args().kernels))
