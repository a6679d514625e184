"""The names of all keys of a namespace; `kernelfarm.cache` tells what lies under each.

A namespace is FARM, or FARM/TENANT for the part of one tenant. Tenants of a farm share its epoch
table, toolchains and workers; entries, blobs, leases and counts are each one's own.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from dataclasses import dataclass
from functools import cached_property

from kernelfarm.errors import CallerError
from kernelfarm.signing import Space

_NAMESPACE = re.compile(r"[^{}/\s]{1,200}(/[a-z0-9][a-z0-9-]{0,62})?")


def tenant_namespace(farm: str, tenant: str) -> str:
    """The namespace of a tenant's part; the farm's own without a tenant."""
    return f"{farm}/{tenant}" if tenant else farm


def tenant_of(namespace: str) -> str:
    """The tenant whose part a namespace is; empty for the farm's own."""
    return namespace.partition("/")[2]


def check_namespace(namespace: str, farm: str) -> str:
    """A namespace, if it is the farm's or one of its tenants'.

    Raises:
        CallerError: it is another farm's, or none.
    """
    if not _NAMESPACE.fullmatch(namespace) or namespace.partition("/")[0] != farm:
        raise CallerError(
            f"namespace {namespace[:80]!r}; expected {farm!r} or {farm + '/TENANT'!r}"
        )
    return namespace


@dataclass(frozen=True)
class RedisKeys:
    """Key names; the braces are Redis's hash tag: a farm's keys live in one slot.

    With a salt, entries lie where only the salt's owner can tell: at the HMAC of their key.
    """

    namespace: str
    salt: bytes = b""

    def redis_key(self, *parts: str) -> str:
        """A key of this namespace."""
        farm, _, tenant = self.namespace.partition("/")
        own = ("t", tenant) if tenant else ()
        return ":".join((f"kf:{{{farm}}}", *own, *parts))

    def farm_key(self, *parts: str) -> str:
        """A key that all tenants of the farm share."""
        return ":".join((f"kf:{{{self.namespace.partition('/')[0]}}}", *parts))

    def storage_key(self, key: bytes) -> bytes:
        """Where the entry, lease and failure of a key lie."""
        return hmac.digest(self.salt, key, hashlib.sha256) if self.salt else key

    @cached_property
    def stats(self) -> str:
        """The hash of counters."""
        return self.redis_key("stats")

    @cached_property
    def epochs(self) -> str:
        """The epoch table."""
        return self.farm_key("ep")

    @cached_property
    def invalidation_log(self) -> str:
        """The stream of invalidations."""
        return self.farm_key("inv")

    @property
    def gateways(self) -> str:
        """How far each gateway has obeyed the announcements."""
        return self.farm_key("gw")

    @cached_property
    def toolchains(self) -> str:
        """When each toolchain was reported last."""
        return self.farm_key("tc")

    @property
    def usage(self) -> str:
        """What the last sweep counted."""
        return self.redis_key("usage")

    @property
    def quota_usage(self) -> str:
        """What the namespace holds, kept up by publications: bytes and entries."""
        return self.redis_key("quota")

    @property
    def sizes(self) -> str:
        """The stored size of each blob that is counted there."""
        return self.redis_key("sizes")

    @property
    def models(self) -> str:
        """The models that the namespace's callers have named."""
        return self.redis_key("models")

    @property
    def compiles(self) -> str:
        """The compilations in flight, by the end of their time."""
        return self.redis_key("compiles")

    @cached_property
    def blobs(self) -> str:
        """What the keys of blobs begin with."""
        return self.redis_key("b", "")

    def blob(self, sha256: bytes) -> str:
        """Where a blob, or its number of chunks, lies."""
        return self.redis_key("b", sha256.hex())

    def failures(self, space: Space) -> str:
        """The failures that a space remembers, by the end of their time."""
        return self.redis_key("neg", space.value, "index")

    def entry(self, space: Space, key: bytes) -> str:
        """Where a key's variants lie."""
        return self.redis_key("m", space.value, self.storage_key(key).hex())
