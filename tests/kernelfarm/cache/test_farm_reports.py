"""What the farm's page reads beside entries: queues of all edges, newest keys, recent failures."""

from __future__ import annotations

import hashlib
import json

import redis

from kernelfarm.cache import KernelCache, Space
from kernelfarm.cache.embedded import EmbeddedServer
from kernelfarm.cache.farm_reports import FarmReports, QueueReport
from kernelfarm.cache.key_index import KeyIndex
from kernelfarm.errors import InvalidGraphError, error_facts

CPU, CUDA = QueueReport("cpu", 2, 1, 0), QueueReport("cuda", 0, 8, 40)


def key_of(number: int) -> bytes:
    return hashlib.sha256(b"%d" % number).digest()


async def test_queues_are_those_of_every_edge_that_reported_lately(
    cache: KernelCache, server: EmbeddedServer
) -> None:
    reports = FarmReports(cache.client, cache.redis_keys)
    assert await reports.queues() == []
    await reports.report_queues("edge-1", [CUDA, CPU])
    await reports.report_queues("edge-2", [CPU])
    assert await reports.queues() == [CPU, CPU, CUDA]
    await reports.report_queues("edge-1", [CPU])
    assert await reports.queues() == [CPU, CPU]
    with redis.Redis.from_url(server.url) as raw:
        assert 0 < raw.ttl(cache.redis_keys.queues) <= 15
        view = json.loads(raw.hget(cache.redis_keys.queues, "edge-2") or b"")
        raw.hset(cache.redis_keys.queues, "edge-2", json.dumps({**view, "at_s": 0}))
    assert await reports.queues() == [CPU]


async def test_the_newest_keys_come_first_with_their_parts(cache: KernelCache) -> None:
    index = KeyIndex(cache.client, cache.redis_keys, Space.PROGRAMS)
    assert await index.recent(0, 10) == []
    for number in range(5):
        await index.add(key_of(number), {"target": f"cpu:{number}"})
    found = await index.recent(1, 2)
    assert [program.key for program in found] == [key_of(3), key_of(2)]
    assert [program.parts for program in found] == [{"target": "cpu:3"}, {"target": "cpu:2"}]
    assert not any(program.stored for program in found)  # only the index knows these keys


async def test_failures_are_listed_until_they_expire(cache: KernelCache) -> None:
    reports = FarmReports(cache.client, cache.redis_keys)
    assert await reports.failures(cache.space, 10) == []
    for number in range(3):
        facts = error_facts(InvalidGraphError(f"graph {number}"))
        await cache.put_failure(key_of(number), facts, 30 + number)
    found = await reports.failures(cache.space, 2)
    assert [failure.facts.message for failure in found] == ["graph 2", "graph 1"]
    assert found[0].storage_key == key_of(2).hex()
