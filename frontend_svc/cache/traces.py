"""Traces of one namespace: found by the digest of a graph, published by clients that may sign them.

Traces are not cached in memory: a client process looks each of its graphs up once.
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
from kernelfarm.cache.trace_claims import TraceClaims
from kernelfarm.digest import DIGEST_BYTES, trace_digest
from kernelfarm.errors import CallerError, MalformedMessageError, UnavailableError
from kernelfarm.signing import CacheAddress, Keyring, Manifest, Space
from kernelfarm.signing.tags import check_tag
from kernelfarm.v1 import trace_service_pb2 as api


def trace_signing(signing: SigningPolicy) -> SigningPolicy:
    """The signing policy for traces: a frontend accepts traces of the public keys for traces.

    A farm that signs nothing has no such key.
    """
    return SigningPolicy(
        keyring=signing.keyring or Keyring(()), verified_bytes=signing.verified_bytes
    )


@dataclass(frozen=True, slots=True)
class TraceClaimed:
    """What became of a claim: the trace, which is there meanwhile, or who makes it.

    `in_flight_ms` are the milliseconds that another claimant may still take; 0: the caller need not
    wait.
    """

    in_flight_ms: int
    found: LookupResult | None = None


@dataclass(frozen=True, slots=True)
class Traces:
    """The traces of one namespace; those of the shared namespace (`shared`) are found too."""

    cache: KernelCache
    signing: SigningPolicy
    shared: KernelCache | None = None

    async def find(
        self, digest: bytes, tags: Sequence[str], *, is_counted: bool = True
    ) -> LookupResult:
        """The live trace of a digest, or why this namespace has none.

        Raises:
            UnavailableError: the store does not answer.
        """
        found = await self.cache.lookup(digest, tags=tags, is_counted=is_counted)
        if found.is_hit or self.shared is None:
            return found
        shared = await self.shared.lookup(digest, tags=tags, is_counted=is_counted)
        if not shared.is_hit:
            return found
        if is_counted:
            await self.cache.count("shared_hits")
        return shared

    async def find_or_claim(
        self, digest: bytes, tags: Sequence[str], claimant: bytes, duration_ms: int
    ) -> TraceClaimed:
        """Claims the making of a trace that a look-up did not find; `duration_ms` may be 0.

        Raises:
            UnavailableError: the store does not answer.
        """
        in_flight_ms = await self._claims.claim(digest, claimant, duration_ms)
        if in_flight_ms or not duration_ms:
            return TraceClaimed(in_flight_ms)
        # Who had the claim may have published since the look-up.
        found = await self.find(digest, tags, is_counted=False)
        if found.is_hit:
            await self._claims.end(digest)
            return TraceClaimed(0, found)
        await self.cache.count("claims")
        return TraceClaimed(0)

    async def explain(
        self, digest: bytes, parts: dict[str, str] | None, caller: Caller
    ) -> MissExplanation:
        """Why no trace of a digest is found; `parts` are those of the digest, if they are known.

        Raises:
            UnavailableError: the store does not answer.
        """
        explanation = await explain_miss(self.cache, _index(self.cache), digest, parts, caller)
        if self.shared is None or explanation.reason == "found":
            return explanation
        shared = await explain_miss(self.shared, _index(self.shared), digest, parts, caller)
        # Report the nearest entry: one of this digest before one of another digest.
        is_nearer = explanation.reason == "key" and (
            shared.reason != "key" or not explanation.nearest_key
        )
        return shared if shared.reason == "found" or is_nearer else explanation

    async def put(
        self, stored: StoredVariant, parts: Mapping[str, str], expected_tags: Sequence[str]
    ) -> PutTraceStatus:
        """Stores a trace that was signed for this namespace, and the parts of its digest.

        Raises:
            CallerError: the manifest is not that of a trace of this namespace, the content is no
                trace, or the digest does not match the parts.
            IntegrityError: no trusted key for traces signed the trace for this namespace.
            UnavailableError: the store does not answer.
        """
        manifest = stored.manifest
        _check_form(manifest, expected_tags)
        self.signing.check(CacheAddress(self.cache.namespace, Space.TRACES, manifest.key), stored)
        trace_of(stored.content)
        if parts and trace_digest(parts) != manifest.key:
            raise CallerError(
                f"the parts have digest {trace_digest(parts).hex()}; expected {manifest.key.hex()}"
            )
        # The look-up drops a stored trace that is not trusted any more.
        await self.cache.lookup(manifest.key, is_counted=False)
        outcome = await put_trace(
            self.cache.client, self.cache.redis_keys, manifest, stored.content
        )
        if outcome in (PutTraceStatus.OK, PutTraceStatus.PRESENT):
            with suppress(UnavailableError):  # claims end by themselves
                await self._claims.end(manifest.key)
            if parts:
                with suppress(UnavailableError):  # the index serves explanations only
                    await _index(self.cache).add(manifest.key, parts)
        return outcome

    @property
    def _claims(self) -> TraceClaims:
        return TraceClaims(self.cache.client, self.cache.redis_keys)


def _index(cache: KernelCache) -> KeyIndex:
    return KeyIndex(cache.client, cache.redis_keys, Space.TRACES)


def trace_of(content: bytes) -> api.Trace:
    """The trace of a variant's content; its entry is opaque to the farm.

    Raises:
        MalformedMessageError: the content is no trace.
    """
    try:
        trace = api.Trace.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(
            f"{len(content)} bytes that are no kernelfarm.v1.Trace message"
        ) from error
    if len(trace.program_key) != DIGEST_BYTES or not trace.entry:
        raise MalformedMessageError(
            f"a trace with an entry of {len(trace.entry)} bytes and a program key of"
            f" {len(trace.program_key)}; expected at least 1 and {DIGEST_BYTES}"
        )
    return trace


def _check_form(manifest: Manifest, expected_tags: Sequence[str]) -> None:
    if manifest.space is not Space.TRACES or manifest.guard or manifest.blobs:
        raise CallerError(
            f"a manifest of {manifest.space.name.lower()} with {len(manifest.guard)} conditions and"
            f" {len(manifest.blobs)} blobs; expected a manifest of traces without either"
        )
    for tag in manifest.tags:
        check_tag(tag)
    missing = sorted(set(expected_tags).difference(manifest.tags))
    if missing:
        raise CallerError(f"a trace without the tags {', '.join(missing)}; expected all of them")
