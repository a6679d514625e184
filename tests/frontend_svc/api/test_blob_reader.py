"""Blobs are sent in chunks, and use no more memory than the budget allows."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from frontend_svc.api.blob_reader import MAX_CHUNK_BYTES, read_blobs
from frontend_svc.api.byte_budget import ByteBudget
from frontend_svc.cache.gateway_tier import GatewayTier
from frontend_svc.cache.tiered_programs import TieredProgramCache
from kernelfarm.cache import KernelCache, SigningPolicy, Space
from kernelfarm.cache.embedded import ServerRole, start_server
from kernelfarm.errors import FarmFullError, NotFoundError

SMALL, LARGE = b"small", bytes(range(256)) * (MAX_CHUNK_BYTES // 256) + b"rest"


def digest_of(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


@pytest.fixture
async def programs() -> AsyncIterator[TieredProgramCache]:
    """The programs of a gateway over a store with two blobs."""
    server = start_server(ServerRole.CACHE)
    cache = KernelCache(server.url, space=Space.PROGRAMS)
    await cache.put_blobs({digest_of(blob): blob for blob in (SMALL, LARGE)})
    yield TieredProgramCache(cache, GatewayTier(1_000_000, 60), SigningPolicy())
    await cache.close()
    server.stop()


async def test_a_large_blob_comes_in_chunks(programs: TieredProgramCache) -> None:
    budget = ByteBudget(1, "blobs")  # a single blob is always sent
    digests = (digest_of(LARGE), digest_of(SMALL))
    chunks = [chunk async for chunk in read_blobs(programs, digests, budget)]
    assert [(c.index, c.offset_bytes, c.is_last) for c in chunks] == [
        (0, 0, False),
        (0, MAX_CHUNK_BYTES, True),
        (1, 0, True),
    ]
    assert b"".join(c.data for c in chunks) == LARGE + SMALL
    assert budget.held_bytes == 0


async def test_while_a_client_reads_a_blob_slowly_others_must_retry(
    programs: TieredProgramCache,
) -> None:
    budget = ByteBudget(len(LARGE), "blobs")
    slow = read_blobs(programs, (digest_of(LARGE),), budget)
    assert not (await anext(slow)).is_last
    with pytest.raises(FarmFullError, match=f"blobs of {len(LARGE)} bytes") as refused:
        await anext(read_blobs(programs, (digest_of(SMALL),), budget))
    assert refused.value.retry_after_s is not None
    await slow.aclose()  # the client left
    async with aclosing(read_blobs(programs, (digest_of(SMALL),), budget)) as again:
        assert [chunk.data async for chunk in again] == [SMALL]
    assert budget.held_bytes == 0


async def test_a_blob_that_is_not_stored_is_not_found(programs: TieredProgramCache) -> None:
    with pytest.raises(NotFoundError, match="compile the program again"):
        await anext(read_blobs(programs, (bytes(32),), ByteBudget(1, "blobs")))
