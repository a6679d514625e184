"""The script calls of one key space, for the asyncio and the blocking client of the cache."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from kernelfarm.cache import script_declarations as lua
from kernelfarm.cache.limits import (
    ATTEMPTS_TTL_S,
    BLOB_TTL_S,
    MANIFEST_TTL_S,
    MAX_FAILURES,
    MAX_VARIANTS,
    TOOLCHAIN_WINDOW_MS,
)
from kernelfarm.cache.lua_script import ScriptCall, Value
from kernelfarm.cache.records import (
    AdoptedJob,
    Lease,
    LookupResult,
    PublishStatus,
    Space,
    facts_to_json,
)
from kernelfarm.cache.redis_keys import RedisKey, RedisKeys
from kernelfarm.cache.variant_records import VariantRecord, stored_variant
from kernelfarm.errors import ErrorFacts

MISSING_BLOB = "b:"
"""The prefix of the channel's messages about missing blobs."""

_TRANSIENT = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})
"""The statuses of failures that do not depend on the program or kernel."""


class LookupCall(NamedTuple):
    """A transaction that runs `lookup.lua` and reads the entry.

    `writes` is True if the script writes in any case, so that a server that became a replica
    refuses it. `more` are further commands of the transaction.
    """

    keys: tuple[RedisKey, ...]
    args: tuple[Value, ...]
    entry: RedisKey
    writes: bool
    more: tuple[tuple[Value, ...], ...] = ()

    def read(self, verdict: Any, stored: Any) -> LookupResult:
        """The result, from the script's reply and the entry's fields."""
        reason, incarnation, epoch, stamp, *rest = verdict
        word = reason.decode()
        at = (stamp.decode(), incarnation.decode(), int(epoch))
        if word != "hit":
            return LookupResult((), word, rest[0].decode(), *at)
        fields = stored if isinstance(stored, dict) else dict(zip(*[iter(stored)] * 2, strict=True))
        return LookupResult(tuple([stored_variant(fields, id) for id in rest]), word, "", *at)


@dataclass(frozen=True)
class ScriptCalls:
    """The calls of one key space within one namespace.

    `may_write` is False for readers: their look-ups write nothing and are not counted.
    """

    namespace: str
    space: Space
    may_write: bool = True
    salt: bytes = field(default=b"", repr=False)
    most_failures: int = MAX_FAILURES

    @cached_property
    def redis_keys(self) -> RedisKeys:
        """The names of the namespace's keys."""
        return RedisKeys(self.namespace, self.salt)

    def message(self, key: bytes) -> str:
        """The channel's message when this key was published, failed or released."""
        return f"{self.space.value}:{self.redis_keys.storage_key(key).hex()}"

    def counter(self, name: str = "") -> str:
        """A counter's field within the stats; without a name, the prefix of all counters."""
        return f"{self.space.value}.{name}"

    def lookup(self, key: bytes, tags: Sequence[str], is_counted: bool) -> LookupCall:
        """See `KernelCache.lookup`."""
        redis_keys = self.redis_keys
        entry = redis_keys.entry(self.space, key)
        parameters = lua.Lookup(
            entry=entry,
            stats=redis_keys.stats,
            epochs=redis_keys.epochs,
            invalidation_log=redis_keys.invalidation_log,
            toolchains=redis_keys.toolchains,
            blob_prefix=redis_keys.blob_prefix,
            entry_ttl_s=MANIFEST_TTL_S,
            blob_ttl_s=BLOB_TTL_S,
            counter_prefix=self.counter(),
            is_counted=int(is_counted),
            new_incarnation=new_incarnation(),
            toolchain_window_ms=TOOLCHAIN_WINDOW_MS,
            tags=" ".join(tags),
            may_write=int(self.may_write),
        )
        keys, args = lua.LOOKUP.split(parameters)
        return LookupCall(keys, args, entry, writes=self.may_write and is_counted)

    def find(self, key: bytes, is_counted: bool) -> LookupCall:
        """See `KernelCache.find`: a look-up, the failure, and whether the key is slow.

        The last command writes, though it changes nothing: see `LookupCall.writes`.
        """
        redis_keys = self.redis_keys
        more = (
            ("GET", redis_keys.failure(self.space, key)),
            ("EXISTS", redis_keys.slow(self.space, key)),
            ("HINCRBY", redis_keys.stats, self.counter("hits"), 0),
        )
        return self.lookup(key, (), is_counted)._replace(writes=self.may_write, more=more)

    def acquire(
        self, key: bytes, owner: str, ttl_s: float, is_queued: bool, seen: tuple[str, Sequence[str]]
    ) -> ScriptCall[Lease | None]:
        """See `KernelCache.acquire`; `seen` is the entry's stamp and the caller's tags."""

        def read(reply: Any) -> Lease | None:
            if not reply:
                return None
            fence, attempts, incarnation, epoch = reply
            return Lease(
                key, owner, int(fence), ttl_s, int(attempts), incarnation.decode(), int(epoch)
            )

        redis_keys, (stamp, tags) = self.redis_keys, seen
        parameters = lua.Acquire(
            lease=redis_keys.lease(self.space, key),
            entry=redis_keys.entry(self.space, key),
            attempts=redis_keys.attempts(self.space, key),
            fence_counter=redis_keys.fence_counter,
            stats=redis_keys.stats,
            epochs=redis_keys.epochs,
            invalidation_log=redis_keys.invalidation_log,
            toolchains=redis_keys.toolchains,
            owner=owner,
            ttl_ms=_ms(ttl_s),
            state="queued" if is_queued else "running",
            first_fence=time.time_ns() // 1_000_000,
            counter_prefix=self.counter(),
            attempts_ttl_s=ATTEMPTS_TTL_S,
            new_incarnation=new_incarnation(),
            seen_stamp=stamp,
            tags=" ".join(tags),
            blob_prefix=redis_keys.blob_prefix,
            toolchain_window_ms=TOOLCHAIN_WINDOW_MS,
        )
        return lua.ACQUIRE.call(parameters, read)

    def adopt(self, lease: Lease) -> ScriptCall[AdoptedJob | None]:
        """See `WorkerCache.adopt`."""

        def read(reply: Any) -> AdoptedJob | None:
            if not reply:
                return None
            job, incarnation, epoch = reply
            adopted = replace(lease, incarnation=incarnation.decode(), epoch=int(epoch))
            return AdoptedJob(job, adopted)

        redis_keys = self.redis_keys
        parameters = lua.Adopt(
            lease=redis_keys.lease(self.space, lease.key),
            attempts=redis_keys.attempts(self.space, lease.key),
            job=redis_keys.job(lease.key),
            stats=redis_keys.stats,
            fence=lease.fence,
            owner=lease.owner,
            ttl_ms=_ms(lease.ttl_s),
            attempts_ttl_s=ATTEMPTS_TTL_S,
            counter_prefix=self.counter(),
        )
        return lua.ADOPT.call(parameters, read)

    def renew(self, lease: Lease) -> ScriptCall[bool]:
        """See `KernelCache.renew`."""
        parameters = lua.Renew(
            lease=self.redis_keys.lease(self.space, lease.key),
            fence=lease.fence,
            owner=lease.owner,
            ttl_ms=_ms(lease.ttl_s),
        )
        return lua.RENEW.call(parameters, bool)

    def release(self, lease: Lease) -> ScriptCall[bool]:
        """See `KernelCache.release`."""
        redis_keys = self.redis_keys
        parameters = lua.Release(
            lease=redis_keys.lease(self.space, lease.key),
            attempts=redis_keys.attempts(self.space, lease.key),
            fence=lease.fence,
            owner=lease.owner,
            channel=redis_keys.channel,
            message=self.message(lease.key),
        )
        return lua.RELEASE.call(parameters, bool)

    def publish(self, lease: Lease, variants: Sequence[VariantRecord]) -> ScriptCall[PublishStatus]:
        """See `KernelCache.publish`."""
        if not variants:
            raise ValueError("a result has at least one variant")
        key, redis_keys = lease.key, self.redis_keys
        parameters = lua.Publish(
            entry=redis_keys.entry(self.space, key),
            lease=redis_keys.lease(self.space, key),
            attempts=redis_keys.attempts(self.space, key),
            job=redis_keys.job(key),
            failure=redis_keys.failure(self.space, key),
            stats=redis_keys.stats,
            epochs=redis_keys.epochs,
            invalidation_log=redis_keys.invalidation_log,
            toolchains=redis_keys.toolchains,
            quota=redis_keys.quota_usage,
            sizes=redis_keys.sizes,
            fence=lease.fence,
            blob_prefix=redis_keys.blob_prefix,
            entry_ttl_s=MANIFEST_TTL_S,
            blob_ttl_s=BLOB_TTL_S,
            counter_prefix=self.counter(),
            channel=redis_keys.channel,
            message=self.message(key),
            new_incarnation=new_incarnation(),
            toolchain_window_ms=TOOLCHAIN_WINDOW_MS,
            most_variants=MAX_VARIANTS,
        )
        fields = tuple(value for variant in variants for value in variant)
        return lua.PUBLISH.call(parameters, _read_status, more_args=fields)

    def refresh(self, key: bytes, old: bytes, new: VariantRecord) -> ScriptCall[bool]:
        """See `KernelCache.refresh`; `old` is the manifest to replace."""
        parameters = lua.Refresh(
            entry=self.redis_keys.entry(self.space, key),
            variant_id=new.variant_id,
            old_manifest=old,
            new_manifest=new.manifest,
            not_after_s=new.not_after_s,
        )
        return lua.REFRESH.call(parameters, bool)

    def remove_variant(
        self, key: bytes, variant_id: str, manifest: bytes, counter: str
    ) -> ScriptCall[bool]:
        """Removes a variant that did not pass verification, and counts it."""
        parameters = lua.RemoveVariant(
            entry=self.redis_keys.entry(self.space, key),
            stats=self.redis_keys.stats,
            variant_id=variant_id,
            manifest=manifest,
            counter=self.counter(counter),
        )
        return lua.REMOVE_VARIANT.call(parameters, bool)

    def report_missing_blob(self, sha256: bytes) -> ScriptCall[bool]:
        """See `KernelCache.report_missing_blob`."""
        redis_keys, digest = self.redis_keys, sha256.hex()
        parameters = lua.ReportMissingBlob(
            sizes=redis_keys.sizes,
            quota=redis_keys.quota_usage,
            digest=digest,
            channel=redis_keys.channel,
            message=f"{MISSING_BLOB}{digest}",
        )
        return lua.REPORT_MISSING_BLOB.call(parameters, bool)

    def copy_blobs(self, source: RedisKeys, digests: Iterable[bytes]) -> ScriptCall[bool]:
        """See `KernelCache.copy_blobs`."""
        parameters = lua.CopyBlobs(
            stats=self.redis_keys.stats,
            blob_prefix=self.redis_keys.blob_prefix,
            source_blob_prefix=source.blob_prefix,
            blob_ttl_s=BLOB_TTL_S,
            digests=" ".join(sorted(digest.hex() for digest in digests)),
        )
        return lua.COPY_BLOBS.call(parameters, bool)

    def fail(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None
    ) -> ScriptCall[PublishStatus]:
        """See `KernelCache.put_failure`."""
        if ttl_s <= 0:
            raise ValueError(f"a failure must expire; ttl_s is {ttl_s}")
        redis_keys = self.redis_keys
        parameters = lua.Fail(
            failure=redis_keys.failure(self.space, key),
            lease=redis_keys.lease(self.space, key),
            attempts=redis_keys.attempts(self.space, key),
            stats=redis_keys.stats,
            job=redis_keys.job(key),
            failure_index=redis_keys.failures(self.space),
            facts=facts_to_json(facts),
            ttl_ms=_ms(ttl_s),
            fence=lease.fence if lease else "",
            owner=lease.owner if lease else "",
            counter_prefix=self.counter(),
            channel=redis_keys.channel,
            message=self.message(key),
            is_transient=int(facts.status in _TRANSIENT),
            failure_prefix=redis_keys.failure_prefix(self.space),
            storage_key=redis_keys.storage_key(key).hex(),
            most_failures=max(1, self.most_failures),
        )
        return lua.FAIL.call(parameters, _read_status)

    def pending(self, key: bytes, seen: str) -> ScriptCall[float]:
        """Seconds until the key's lease lapses; negative if there is nothing to wait for."""
        parameters = lua.Pending(
            entry=self.redis_keys.entry(self.space, key),
            failure=self.redis_keys.failure(self.space, key),
            lease=self.redis_keys.lease(self.space, key),
            seen_stamp=seen,
        )
        return lua.PENDING.call(parameters, lambda reply: reply / 1e3)


def _read_status(reply: Any) -> PublishStatus:
    return PublishStatus(reply.decode())


def new_incarnation() -> str:
    """A unique name for an incarnation of the epoch table, used only if one has to begin."""
    return os.urandom(16).hex()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
