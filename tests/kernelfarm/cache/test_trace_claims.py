"""The claims of one namespace: their number, and what a full server leaves of them."""

from __future__ import annotations

import asyncio

import redis

from kernelfarm.cache.edge_cache import EdgeCache
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.trace_claims import MAX_CLAIMS, TraceClaims

LONG_MS = 600_000


def digest(number: int) -> bytes:
    return number.to_bytes(32, "big")


async def test_the_number_of_claims_is_limited(cache: EdgeCache, server: EmbeddedServer) -> None:
    claims = TraceClaims(cache.client, cache.redis_keys)
    for number in range(MAX_CLAIMS):
        assert await claims.claim(digest(number), b"a", LONG_MS) == 0
    one_more = digest(MAX_CLAIMS)
    assert await claims.claim(one_more, b"a", LONG_MS) == 0
    assert await claims.claim(one_more, b"b", LONG_MS) == 0, "neither has a claim"
    assert await claims.claim(digest(0), b"a", LONG_MS) == 0, "its own is extended"
    assert await claims.claim(digest(0), b"b", LONG_MS) > 0
    with redis.Redis.from_url(server.url) as raw:
        keys = (cache.redis_keys.trace_claims, cache.redis_keys.trace_claimants)
        assert [raw.ttl(key) for key in keys] == [-1, -1], "the policy would evict them"
        await claims.end(digest(0))
        assert await claims.claim(one_more, b"b", LONG_MS) == 0
        assert await claims.claim(one_more, b"c", LONG_MS) > 0
        assert [raw.zcard(keys[0]), raw.hlen(keys[1])] == [MAX_CLAIMS, MAX_CLAIMS]
    for number in range(MAX_CLAIMS + 1):
        await claims.end(digest(number))


async def test_claims_that_have_ended_leave_nothing(
    cache: EdgeCache, server: EmbeddedServer
) -> None:
    claims = TraceClaims(cache.client, cache.redis_keys)
    for number in range(10):
        await claims.claim(digest(number), b"a", 1)
    await asyncio.sleep(0.1)
    assert await claims.claim(digest(0), b"b", LONG_MS) == 0
    with redis.Redis.from_url(server.url) as raw:
        assert raw.hkeys(cache.redis_keys.trace_claimants) == [digest(0).hex().encode()]
        assert raw.zcard(cache.redis_keys.trace_claims) == 1
