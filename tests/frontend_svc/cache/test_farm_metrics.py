"""The metrics of the whole farm, which a frontend reads from a real cache when it is scraped."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from structlog.testing import capture_logs

from frontend_svc.cache.farm_metrics import EVENTS, FarmMetrics
from kernelfarm.cache.embedded import EmbeddedServer, ServerRole, start_server
from kernelfarm.cache.farm_counters import FarmCounters
from kernelfarm.cache.quotas import FAILURE_BYTES
from kernelfarm.cache.records import Space
from kernelfarm.cache.redis_keys import RedisKeys
from tests.support.markdown import code_names, table_rows
from tests.support.source_code import ROOT
from tests.support.unresponsive_servers import peer

OWN, ACME = RedisKeys("default"), RedisKeys("default/acme")
QUOTAS: dict[str, int | None] = {"acme": 1000, "shared": None}


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    started = start_server(ServerRole.CACHE)
    yield started
    started.stop()


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url, protocol=2) as connected:
        connected.flushall()
        connected.hset(OWN.epochs, mapping={"@inc": "first", "@epoch": 0})
        yield connected


@pytest.fixture
def metrics(server: EmbeddedServer) -> Iterator[FarmMetrics]:
    with FarmCounters(server.url, "default", 1.0) as counters:
        yield FarmMetrics(counters, lambda: QUOTAS)


def value(metrics: FarmMetrics, name: str, **labels: str) -> float | None:
    found = [
        sample.value
        for metric in metrics.collect()
        for sample in metric.samples
        if sample.name == name and sample.labels == labels
    ]
    assert len(found) <= 1
    return found[0] if found else None


def test_counters_of_all_namespaces_are_added_up(client: redis.Redis, metrics: FarmMetrics) -> None:
    client.hset(OWN.stats, mapping={"p.hits": 5, "p.gateway_hits": 7, "k.processor_ms": 1500})
    client.hset(ACME.stats, mapping={"p.hits": 10, "p.misses": 6, "p.guard_misses": 2})
    client.hset(ACME.stats, mapping={"k.takeovers": 1, "p.refused_quota_bytes": 3})
    client.hset(OWN.stats, "invalidations", 4)
    hits, misses = "kernelfarm_farm_hits_total", "kernelfarm_farm_misses_total"
    assert value(metrics, "kernelfarm_farm_counters_up") == 1
    assert value(metrics, hits, space="programs", tier="store") == 15
    assert value(metrics, hits, space="programs", tier="gateway") == 7
    assert value(metrics, misses, space="programs", reason="cold") == 4
    assert value(metrics, misses, space="programs", reason="guard") == 2
    assert value(metrics, "kernelfarm_farm_compile_processor_seconds_total") == 1.5
    assert value(metrics, "kernelfarm_farm_refused_calls_total", reason="quota_bytes") == 3
    events = "kernelfarm_farm_events_total"
    assert value(metrics, events, space="kernels", event="takeovers") == 1
    assert value(metrics, events, space="kernels", event="quarantined") == 0
    assert value(metrics, events, space="", event="invalidations") == 4


def test_bytes_are_by_tenant_of_the_tenants_file(client: redis.Redis, metrics: FarmMetrics) -> None:
    client.hset(OWN.quota_usage, "bytes", 100)
    client.hset(ACME.quota_usage, "bytes", 11)
    now_ms = time.time() * 1e3
    failures = {"live": now_ms + 60_000, "expired": now_ms - 60_000}
    client.zadd(ACME.failures(Space.KERNELS), failures)
    client.hset(RedisKeys("default/unlisted").quota_usage, "bytes", 1)
    assert value(metrics, "kernelfarm_farm_bytes") == 111 + FAILURE_BYTES
    assert value(metrics, "kernelfarm_tenant_bytes", tenant="acme") == 11 + FAILURE_BYTES
    assert value(metrics, "kernelfarm_tenant_limit_bytes", tenant="acme") == 1000
    assert value(metrics, "kernelfarm_tenant_limit_bytes", tenant="shared") is None
    assert value(metrics, "kernelfarm_tenant_bytes", tenant="unlisted") is None


def test_a_corrected_counter_does_not_look_like_a_restart(
    client: redis.Redis, metrics: FarmMetrics
) -> None:
    def hits() -> float | None:
        return value(metrics, "kernelfarm_farm_hits_total", space="programs", tier="store")

    client.hset(OWN.stats, "p.hits", 8)
    assert hits() == 8
    client.hincrby(OWN.stats, "p.hits", -1)
    assert hits() == 8
    client.hset(OWN.epochs, "@inc", "second")
    client.delete(OWN.stats)
    assert hits() == 0, "a new cache begins at 0"


def test_a_cache_that_is_down_is_reported(server: EmbeddedServer) -> None:
    with FarmCounters("unix:///nowhere", "default", 1.0) as counters, capture_logs() as lines:
        metrics = FarmMetrics(counters, lambda: QUOTAS)
        assert value(metrics, "kernelfarm_farm_counters_up") == 0
        assert len(list(metrics.collect())) == 1
    assert {line["event"] for line in lines} == {"farm_counters_failed"}


def test_a_cache_that_hangs_is_not_waited_for(tmp_path: Path) -> None:
    with (
        peer("silent", tmp_path) as address,
        FarmCounters(f"redis://{address}/0", "default", 0.2) as counters,
    ):
        began_s = time.monotonic()
        metrics = FarmMetrics(counters, lambda: QUOTAS)
        with capture_logs():
            assert value(metrics, "kernelfarm_farm_counters_up") == 0
        assert time.monotonic() - began_s < 5


def test_every_counter_of_the_page_is_exported_from_the_start(
    client: redis.Redis, metrics: FarmMetrics
) -> None:
    exported = {
        name
        for metric in metrics.collect()
        for sample in metric.samples
        for name in (
            sample.labels.get("event"),
            f"{sample.labels['reason']}_misses" if "reason" in sample.labels else None,
            *{"store": ["hits"], "gateway": ["gateway_hits"], "shared": ["shared_hits"]}.get(
                sample.labels.get("tier", ""), []
            ),
        )
        if name
    }
    page = ROOT / "docs" / "counters_and_logs.md"
    rows = [code_names(row[0]) for row in table_rows(page, "counter")]
    stated = {name for names in rows for name in names if re.fullmatch(r"[a-z_]+", name)}
    assert stated - exported == {"misses", "processor_ms"}
    assert set(EVENTS) <= stated
