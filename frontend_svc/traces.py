"""Traces of one part of the cache: found by the digest of a graph, published by who may sign them.

Not kept in a gateway's memory: a client asks for each of its graphs once in its life.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from kernelfarm.cache import Found, KernelCache, StoredVariant, Trust
from kernelfarm.cache.tags import check_tag
from kernelfarm.cache.trace_cache import PutTrace, put_trace
from kernelfarm.errors import CallerError, MalformedMessageError
from kernelfarm.signing import Keyring, Manifest, Place, Space
from kernelfarm.v1 import trace_service_pb2 as api

DIGEST_BYTES = 32


def trace_trust(trust: Trust) -> Trust:
    """Whose traces a frontend takes: those of the public keys for traces that it knows.

    A farm that signs nothing knows none.
    """
    return Trust(keyring=trust.keyring or Keyring(()))


@dataclass(frozen=True, slots=True)
class Traces:
    """One part's traces; those of `shared`, a part that others fill, are found too."""

    cache: KernelCache
    trust: Trust
    shared: KernelCache | None = None

    async def find(self, digest: bytes, tags: Sequence[str]) -> Found:
        """The live trace of a digest, or why this part has none.

        Raises:
            UnavailableError: the store does not answer.
        """
        found = await self.cache.lookup(digest, tags=tags)
        if found.is_hit or self.shared is None:
            return found
        theirs = await self.shared.lookup(digest, tags=tags)
        if not theirs.is_hit:
            return found
        await self.cache.count("shared_hits")
        return theirs

    async def put(self, stored: StoredVariant, expected_tags: Sequence[str]) -> PutTrace:
        """Keeps a trace that was signed for this part.

        Raises:
            CallerError: its manifest is none of a trace of this part, or its content is no trace.
            IntegrityError: nobody whom this farm lets sign traces made it for this part.
            UnavailableError: the store does not answer.
        """
        manifest = stored.manifest
        _check_form(manifest, expected_tags)
        self.trust.check(Place(self.cache.namespace, Space.TRACES, manifest.key), stored)
        trace_of(stored.content)
        # What lies there and is not believed any more is dropped by being looked at.
        await self.cache.lookup(manifest.key, is_counted=False)
        return await put_trace(self.cache.client, self.cache.names, manifest, stored.content)


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
