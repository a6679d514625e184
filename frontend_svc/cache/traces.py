"""Traces of one part of the cache: found by the digest of a graph, published by who may sign them.

Not kept in a gateway's memory: a client asks for each of its graphs once in its life.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from frontend_svc.cache.explain_miss import MissExplanation, explain_miss
from frontend_svc.cache.tiered_programs import Caller
from kernelfarm.cache import KernelCache, LookupResult, SigningPolicy, StoredVariant
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.cache.trace_cache import PutTraceStatus, put_trace
from kernelfarm.digest import DIGEST_BYTES, trace_digest
from kernelfarm.errors import CallerError, MalformedMessageError, UnavailableError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space
from kernelfarm.signing.tags import check_tag
from kernelfarm.v1 import trace_service_pb2 as api


def trace_signing(signing: SigningPolicy) -> SigningPolicy:
    """Whose traces a frontend takes: those of the public keys for traces that it knows.

    A farm that signs nothing knows none.
    """
    return SigningPolicy(
        keyring=signing.keyring or Keyring(()), verified_bytes=signing.verified_bytes
    )


@dataclass(frozen=True, slots=True)
class Traces:
    """One part's traces; those of `shared`, a part that others fill, are found too."""

    cache: KernelCache
    signing: SigningPolicy
    shared: KernelCache | None = None

    async def find(
        self, digest: bytes, tags: Sequence[str], *, is_counted: bool = True
    ) -> LookupResult:
        """The live trace of a digest, or why this part has none.

        Raises:
            UnavailableError: the store does not answer.
        """
        found = await self.cache.lookup(digest, tags=tags, is_counted=is_counted)
        if found.is_hit or self.shared is None:
            return found
        theirs = await self.shared.lookup(digest, tags=tags, is_counted=is_counted)
        if not theirs.is_hit:
            return found
        if is_counted:
            await self.cache.count("shared_hits")
        return theirs

    async def explain(
        self, digest: bytes, parts: dict[str, str] | None, caller: Caller
    ) -> MissExplanation:
        """Why no trace of a digest is found here; `parts` are what it is over, if they are known.

        Raises:
            UnavailableError: the store does not answer.
        """
        explanation = await explain_miss(self.cache, _index(self.cache), digest, parts, caller)
        if self.shared is None or explanation.reason == "found":
            return explanation
        theirs = await explain_miss(self.shared, _index(self.shared), digest, parts, caller)
        # What lies nearest is told of: an entry of this digest, then one beside it.
        is_nearer = explanation.reason == "key" and (
            theirs.reason != "key" or not explanation.nearest_key
        )
        return theirs if theirs.reason == "found" or is_nearer else explanation

    async def put(
        self, stored: StoredVariant, parts: Mapping[str, str], expected_tags: Sequence[str]
    ) -> PutTraceStatus:
        """Keeps a trace that was signed for this part, and what its digest is over.

        Raises:
            CallerError: its manifest is none of a trace of this part, its content is no trace, or
                the digest is not over these parts.
            IntegrityError: nobody whom this farm lets sign traces made it for this part.
            UnavailableError: the store does not answer.
        """
        manifest = stored.manifest
        _check_form(manifest, expected_tags)
        self.signing.check(CacheAddress(self.cache.namespace, Space.TRACES, manifest.key), stored)
        trace_of(stored.content)
        if parts and trace_digest(parts) != manifest.key:
            raise CallerError(
                f"parts that give {trace_digest(parts).hex()}; expected {manifest.key.hex()}"
            )
        # What lies there and is not believed any more is dropped by being looked at.
        await self.cache.lookup(manifest.key, is_counted=False)
        outcome = await put_trace(
            self.cache.client, self.cache.redis_keys, manifest, stored.content
        )
        if parts and outcome in (PutTraceStatus.OK, PutTraceStatus.PRESENT):
            with suppress(UnavailableError):  # an explanation is not worth a failure
                await _index(self.cache).add(manifest.key, parts)
        return outcome


def _index(cache: KernelCache) -> KeyIndex:
    return KeyIndex(cache.client, cache.redis_keys, Space.TRACES)


def trace_of(content: bytes) -> api.Trace:
    """The trace that a content is; its entry is opaque to the farm.

    Raises:
        MalformedMessageError: it is none.
    """
    try:
        trace = api.Trace.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are no trace") from error
    if len(trace.program_key) != DIGEST_BYTES or not trace.entry:
        raise MalformedMessageError(
            f"a trace of {len(trace.entry)} bytes with a program key of {len(trace.program_key)};"
            f" expected some and {DIGEST_BYTES}"
        )
    return trace


def _check_form(manifest: Manifest, expected_tags: Sequence[str]) -> None:
    if manifest.space is not Space.TRACES or manifest.guard or manifest.blobs:
        raise CallerError(
            f"a manifest of {manifest.space.name.lower()} with {len(manifest.guard)} conditions and"
            f" {len(manifest.blobs)} blobs; expected one of traces with neither"
        )
    for tag in manifest.tags:
        check_tag(tag)
    missing = sorted(set(expected_tags).difference(manifest.tags))
    if missing:
        raise CallerError(f"a trace without the tags {', '.join(missing)}; expected them")
