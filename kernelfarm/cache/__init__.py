"""The cache: content-addressed results, shared by every room, in Redis or Valkey.

One store, two faces that share keys and scripts: `KernelCache` for asyncio services, `WorkerCache`
for blocking workers. Two key spaces: programs (`p`) and kernels (`k`).

    kf:{ns}:m:<space>:<key>    HASH  manifest: variant payloads, the blobs they name, the fence
    kf:{ns}:b:<sha256>         STR   a blob, or the number of its chunks; outlives its manifests
    kf:{ns}:b:<sha256>:<n>     STR   chunk n of a large blob
    kf:{ns}:l:<space>:<key>    HASH  lease: owner, fence, state (queued | running); seconds
    kf:{ns}:a:<space>:<key>    STR   attempts since the last result, one hour
    kf:{ns}:neg:<space>:<key>  STR   a failure; always expires
    kf:{ns}:j:<key>            STR   a kernel job's input, until its key is published
    kf:{ns}:fence              STR   the last fence given; never expires
    kf:{ns}:stats              HASH  counters; never expire
    kf:{ns}:workers            SET   workers that reported, and kf:{ns}:w:<worker> their reports
    kf:{ns}:done               a pub/sub channel: keys that were published, failed or given back

The braces are Redis's hash tag: all keys of a namespace live in one slot, so that a script may
touch them all. What may change under an entry later gets its place here too: epochs in
`kf:{ns}:ep` (tag -> epoch) with a snapshot in the lease and in the manifest, compared by `lookup`
and `publish`; announcements of invalidations in the stream `kf:{ns}:inv`; and a signature as one
more field of the manifest, made by whoever publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelfarm.cache.kernel_cache import KernelCache as KernelCache
    from kernelfarm.cache.records import Lease as Lease
    from kernelfarm.cache.records import Published as Published
    from kernelfarm.cache.records import Space as Space
    from kernelfarm.cache.records import Variant as Variant
    from kernelfarm.cache.records import WorkerReport as WorkerReport
    from kernelfarm.cache.worker_cache import WorkerCache as WorkerCache

_HOMES = {
    "KernelCache": "kernelfarm.cache.kernel_cache",
    "Lease": "kernelfarm.cache.records",
    "Published": "kernelfarm.cache.records",
    "Space": "kernelfarm.cache.records",
    "Variant": "kernelfarm.cache.records",
    "WorkerCache": "kernelfarm.cache.worker_cache",
    "WorkerReport": "kernelfarm.cache.records",
}

__all__ = [
    "KernelCache",
    "Lease",
    "Published",
    "Space",
    "Variant",
    "WorkerCache",
    "WorkerReport",
]


def __getattr__(name: str) -> object:
    # Lazily, so that a client that imports a neighbour does not pay for redis.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 -- only on first use

    return getattr(import_module(_HOMES[name]), name)
