"""Every operation on the store as a value: script, keys, arguments, and how to read the reply.

The asyncio and the blocking face run the same calls, so that they cannot drift apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any, Generic, TypeVar

from kernelfarm.cache.records import Lease, Published, Space, Variant, facts_to_json
from kernelfarm.errors import ErrorFacts

T = TypeVar("T")

DAY_S = 24 * 3600

# Results are found again for a month after their last use; blobs outlive every manifest.
MANIFEST_TTL_S = 30 * DAY_S
BLOB_TTL_S = MANIFEST_TTL_S + DAY_S
ATTEMPTS_TTL_S = 3600
JOB_TTL_S = DAY_S
REPORT_TTL_S = 30

# These scripts begin with the shared functions on blobs.
_WITH_BLOBS = frozenset({"lookup", "publish"})

Value = str | bytes | int | float


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One script to run, and what makes its reply a result."""

    script: str
    keys: tuple[str, ...]
    args: tuple[Value, ...]
    read: Callable[[Any], T]


@lru_cache(maxsize=32)
def script_source(name: str) -> str:
    """The Lua text of a script."""
    folder = resources.files("kernelfarm.cache") / "lua"
    source = (folder / f"{name}.lua").read_text(encoding="utf-8")
    if name in _WITH_BLOBS:
        return (folder / "blobs.lua").read_text(encoding="utf-8") + source
    return source


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of one key space within one namespace."""

    namespace: str
    space: Space

    def name(self, *parts: str) -> str:
        """A key of this namespace."""
        return ":".join((f"kf:{{{self.namespace}}}", *parts))

    @property
    def channel(self) -> str:
        """The pub/sub channel that tells of finished keys."""
        return self.name("done")

    @property
    def stats_key(self) -> str:
        """The hash of counters."""
        return self.name("stats")

    def blob_key(self, sha256: bytes) -> str:
        """Where a blob, or its number of chunks, lies."""
        return self.name("b", sha256.hex())

    def failure_key(self, key: bytes) -> str:
        """Where a key's failure lies."""
        return self.name("neg", self.space.value, key.hex())

    def job_key(self, key: bytes) -> str:
        """Where a key's job lies."""
        return self.name("j", key.hex())

    def message(self, key: bytes) -> str:
        """What the channel says when this key is finished."""
        return f"{self.space.value}:{key.hex()}"

    def counter(self, name: str = "") -> str:
        """A counter's field within the stats."""
        return f"{self.space.value}.{name}"

    def lookup(self, key: bytes, is_counted: bool) -> Call[list[bytes] | None]:
        """See `KernelCache.lookup`."""
        return Call(
            "lookup",
            (self._manifest(key), self.stats_key),
            (
                self.name("b", ""),
                MANIFEST_TTL_S,
                BLOB_TTL_S,
                self.counter(),
                int(is_counted),
            ),
            lambda reply: reply,
        )

    def acquire(self, key: bytes, owner: str, ttl_s: float, is_queued: bool) -> Call[Lease | None]:
        """See `KernelCache.acquire`."""

        def read(reply: Any) -> Lease | None:
            return Lease(key, owner, int(reply[0]), ttl_s, int(reply[1])) if reply else None

        return Call(
            "acquire",
            (
                self._lease(key),
                self._manifest(key),
                self._attempts(key),
                self.name("fence"),
                self.stats_key,
            ),
            (
                owner,
                _ms(ttl_s),
                "queued" if is_queued else "running",
                time.time_ns() // 1_000_000,
                self.counter(),
                ATTEMPTS_TTL_S,
            ),
            read,
        )

    def adopt(self, lease: Lease) -> Call[bytes | None]:
        """See `WorkerCache.adopt`."""
        key = lease.key
        return Call(
            "adopt",
            (self._lease(key), self._attempts(key), self.job_key(key)),
            (lease.fence, lease.owner, _ms(lease.ttl_s), ATTEMPTS_TTL_S),
            lambda reply: reply,
        )

    def renew(self, lease: Lease) -> Call[bool]:
        """See `KernelCache.renew`."""
        args = (lease.fence, lease.owner, _ms(lease.ttl_s))
        return Call("renew", (self._lease(lease.key),), args, bool)

    def release(self, lease: Lease) -> Call[bool]:
        """See `KernelCache.release`."""
        return Call(
            "release",
            (self._lease(lease.key), self._attempts(lease.key)),
            (lease.fence, lease.owner, self.channel, self.message(lease.key)),
            bool,
        )

    def publish(self, lease: Lease, variants: Sequence[Variant]) -> Call[Published]:
        """See `KernelCache.publish`."""
        if not variants:
            raise ValueError("a result has at least one variant")
        key = lease.key
        digests = sorted({blob.hex() for variant in variants for blob in variant.blobs})
        return Call(
            "publish",
            (
                self._manifest(key),
                self._lease(key),
                self._attempts(key),
                self.job_key(key),
                self.failure_key(key),
                self.stats_key,
            ),
            (
                lease.fence,
                self.name("b", ""),
                MANIFEST_TTL_S,
                BLOB_TTL_S,
                self.counter(),
                self.channel,
                self.message(key),
                " ".join(digests),
                *(variant.payload for variant in variants),
            ),
            lambda reply: Published(reply.decode()),
        )

    def fail(
        self, key: bytes, facts: ErrorFacts, ttl_s: float, lease: Lease | None
    ) -> Call[Published]:
        """See `KernelCache.put_failure`."""
        if ttl_s <= 0:
            raise ValueError(f"a failure must expire; ttl_s is {ttl_s}")
        return Call(
            "fail",
            (self.failure_key(key), self._lease(key), self._attempts(key), self.stats_key),
            (
                facts_to_json(facts),
                _ms(ttl_s),
                lease.fence if lease else "",
                self.counter(),
                self.channel,
                self.message(key),
            ),
            lambda reply: Published(reply.decode()),
        )

    def pending(self, key: bytes) -> Call[float]:
        """Seconds until the key's lease lapses; negative if there is nothing to wait for."""
        keys = (self._manifest(key), self.failure_key(key), self._lease(key))
        return Call("pending", keys, (), lambda reply: reply / 1e3)

    def _manifest(self, key: bytes) -> str:
        return self.name("m", self.space.value, key.hex())

    def _lease(self, key: bytes) -> str:
        return self.name("l", self.space.value, key.hex())

    def _attempts(self, key: bytes) -> str:
        return self.name("a", self.space.value, key.hex())


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1e3))
