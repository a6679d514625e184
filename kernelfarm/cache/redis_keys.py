"""The names of all Redis keys of a namespace; `kernelfarm.cache` describes their contents.

A namespace is FARM, or FARM/TENANT for the entries of one tenant. The tenants of a farm share its
epoch table, toolchains and workers. Entries, blobs, leases and counters belong to one namespace.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from functools import cached_property
from typing import NewType

from kernelfarm.errors import CallerError
from kernelfarm.signing import Space

RedisKey = NewType("RedisKey", str)
"""The name of a Redis key."""

_NAMESPACE = re.compile(r"[^{}/\s]{1,200}(/[a-z0-9][a-z0-9-]{0,62})?")


def tenant_namespace(farm: str, tenant: str) -> str:
    """The namespace of a tenant; the farm's own namespace if the tenant is empty."""
    return f"{farm}/{tenant}" if tenant else farm


def tenant_of(namespace: str) -> str:
    """The tenant of a namespace; empty for a farm's own namespace."""
    return namespace.partition("/")[2]


def check_namespace(namespace: str, farm: str) -> str:
    """Returns a namespace that belongs to the farm or to one of its tenants.

    Raises:
        CallerError: the namespace belongs to another farm, or is malformed.
    """
    if not _NAMESPACE.fullmatch(namespace) or namespace.partition("/")[0] != farm:
        raise CallerError(
            f"namespace {namespace[:80]!r}; expected {farm!r} or {farm + '/TENANT'!r}"
        )
    return namespace


@dataclass(frozen=True)
class RedisKeys:
    """Key names; the braces are Redis's hash tag, so that all keys of a farm are on one server.

    With a salt, entries are stored under the HMAC of their key, which only the salt's owner can
    compute.
    """

    namespace: str
    salt: bytes = b""

    def redis_key(self, *parts: str) -> RedisKey:
        """A key of this namespace."""
        farm, _, tenant = self.namespace.partition("/")
        own = ("t", tenant) if tenant else ()
        return RedisKey(":".join((f"kf:{{{farm}}}", *own, *parts)))

    def farm_key(self, *parts: str) -> RedisKey:
        """A key that all tenants of the farm share."""
        return RedisKey(":".join((f"kf:{{{self.namespace.partition('/')[0]}}}", *parts)))

    def storage_key(self, key: bytes) -> bytes:
        """The key under which Redis stores the entry, lease and failure of a key."""
        return hmac.digest(self.salt, key, hashlib.sha256) if self.salt else key

    @cached_property
    def stats(self) -> RedisKey:
        """The counters."""
        return self.redis_key("stats")

    @cached_property
    def epochs(self) -> RedisKey:
        """The epoch table."""
        return self.farm_key("ep")

    @cached_property
    def invalidation_log(self) -> RedisKey:
        """The stream of invalidations."""
        return self.farm_key("inv")

    @property
    def gateways(self) -> RedisKey:
        """The epoch up to which each gateway has applied invalidations."""
        return self.farm_key("gw")

    @cached_property
    def toolchains(self) -> RedisKey:
        """The time of each toolchain's last report."""
        return self.farm_key("tc")

    @property
    def fence_counter(self) -> RedisKey:
        """The last fence of a lease."""
        return self.farm_key("fence")

    @property
    def channel(self) -> str:
        """The pub/sub channel for keys that were published, failed or released, of all tenants."""
        return self.farm_key("done")

    @property
    def workers(self) -> RedisKey:
        """The names of the workers that reported."""
        return self.farm_key("workers")

    def worker_report(self, worker: str) -> RedisKey:
        """A worker's report."""
        return self.farm_key("w", worker)

    @property
    def queues(self) -> RedisKey:
        """What each edge reports of its queues."""
        return self.farm_key("queues")

    @property
    def usage(self) -> RedisKey:
        """What the last sweep counted."""
        return self.redis_key("usage")

    @property
    def sweep_lock(self) -> RedisKey:
        """The lock of the sweep that runs."""
        return self.redis_key("sweep")

    @property
    def quota_usage(self) -> RedisKey:
        """The bytes and entries that the namespace holds, updated by each publication."""
        return self.redis_key("quota")

    @property
    def sizes(self) -> RedisKey:
        """The stored size of each blob that `quota_usage` counts."""
        return self.redis_key("sizes")

    @property
    def models(self) -> RedisKey:
        """The models that the namespace's callers have named."""
        return self.redis_key("models")

    @property
    def compiles(self) -> RedisKey:
        """The compilations in flight, by the time at which they expire."""
        return self.redis_key("compiles")

    @property
    def trace_claims(self) -> RedisKey:
        """The traces that some process makes, by the time at which its claim ends."""
        return self.redis_key("claims")

    @property
    def trace_claimants(self) -> RedisKey:
        """The process that makes each of `trace_claims`."""
        return self.redis_key("claimants")

    @cached_property
    def blob_prefix(self) -> str:
        """The beginning of the keys of blobs."""
        return self.redis_key("b", "")

    def blob(self, sha256: bytes) -> RedisKey:
        """A blob, or the number of its chunks."""
        return self.redis_key("b", sha256.hex())

    def entry_prefix(self, space: Space) -> str:
        """The beginning of the keys of a space's entries."""
        return self.redis_key("m", space.value, "")

    def entry(self, space: Space, key: bytes) -> RedisKey:
        """The variants of a key."""
        return self._of_key("m", space, key)

    def lease(self, space: Space, key: bytes) -> RedisKey:
        """The lease of a key."""
        return self._of_key("l", space, key)

    def attempts(self, space: Space, key: bytes) -> RedisKey:
        """The attempts on a key whose holders have not ended in an orderly way."""
        return self._of_key("tries", space, key)

    def slow(self, space: Space, key: bytes) -> RedisKey:
        """The mark of a key whose compilation takes long."""
        return self._of_key("slow", space, key)

    def failure(self, space: Space, key: bytes) -> RedisKey:
        """The failure of a key."""
        return self._of_key("neg", space, key)

    def failure_prefix(self, space: Space) -> str:
        """The beginning of the keys of a space's failures."""
        return self.redis_key("neg", space.value, "")

    def failures(self, space: Space) -> RedisKey:
        """The index of a space's failures, by the time at which they expire."""
        return self.redis_key("neg", space.value, "index")

    def job(self, key: bytes) -> RedisKey:
        """The input of a kernel job."""
        return self.redis_key("j", self.storage_key(key).hex())

    def tuning(self, digest: bytes) -> RedisKey:
        """The reports on a tuning subject."""
        return self.redis_key("tune", self.storage_key(digest).hex())

    @property
    def tuning_index(self) -> RedisKey:
        """The tuning subjects with reports, by the time of their last use."""
        return self.redis_key("tune")

    def _of_key(self, kind: str, space: Space, key: bytes) -> RedisKey:
        return self.redis_key(kind, space.value, self.storage_key(key).hex())
