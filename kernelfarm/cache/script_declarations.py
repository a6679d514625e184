"""The Lua scripts of the cache, with the names and types of their keys and arguments.

Each class lists the KEYS of a script (`RedisKey`), then its ARGV, in the order of the script's
first statements. The script describes them. A test compares the names.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from kernelfarm.cache.lua_script import Script
from kernelfarm.cache.redis_keys import RedisKey

_BLOBS = ("blobs",)
_EPOCH_TABLE = ("epoch_table",)
_ENTRIES = (*_BLOBS, *_EPOCH_TABLE, "entries")
_ATTEMPTS = ("attempts",)


class Lookup(NamedTuple):
    """Parameters of `lookup.lua`."""

    entry: RedisKey
    stats: RedisKey
    epochs: RedisKey
    invalidation_log: RedisKey
    toolchains: RedisKey
    blob_prefix: str
    entry_ttl_s: int
    blob_ttl_s: int
    counter_prefix: str
    is_counted: int
    new_incarnation: str
    toolchain_window_ms: int
    tags: str
    may_write: int


class Acquire(NamedTuple):
    """Parameters of `acquire.lua`."""

    lease: RedisKey
    entry: RedisKey
    attempts: RedisKey
    fence_counter: RedisKey
    stats: RedisKey
    epochs: RedisKey
    invalidation_log: RedisKey
    toolchains: RedisKey
    owner: str
    ttl_ms: int
    state: str
    first_fence: int
    counter_prefix: str
    attempts_ttl_s: int
    new_incarnation: str
    seen_stamp: str
    tags: str
    blob_prefix: str
    toolchain_window_ms: int


class Adopt(NamedTuple):
    """Parameters of `adopt.lua`."""

    lease: RedisKey
    attempts: RedisKey
    job: RedisKey
    stats: RedisKey
    fence: int
    owner: str
    ttl_ms: int
    attempts_ttl_s: int
    counter_prefix: str


class Renew(NamedTuple):
    """Parameters of `renew.lua`."""

    lease: RedisKey
    fence: int
    owner: str
    ttl_ms: int


class Release(NamedTuple):
    """Parameters of `release.lua`."""

    lease: RedisKey
    attempts: RedisKey
    fence: int
    owner: str
    channel: str
    message: str


class Publish(NamedTuple):
    """Parameters of `publish.lua`; the fields of each `VariantRecord` follow them."""

    entry: RedisKey
    lease: RedisKey
    attempts: RedisKey
    job: RedisKey
    failure: RedisKey
    stats: RedisKey
    epochs: RedisKey
    invalidation_log: RedisKey
    toolchains: RedisKey
    quota: RedisKey
    sizes: RedisKey
    fence: int
    blob_prefix: str
    entry_ttl_s: int
    blob_ttl_s: int
    counter_prefix: str
    channel: str
    message: str
    new_incarnation: str
    toolchain_window_ms: int
    most_variants: int


class Fail(NamedTuple):
    """Parameters of `fail.lua`."""

    failure: RedisKey
    lease: RedisKey
    attempts: RedisKey
    stats: RedisKey
    job: RedisKey
    failure_index: RedisKey
    facts: str
    ttl_ms: int
    fence: int | str
    owner: str
    counter_prefix: str
    channel: str
    message: str
    is_transient: int
    failure_prefix: str
    storage_key: str
    most_failures: int


class Pending(NamedTuple):
    """Parameters of `pending.lua`."""

    entry: RedisKey
    failure: RedisKey
    lease: RedisKey
    seen_stamp: str


class Refresh(NamedTuple):
    """Parameters of `refresh.lua`."""

    entry: RedisKey
    variant_id: str
    old_manifest: bytes
    new_manifest: bytes
    not_after_s: int


class RemoveVariant(NamedTuple):
    """Parameters of `remove_variant.lua`."""

    entry: RedisKey
    stats: RedisKey
    variant_id: str
    manifest: bytes
    counter: str


class CopyBlobs(NamedTuple):
    """Parameters of `copy_blobs.lua`."""

    stats: RedisKey
    blob_prefix: str
    source_blob_prefix: str
    blob_ttl_s: int
    digests: str


class ReportMissingBlob(NamedTuple):
    """Parameters of `report_missing_blob.lua`."""

    sizes: RedisKey
    quota: RedisKey
    digest: str
    channel: str
    message: str


class PutTrace(NamedTuple):
    """Parameters of `put_trace.lua`."""

    entry: RedisKey
    stats: RedisKey
    epochs: RedisKey
    invalidation_log: RedisKey
    toolchains: RedisKey
    quota: RedisKey
    entry_ttl_s: int
    counter_prefix: str
    new_incarnation: str
    toolchain_window_ms: int
    variant_id: str
    incarnation: str
    epoch: int
    not_after_s: int
    tags: str
    manifest: bytes
    content: bytes


class Tuning(NamedTuple):
    """Parameters of `tuning.lua`."""

    record: RedisKey
    records: RedisKey
    record_ttl_s: int
    most_records: int
    most_reports: int
    measuring_ms: int
    wanted: int
    reporter: str
    times: bytes
    replaces: int


class Invalidate(NamedTuple):
    """Parameters of `invalidate.lua`."""

    epochs: RedisKey
    invalidation_log: RedisKey
    stats: RedisKey
    new_incarnation: str
    log_entries: int
    counter: str
    most_tags: int
    tags: str


class CurrentEpoch(NamedTuple):
    """Parameters of `epoch.lua`."""

    epochs: RedisKey
    invalidation_log: RedisKey
    gateways: RedisKey
    new_incarnation: str
    gateway: str
    applied: str


class ServerCheck(NamedTuple):
    """Parameters of `handshake.lua`."""

    epochs: RedisKey
    invalidation_log: RedisKey
    new_incarnation: str


class Advertise(NamedTuple):
    """Parameters of `advertise.lua`."""

    toolchains: RedisKey
    names: str


class StartCompile(NamedTuple):
    """Parameters of `start_compile.lua`."""

    compiles: RedisKey
    compile_id: str
    ttl_ms: int
    most: int


class ClaimTrace(NamedTuple):
    """Parameters of `claim_trace.lua`."""

    claims: RedisKey
    claimants: RedisKey
    digest: str
    claimant: bytes
    ttl_ms: int
    most: int


class Sweep(NamedTuple):
    """Parameters of `sweep.lua`."""

    entry: RedisKey
    epochs: RedisKey
    invalidation_log: RedisKey
    toolchains: RedisKey
    blob_prefix: str
    new_incarnation: str
    toolchain_window_ms: int


class Free(NamedTuple):
    """Parameters of `free.lua`."""

    blob: RedisKey
    most_ttl_s: int


class CountDependents(NamedTuple):
    """Parameters of `count_dependents.lua`, whose KEYS are any number of entries."""

    tags: str


LOOKUP = Script("lookup", Lookup, _ENTRIES)
ACQUIRE = Script("acquire", Acquire, (*_ENTRIES, *_ATTEMPTS))
ADOPT = Script("adopt", Adopt, _ATTEMPTS)
RENEW = Script("renew", Renew)
RELEASE = Script("release", Release, _ATTEMPTS)
PUBLISH = Script("publish", Publish, _ENTRIES)
FAIL = Script("fail", Fail, (*_EPOCH_TABLE, *_ATTEMPTS))
PENDING = Script("pending", Pending)
REFRESH = Script("refresh", Refresh)
REMOVE_VARIANT = Script("remove_variant", RemoveVariant, _ENTRIES)
COPY_BLOBS = Script("copy_blobs", CopyBlobs, _BLOBS)
REPORT_MISSING_BLOB = Script("report_missing_blob", ReportMissingBlob)
PUT_TRACE = Script("put_trace", PutTrace, _ENTRIES)
TUNING = Script("tuning", Tuning)
INVALIDATE = Script("invalidate", Invalidate, _EPOCH_TABLE)
EPOCH = Script("epoch", CurrentEpoch, _EPOCH_TABLE)
HANDSHAKE = Script("handshake", ServerCheck, _EPOCH_TABLE)
ADVERTISE = Script("advertise", Advertise, _EPOCH_TABLE)
START_COMPILE = Script("start_compile", StartCompile, _EPOCH_TABLE)
CLAIM_TRACE = Script("claim_trace", ClaimTrace, _EPOCH_TABLE)
SWEEP = Script("sweep", Sweep, _ENTRIES)
FREE = Script("free", Free)
COUNT_DEPENDENTS = Script("count_dependents", CountDependents)

SCRIPTS: dict[str, Script[Any]] = {
    script.name: script
    for script in (
        LOOKUP,
        ACQUIRE,
        ADOPT,
        RENEW,
        RELEASE,
        PUBLISH,
        FAIL,
        PENDING,
        REFRESH,
        REMOVE_VARIANT,
        COPY_BLOBS,
        REPORT_MISSING_BLOB,
        PUT_TRACE,
        TUNING,
        INVALIDATE,
        EPOCH,
        HANDSHAKE,
        ADVERTISE,
        START_COMPILE,
        CLAIM_TRACE,
        SWEEP,
        FREE,
        COUNT_DEPENDENTS,
    )
}
"""All scripts by name."""
