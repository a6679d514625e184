"""Traces of one namespace over a real server: a trace that is published between two steps."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator

import pytest

from frontend_svc.cache.traces import Traces, trace_signing
from kernelfarm.cache import KernelCache, SigningPolicy, Space, StoredVariant
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.cache.trace_cache import PutTraceStatus
from kernelfarm.signing import Keyring, Manifest, new_signer, variant_id
from kernelfarm.signing.manifest import blob_ref
from kernelfarm.v1 import trace_service_pb2 as api
from kernelfarm.wire.manifest import manifest_to_bytes

_DIGEST, _CONTENT = b"d" * 32, api.Trace(program_key=b"p" * 32, entry=b"e").SerializeToString()
_SIGNER = new_signer(Space.TRACES)
_LONG_MS = 60_000


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    started = start_server(ServerRole.CACHE)
    yield started
    started.stop()


@pytest.fixture
async def traces(server: EmbeddedServer) -> AsyncIterator[Traces]:
    signing = trace_signing(SigningPolicy(keyring=Keyring((_SIGNER.trusted,))))
    async with KernelCache(server.url, space=Space.TRACES, signing=signing) as cache:
        yield Traces(cache, signing)


async def published(traces: Traces) -> PutTraceStatus:
    now = await traces.find(_DIGEST, ())
    manifest = Manifest(
        namespace=traces.cache.namespace,
        space=Space.TRACES,
        key=_DIGEST,
        variant_id=variant_id(()),
        guard=(),
        tags=("pass:test",),
        epoch=now.epoch,
        incarnation=now.incarnation,
        content=blob_ref(_CONTENT),
        blobs=(),
        cost_ms=0.0,
        not_after_s=int(time.time()) + 600,
    )
    signed = manifest_to_bytes(_SIGNER.sign(manifest))
    return await traces.put(StoredVariant(signed, _CONTENT), {}, ())


async def test_a_trace_that_was_published_after_the_look_up_is_no_claim(traces: Traces) -> None:
    assert not (await traces.find(_DIGEST, ())).is_hit
    assert (await traces.find_or_claim(_DIGEST, (), b"a" * 16, _LONG_MS)).found is None
    # Another caller looks up and finds nothing; then the trace is published.
    assert await published(traces) is PutTraceStatus.OK
    late = await traces.find_or_claim(_DIGEST, (), b"b" * 16, _LONG_MS)
    assert late.found is not None
    assert (late.found.is_hit, late.in_flight_ms) == (True, 0)
    # The late caller keeps no claim, for which the next one would have to wait.
    assert (await traces.find_or_claim(_DIGEST, (), b"c" * 16, 0)).in_flight_ms == 0
    assert (await traces.cache.stats())["claims"] == 1
