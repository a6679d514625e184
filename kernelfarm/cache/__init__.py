"""The cache: content-addressed results in Redis or Valkey, which all services share.

One store has two clients with the same keys and scripts: `KernelCache` for asyncio services and
`WorkerCache` for blocking workers. It has three key spaces: programs (`p`), kernels (`k`) and
traces (`t`). Its Redis keys are (`RedisKeys`):

    kf:{ns}:m:<space>:<key>    HASH  an entry's variants: manifests, contents, facts for scripts
    kf:{ns}:b:<sha256>         STR   a blob, or the number of its chunks; outlives its manifests
    kf:{ns}:b:<sha256>:<n>     STR   chunk n of a large blob
    kf:{ns}:ep                 HASH  the epoch table: tag -> epoch of its last invalidation;
                                     @inc: its incarnation; @epoch: the current epoch; @run: the
                                     server process in which it began; @born: when it began;
                                     @floor: older entries are stale; never expires
    kf:{ns}:inv                STREAM the invalidation log; the id of a record is its epoch
    kf:{ns}:gw                 HASH  gateway -> the epoch that it has applied, and when it said so
    kf:{ns}:tc                 HASH  toolchain -> when it was advertised; @backend -> its newest
    kf:{ns}:l:<space>:<key>    HASH  lease: owner, fence, state (queued | running), epoch; seconds
    kf:{ns}:tries:<space>:<key> SET  attempts since the last result whose holders run or vanished;
                                     one hour
    kf:{ns}:slow:<space>:<key> STR   exists if the compilation of the key takes long; one hour
    kf:{ns}:neg:<space>:<key>  STR   a failure; always expires
    kf:{ns}:neg:<space>:index  ZSET  the keys that have failures, by expiry; bounds their number
    kf:{ns}:j:<key>            STR   a kernel job's input, until its key is published or fails
    kf:{ns}:fence              STR   the last fence; never expires
    kf:{ns}:stats              HASH  counters; never expire
    kf:{ns}:usage              STR   what the last sweep counted
    kf:{ns}:sweep              STR   the lock of the sweep that runs; one minute
    kf:{ns}:quota              HASH  bytes and entries, changed by publications; never expires
    kf:{ns}:sizes              HASH  blob -> its stored bytes, for each blob that `quota` counts
    kf:{ns}:models             HASH  models that the namespace's callers named; never expires
    kf:{ns}:tune:<digest>      HASH  reports on a tuning subject; a month
    kf:{ns}:tune               ZSET  the subjects with reports, by their last use; a month
    kf:{ns}:compiles           ZSET  a tenant's compilations in flight, by expiry; the set itself
                                     never expires
    kf:{ns}:x:*                      the parts of keys, to explain misses
    kf:{ns}:workers            SET   workers that reported, and kf:{ns}:w:<worker> their reports
    kf:{ns}:queues             HASH  edge -> its queues; fifteen seconds
    kf:{ns}:done               a pub/sub channel: keys that were published, failed or released

A tenant's namespace has keys of its own (`kf:{ns}:t:<tenant>:m:...`) and shares the farm's epoch
table, toolchains, workers, fences and channel. Its entries are stored under salted keys, and only
the owner of the salt can compute the storage key of a program or kernel. Manifests state the
unsalted key.

The braces are Redis's hash tag: all keys of a farm are on one server of a cluster, so that a script
can use them together. An entry is live while none of its tags was invalidated after the epoch in
which its compilation began. An invalidation is therefore one write, whatever the number of entries.
If the table is lost, a new incarnation begins, and all earlier entries are stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kernelfarm.cache.edge_cache import EdgeCache as EdgeCache
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
    "EdgeCache": "kernelfarm.cache.edge_cache",
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
    "EdgeCache",
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
    # Lazily, because clients import parts of this package without redis.
    if name not in _EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 -- only on first use

    return getattr(import_module(_EXPORTS[name]), name)
