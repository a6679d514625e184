"""Recorded failures: limited in size and number, and counted in quotas."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator

import pytest
import redis

from kernelfarm.bounded_text import MESSAGE_BYTES
from kernelfarm.cache import EdgeCache, PublishStatus, Space
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.limits import MAX_FAILURES
from kernelfarm.cache.quotas import FAILURE_BYTES, Quotas, QuotaUsage, most_failures
from kernelfarm.cache.redis_keys import tenant_namespace
from kernelfarm.errors import ErrorFacts, InvalidGraphError, error_facts
from tests.support.farm import TIMEOUT_S

FACTS = error_facts(InvalidGraphError("a graph"))


@pytest.fixture
async def farm(server: EmbeddedServer, request: pytest.FixtureRequest) -> AsyncIterator[EdgeCache]:
    name = "farm-" + hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    async with EdgeCache(server.url, namespace=name, space=Space.PROGRAMS) as cache:
        yield cache


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


@pytest.mark.parametrize("letter", ["x", "\0", "\\", '"', "é", "\U0001f600", "\ud800"])
async def test_a_failure_is_small_however_much_it_quotes(
    farm: EdgeCache, server: EmbeddedServer, letter: str
) -> None:
    facts = error_facts(InvalidGraphError(f"unknown operator {letter * 3_000_000}"))
    await farm.put_failure(key_of(0), facts, 30)
    with redis.Redis.from_url(server.url) as raw:
        (name,) = (n for n in raw.keys(f"kf:{{{farm.namespace}}}:neg:p:*") if b"index" not in n)
        assert raw.strlen(name) <= FAILURE_BYTES
    reported = await farm.get_failure(key_of(0))
    assert reported == facts
    assert reported.message.startswith("unknown operator")
    assert len(reported.message.encode()) <= MESSAGE_BYTES


async def test_a_long_failure_of_an_older_farm_is_cut_when_it_is_read(
    farm: EdgeCache, server: EmbeddedServer
) -> None:
    stored = {"status": "INVALID_ARGUMENT", "reason": "X", "message": "y" * 10**6}
    with redis.Redis.from_url(server.url) as raw:
        raw.set(
            f"kf:{{{farm.namespace}}}:neg:p:{key_of(0).hex()}",
            json.dumps({**stored, "retry_after_s": None}),
        )
    reported = await farm.get_failure(key_of(0))
    assert isinstance(reported, ErrorFacts)
    assert len(reported.message) <= MESSAGE_BYTES


async def test_a_namespace_keeps_a_limited_number_of_failures_and_drops_the_first_to_expire(
    farm: EdgeCache, server: EmbeddedServer
) -> None:
    acme = farm.for_namespace(tenant_namespace(farm.namespace, "acme"), b"s" * 32, most_failures=20)
    beta = farm.for_namespace(tenant_namespace(farm.namespace, "beta"), b"t" * 32)
    await beta.put_failure(key_of(0), FACTS, 30)
    for number in range(200):
        await acme.put_failure(key_of(number), FACTS, 30 + number)
    known = [n for n in range(200) if await acme.get_failure(key_of(n)) is not None]
    assert known == list(range(180, 200))
    assert await beta.get_failure(key_of(0)) == FACTS
    with redis.Redis.from_url(server.url) as raw:
        left = raw.keys(f"kf:{{{farm.namespace}}}:t:acme:*")
    assert len(left) == 20 + 2, "failures, their index, counters"
    assert (await acme.stats())["failures_dropped"] == 180


async def test_a_failure_that_is_recorded_again_counts_once(farm: EdgeCache) -> None:
    acme = farm.for_namespace(tenant_namespace(farm.namespace, "acme"), b"", most_failures=2)
    for number in (0, 1, 0, 0):
        await acme.put_failure(key_of(number), FACTS, 30)
    assert await acme.get_failure(key_of(1)) == FACTS
    assert await Quotas(acme.client, acme.redis_keys).usage() == QuotaUsage(2 * FAILURE_BYTES, 2)


async def test_failures_count_towards_the_quota_until_they_expire(
    farm: EdgeCache,
) -> None:
    acme = farm.for_namespace(tenant_namespace(farm.namespace, "acme"), b"s" * 32)
    quotas = Quotas(acme.client, acme.redis_keys)
    await acme.put_failure(key_of(0), FACTS, 30)
    await acme.put_failure(key_of(1), FACTS, 0.001)
    while await acme.get_failure(key_of(1)) is not None:
        await acme.ping()
    assert await quotas.usage() == QuotaUsage(FAILURE_BYTES, 1)
    assert await Quotas(farm.client, farm.redis_keys).usage() == QuotaUsage(0, 0)


def test_a_small_quota_allows_few_failures() -> None:
    assert most_failures(None, None) == MAX_FAILURES
    assert most_failures(2_000_000, None) == 78
    assert most_failures(10**12, 50) == 5
    assert most_failures(1, 1) == 1


async def test_a_failed_kernel_leaves_no_job(farm: EdgeCache) -> None:
    """The inputs of kernels that cannot be compiled stayed for a day and were not counted."""
    lease = await farm.acquire(key_of(0), "us", TIMEOUT_S)
    assert lease is not None
    await farm.put_jobs({key_of(0): b"x" * 100_000})
    assert await farm.put_failure(key_of(0), FACTS, 30, lease) is PublishStatus.OK
    assert not await farm.client.exists(farm.redis_keys.job(key_of(0)))


async def test_a_failure_of_a_lapsed_lease_deletes_no_job(farm: EdgeCache) -> None:
    lease = await farm.acquire(key_of(0), "us", TIMEOUT_S)
    assert lease is not None
    await farm.release(lease)
    assert await farm.acquire(key_of(0), "they", TIMEOUT_S) is not None
    await farm.put_jobs({key_of(0): b"x"})
    assert await farm.put_failure(key_of(0), FACTS, 30, lease) is PublishStatus.FENCED
    assert await farm.client.exists(farm.redis_keys.job(key_of(0)))
