"""The cache: content-addressed results, shared by every room, in Redis or Valkey.

One store, two faces that share keys and scripts: `KernelCache` for asyncio services, `WorkerCache`
for blocking workers. Three key spaces: programs (`p`), kernels (`k`) and traces (`t`).

    kf:{ns}:m:<space>:<key>    HASH  an entry's variants: manifests, contents, what scripts look at
    kf:{ns}:b:<sha256>         STR   a blob, or the number of its chunks; outlives its manifests
    kf:{ns}:b:<sha256>:<n>     STR   chunk n of a large blob
    kf:{ns}:ep                 HASH  tag -> epoch of its last invalidation; @inc, @epoch: its own
                                     life and present epoch; @run: the server process in which it
                                     lives; @floor: what is older is cold; never expires
    kf:{ns}:inv                STREAM of announcements; an id is the epoch that it began
    kf:{ns}:gw                 HASH  gateway -> how far it has obeyed, and when it said so
    kf:{ns}:tc                 HASH  toolchain -> when it was advertised; @backend -> its newest
    kf:{ns}:l:<space>:<key>    HASH  lease: owner, fence, state (queued | running), epoch; seconds
    kf:{ns}:tries:<space>:<key> SET  attempts since the last result whose holders go on, or
                                     vanished; one hour
    kf:{ns}:slow:<space>:<key> STR   there if compiling it was found to take long, one hour
    kf:{ns}:neg:<space>:<key>  STR   a failure; always expires
    kf:{ns}:neg:<space>:index  ZSET  the keys that have failed, by the end of their time: so many
                                     are remembered
    kf:{ns}:j:<key>            STR   a kernel job's input, until its key is published or fails
    kf:{ns}:fence              STR   the last fence given; never expires
    kf:{ns}:stats              HASH  counters; never expire
    kf:{ns}:usage              STR   what the last sweep counted
    kf:{ns}:quota              HASH  bytes and entries, kept up by publications; never expires
    kf:{ns}:sizes              HASH  blob -> its stored bytes, for each blob that is held
    kf:{ns}:models             HASH  models that the namespace's callers named; never expires
    kf:{ns}:compiles           ZSET  a tenant's compilations in flight, by the end of their time;
                                     never expires as a whole
    kf:{ns}:x:*                      the parts of keys, for explanations
    kf:{ns}:workers            SET   workers that reported, and kf:{ns}:w:<worker> their reports
    kf:{ns}:done               a pub/sub channel: keys that were published, failed or given back

A tenant's part of a farm has keys of its own (`kf:{ns}:t:<tenant>:m:...`) and shares the farm's
epochs, toolchains, workers, fences and channel. Its entries lie at salted keys, which only who has
the salt can tell from a program's or kernel's own key; manifests state the own key.

The braces are Redis's hash tag: all keys of a namespace live in one slot, so that a script may
touch them all. An entry is alive while no tag of it was invalidated after the epoch in which its
compilation began: invalidating is one write, whatever the number of entries. If the table is lost,
a new life of it begins, and everything from before is cold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelfarm.cache.epoch_calls import Epoch as Epoch
    from kernelfarm.cache.epochs import InvalidationRecord as InvalidationRecord
    from kernelfarm.cache.kernel_cache import KernelCache as KernelCache
    from kernelfarm.cache.records import AdoptedJob as AdoptedJob
    from kernelfarm.cache.records import Lease as Lease
    from kernelfarm.cache.records import LookupResult as LookupResult
    from kernelfarm.cache.records import PublishStatus as PublishStatus
    from kernelfarm.cache.records import Space as Space
    from kernelfarm.cache.records import StoredVariant as StoredVariant
    from kernelfarm.cache.records import UnsignedVariant as UnsignedVariant
    from kernelfarm.cache.records import WorkerReport as WorkerReport
    from kernelfarm.cache.signing_policy import SigningPolicy as SigningPolicy
    from kernelfarm.cache.worker_cache import WorkerCache as WorkerCache

_EXPORTS = {
    "InvalidationRecord": "kernelfarm.cache.epochs",
    "Epoch": "kernelfarm.cache.epoch_calls",
    "LookupResult": "kernelfarm.cache.records",
    "StoredVariant": "kernelfarm.cache.records",
    "SigningPolicy": "kernelfarm.cache.signing_policy",
    "AdoptedJob": "kernelfarm.cache.records",
    "KernelCache": "kernelfarm.cache.kernel_cache",
    "Lease": "kernelfarm.cache.records",
    "PublishStatus": "kernelfarm.cache.records",
    "Space": "kernelfarm.cache.records",
    "UnsignedVariant": "kernelfarm.cache.records",
    "WorkerCache": "kernelfarm.cache.worker_cache",
    "WorkerReport": "kernelfarm.cache.records",
}

__all__ = [
    "AdoptedJob",
    "Epoch",
    "InvalidationRecord",
    "KernelCache",
    "Lease",
    "LookupResult",
    "PublishStatus",
    "SigningPolicy",
    "Space",
    "StoredVariant",
    "UnsignedVariant",
    "WorkerCache",
    "WorkerReport",
]


def __getattr__(name: str) -> object:
    # Lazily, so that a client that imports a neighbour does not pay for redis.
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 -- only on first use

    return getattr(import_module(_EXPORTS[name]), name)
