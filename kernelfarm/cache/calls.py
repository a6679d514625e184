"""Operations on entries and leases as values: script, keys, arguments, how to read the reply.

The asyncio and the blocking face run the same calls, so that they cannot drift apart.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from importlib import resources
from typing import Any, Generic, TypeVar

from kernelfarm.cache.records import (
    AdoptedJob,
    Lease,
    LookupResult,
    PublishStatus,
    Space,
    StoredVariant,
    facts_to_json,
)
from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import ErrorFacts

T = TypeVar("T")

DAY_S = 24 * 3600

# Results are found again for a month after their last use; blobs outlive every manifest.
MANIFEST_TTL_S = 30 * DAY_S
BLOB_TTL_S = MANIFEST_TTL_S + DAY_S
ATTEMPTS_TTL_S = 3600
JOB_TTL_S = DAY_S
REPORT_TTL_S = 15
SLOW_TTL_S = 3600

# A toolchain counts as advertised so long after its last report: an upgrade's both sides serve.
TOOLCHAIN_WINDOW_S = 3600

MAX_VARIANTS = 16
"""Variants of one entry; beyond, the oldest of those with a guard goes."""

# What scripts begin with: shared functions, in the order in which they use each other.
_PRELUDES = {
    "lookup": ("blobs", "entries"),
    "acquire": ("blobs", "entries", "attempts"),
    "adopt": ("attempts",),
    "publish": ("blobs", "entries"),
    "invalidate": ("blobs", "entries"),
    "handshake": ("blobs", "entries"),
    "epoch": ("blobs", "entries"),
    "remove_variant": ("blobs", "entries"),
    "sweep": ("blobs", "entries"),
    "advertise": ("blobs", "entries"),
    "start_compile": ("blobs", "entries"),
    "put_trace": ("blobs", "entries"),
    "copy_blobs": ("blobs",),
    "fail": ("blobs", "entries", "attempts"),
    "release": ("attempts",),
}

MAX_FAILURES = 10_000
"""Failures that one namespace and space remembers at once; each takes 2.5 KB at most."""

_PASSING = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})
"""Status of failures that say nothing of the program or kernel itself."""

# Incarnation, epoch, not after, tags, blobs: what `entries.lua` judges a variant by.
_FACTS = (b":i", b":e", b":x", b":t", b":b")

MISSING_BLOB = "b:"
"""What the channel's messages about lost blobs begin with."""

Value = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class ScriptCall(Generic[T]):
    """One script to run, and what makes its reply a result."""

    script: str
    keys: tuple[str, ...]
    args: tuple[Value, ...]
    read: Callable[[Any], T]


@lru_cache(maxsize=32)
def script_source(name: str) -> str:
    """The Lua text of a script."""
    folder = resources.files("kernelfarm.cache") / "lua"
    parts = (*_PRELUDES.get(name, ()), name)
    return "".join((folder / f"{part}.lua").read_text(encoding="utf-8") for part in parts)


@lru_cache(maxsize=32)
def script_sha1(name: str) -> str:
    """By which a server knows a script that it has seen."""
    return hashlib.sha1(script_source(name).encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True)
class VariantRecord:
    """A variant ready to be stored, and the manifest's facts that scripts look at."""

    variant_id: str
    incarnation: str
    epoch: int
    not_after_s: int
    conditions: int
    tags: str
    blobs: str
    manifest: bytes
    content: bytes

    @property
    def facts(self) -> tuple[bytes, ...]:
        """What lies beside the manifest, see `StoredVariant`."""
        texts = (self.incarnation, self.epoch, self.not_after_s, self.tags, self.blobs)
        return tuple(str(text).encode() for text in (self.variant_id, *texts))

    def args(self) -> tuple[Value, ...]:
        """Its part of the arguments of `publish`."""
        return (
            self.variant_id,
            self.incarnation,
            self.epoch,
            self.not_after_s,
            self.conditions,
            self.tags,
            self.blobs,
            self.manifest,
            self.content,
        )


@dataclass(frozen=True, slots=True)
class LookupCall:
    """A look-up: `lookup.lua` judges an entry's variants, the entry is read in one transaction.

    `keys` are the script's; the first is the entry. `writes` tells that the script writes for
    certain, so that a server which was demoted refuses.
    """

    keys: tuple[str, ...]
    args: tuple[Value, ...]
    writes: bool

    @property
    def entry(self) -> str:
        """The hash to read."""
        return self.keys[0]

    def read(self, verdict: Any, stored: Any) -> LookupResult:
        """What was met, from the script's reply and the entry's fields."""
        reason, incarnation, epoch, stamp, *rest = verdict
        word = reason.decode()
        at = (stamp.decode(), incarnation.decode(), int(epoch))
        if word != "hit":
            return LookupResult((), word, rest[0].decode(), *at)
        fields = stored if isinstance(stored, dict) else dict(zip(*[iter(stored)] * 2, strict=True))
        variants = tuple(_variant(fields, id) for id in rest)
        return LookupResult(variants, word, "", *at)


def _variant(fields: dict[bytes, bytes], id: bytes) -> StoredVariant:
    facts = tuple([fields[id + part] for part in _FACTS])
    return StoredVariant(fields[id + b":m"], fields[id + b":c"], (id, *facts))


@dataclass(frozen=True)
class ScriptCalls:
    """The calls of one key space within one namespace.

    `may_write` is False for readers, whose look-ups change nothing and count nothing.
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

    @property
    def channel(self) -> str:
        """The pub/sub channel that tells of finished keys, those of all tenants."""
        return self.redis_keys.farm_key("done")

    def failure_key(self, key: bytes) -> str:
        """Where a key's failure lies."""
        return self._own("neg", key)

    def slow_key(self, key: bytes) -> str:
        """Where it lies that a key takes long."""
        return self._own("slow", key)

    def job_key(self, key: bytes) -> str:
        """Where a key's job lies."""
        redis_keys = self.redis_keys
        return redis_keys.redis_key("j", redis_keys.storage_key(key).hex())

    def message(self, key: bytes) -> str:
        """What the channel says when this key is finished."""
        return f"{self.space.value}:{self.redis_keys.storage_key(key).hex()}"

    def counter(self, name: str = "") -> str:
        """A counter's field within the stats."""
        return f"{self.space.value}.{name}"

    def lookup(self, key: bytes, tags: Sequence[str], is_counted: bool) -> LookupCall:
        """See `KernelCache.lookup`."""
        redis_keys = self.redis_keys
        keys = (
            self._entry(key),
            redis_keys.stats,
            redis_keys.epochs,
            redis_keys.invalidation_log,
            redis_keys.toolchains,
        )
        args = (
            redis_keys.blobs,
            MANIFEST_TTL_S,
            BLOB_TTL_S,
            self.counter(),
            int(is_counted),
            fresh_incarnation(),
            _ms(TOOLCHAIN_WINDOW_S),
            " ".join(tags),
            int(self.may_write),
        )
        return LookupCall(keys, args, writes=self.may_write and is_counted)

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

        redis_keys = self.redis_keys
        keys = (
            self._lease(key),
            self._entry(key),
            self._attempts(key),
            redis_keys.farm_key("fence"),
            redis_keys.stats,
            redis_keys.epochs,
            redis_keys.invalidation_log,
            redis_keys.toolchains,
        )
        args = (
            owner,
            _ms(ttl_s),
            "queued" if is_queued else "running",
            time.time_ns() // 1_000_000,
            self.counter(),
            ATTEMPTS_TTL_S,
            fresh_incarnation(),
            seen[0],
            " ".join(seen[1]),
            redis_keys.blobs,
            _ms(TOOLCHAIN_WINDOW_S),
        )
        return ScriptCall("acquire", keys, args, read)

    def adopt(self, lease: Lease) -> ScriptCall[AdoptedJob | None]:
        """See `WorkerCache.adopt`."""

        def read(reply: Any) -> AdoptedJob | None:
            if not reply:
                return None
            job, incarnation, epoch = reply
            known = replace(lease, incarnation=incarnation.decode(), epoch=int(epoch))
            return AdoptedJob(job, known)

        key = lease.key
        return ScriptCall(
            "adopt",
            (self._lease(key), self._attempts(key), self.job_key(key), self.redis_keys.stats),
            (lease.fence, lease.owner, _ms(lease.ttl_s), ATTEMPTS_TTL_S, self.counter()),
            read,
        )

    def renew(self, lease: Lease) -> ScriptCall[bool]:
        """See `KernelCache.renew`."""
        args = (lease.fence, lease.owner, _ms(lease.ttl_s))
        return ScriptCall("renew", (self._lease(lease.key),), args, bool)

    def release(self, lease: Lease) -> ScriptCall[bool]:
        """See `KernelCache.release`."""
        return ScriptCall(
            "release",
            (self._lease(lease.key), self._attempts(lease.key)),
            (lease.fence, lease.owner, self.channel, self.message(lease.key)),
            bool,
        )

    def publish(self, lease: Lease, variants: Sequence[VariantRecord]) -> ScriptCall[PublishStatus]:
        """See `KernelCache.publish`."""
        if not variants:
            raise ValueError("a result has at least one variant")
        key, redis_keys = lease.key, self.redis_keys
        keys = (
            self._entry(key),
            self._lease(key),
            self._attempts(key),
            self.job_key(key),
            self.failure_key(key),
            redis_keys.stats,
            redis_keys.epochs,
            redis_keys.invalidation_log,
            redis_keys.toolchains,
            redis_keys.quota_usage,
            redis_keys.sizes,
        )
        args = (
            lease.fence,
            redis_keys.blobs,
            MANIFEST_TTL_S,
            BLOB_TTL_S,
            self.counter(),
            self.channel,
            self.message(key),
            fresh_incarnation(),
            _ms(TOOLCHAIN_WINDOW_S),
            MAX_VARIANTS,
            *(part for variant in variants for part in variant.args()),
        )
        return ScriptCall("publish", keys, args, _read_published)

    def refresh(self, key: bytes, old: bytes, new: VariantRecord) -> ScriptCall[bool]:
        """See `KernelCache.refresh`."""
        args = (new.variant_id, old, new.manifest, new.not_after_s)
        return ScriptCall("refresh", (self._entry(key),), args, bool)

    def remove_variant(
        self, key: bytes, variant_id: str, manifest: bytes, counter: str
    ) -> ScriptCall[bool]:
        """Removes a variant that is not believed, and counts it."""
        keys = (self._entry(key), self.redis_keys.stats)
        return ScriptCall(
            "remove_variant", keys, (variant_id, manifest, self.counter(counter)), bool
        )

    def report_missing_blob(self, sha256: bytes) -> ScriptCall[bool]:
        """See `KernelCache.report_missing_blob`."""
        redis_keys, digest = self.redis_keys, sha256.hex()
        args = (digest, self.channel, f"{MISSING_BLOB}{digest}")
        return ScriptCall(
            "report_missing_blob", (redis_keys.sizes, redis_keys.quota_usage), args, bool
        )

    def copy_blobs(self, source: RedisKeys, digests: Iterable[bytes]) -> ScriptCall[bool]:
        """See `KernelCache.copy_blobs`."""
        redis_keys = self.redis_keys
        hex_digests = " ".join(sorted(digest.hex() for digest in digests))
        return ScriptCall(
            "copy_blobs",
            (redis_keys.stats,),
            (redis_keys.blobs, source.blobs, BLOB_TTL_S, hex_digests),
            bool,
        )

    def fail(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None
    ) -> ScriptCall[PublishStatus]:
        """See `KernelCache.put_failure`."""
        if ttl_s <= 0:
            raise ValueError(f"a failure must expire; ttl_s is {ttl_s}")
        redis_keys = self.redis_keys
        return ScriptCall(
            "fail",
            (
                self.failure_key(key),
                self._lease(key),
                self._attempts(key),
                redis_keys.stats,
                self.job_key(key),
                redis_keys.failures(self.space),
            ),
            (
                facts_to_json(facts),
                _ms(ttl_s),
                lease.fence if lease else "",
                lease.owner if lease else "",
                self.counter(),
                self.channel,
                self.message(key),
                int(facts.status in _PASSING),
                redis_keys.redis_key("neg", self.space.value, ""),
                redis_keys.storage_key(key).hex(),
                max(1, self.most_failures),
            ),
            _read_published,
        )

    def pending(self, key: bytes, seen: str) -> ScriptCall[float]:
        """Seconds until the key's lease lapses; negative if there is nothing to wait for."""
        keys = (self._entry(key), self.failure_key(key), self._lease(key))
        return ScriptCall("pending", keys, (seen,), lambda reply: reply / 1e3)

    def _entry(self, key: bytes) -> str:
        return self.redis_keys.entry(self.space, key)

    def _lease(self, key: bytes) -> str:
        return self._own("l", key)

    def _attempts(self, key: bytes) -> str:
        return self._own("tries", key)

    def _own(self, kind: str, key: bytes) -> str:
        redis_keys = self.redis_keys
        return redis_keys.redis_key(kind, self.space.value, redis_keys.storage_key(key).hex())


def _read_published(reply: Any) -> PublishStatus:
    return PublishStatus(reply.decode())


def fresh_incarnation() -> str:
    """A name for a life of the epoch table, if one must begin."""
    return os.urandom(16).hex()


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
