"""A real Prometheus scrapes a real farm, and its alerts fire for faults that the test causes.

`tests/deploy/test_alerts.py` checks every rule with invented series. Here the series are the farm's
own. `test_prometheus_of_faulty_vendor.py` causes what a farm of correct backends never shows.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
import redis

from kernelfarm.cache.redis_keys import RedisKeys
from kernelfarm.errors import KernelfarmError, PoisonedBlobError
from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.processes import kill_tree
from tests.support.prometheus import ALERT_S, Prometheus, running_prometheus
from tests.support.prometheus_rules import dashboard_expressions
from tests.support.redis_of_process import client_of, socket_of
from tests.support.small_graphs import h_request, slow_request
from tests.support.tenants_farm import Caller, binary_of
from tests.support.third_party import need

SAVED = "sum(kernelfarm_compile_saved_seconds_total) > 0"

pytestmark = pytest.mark.slow  # a farm and a Prometheus of its own, and minutes of waiting


TOKEN, STORED_TOKEN = new_token(frozenset({Role.MEMBER, Role.ADMINISTRATOR}))


@pytest.fixture(scope="module")
def tenants_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tenants") / "tenants.toml"
    allow(path, Quota())
    return path


def allow(path: Path, quota: Quota) -> None:
    """Writes the tenants file of the farm, with one tenant."""
    write_tenants(path, TenantDirectory([Tenant("acme", b"a" * 32, quota, (STORED_TOKEN,))]))


@pytest.fixture(scope="module")
def farm(tenants_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    need("prometheus")
    environment = {
        "KERNELFARM_TENANTS_FILE": str(tenants_file),
        "KERNELFARM_NO_WORKER_GRACE_S": "8",
        "KERNELFARM_HUNG_AFTER_S": "15",
    }
    data = tmp_path_factory.mktemp("farm")
    with running_farm(data, "cpu", metrics=True, **environment) as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus") / "own", farm) as started:
        yield started


@pytest.fixture
def caller(farm: Farm) -> Caller:
    return Caller(farm.endpoint, TOKEN)


@pytest.fixture(scope="module")
def store(farm: Farm) -> Iterator[redis.Redis]:
    (pid,) = farm.pids("redis-cache")
    with client_of(socket_of(psutil.Process(pid))) as client:
        yield client


@contextmanager
def in_background(work: Callable[[], object]) -> Iterator[None]:
    """Runs a call of the farm in a thread; its errors are those that the fault causes."""

    def run() -> None:
        with suppress(KernelfarmError):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(TIMEOUT_S)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process that hangs during the block; its supervisor kills it after 15 s."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def test_a_healthy_farm_is_scraped_and_no_alert_fires(
    prometheus: Prometheus, farm: Farm, caller: Caller
) -> None:
    processes = sum(bool(child["metrics"]) for child in farm.status()["children"].values())
    wait_until(
        lambda: prometheus.query("sum(up)")[0]["value"][1] == str(processes),
        TIMEOUT_S,
        "every process is scraped",
    )
    caller.compile(h_request())
    assert caller.lookup(caller.compile(h_request()).key).key
    wait_until(
        lambda: prometheus.query(SAVED) != [], TIMEOUT_S, "the compile time that the hit saved"
    )
    assert prometheus.firing() == set()


def test_every_panel_and_variable_of_the_dashboard_has_series(
    prometheus: Prometheus, farm: Farm, tenants_file: Path, caller: Caller
) -> None:
    content = tenants_file.read_text()
    rows = itertools.count(2)

    def empty() -> list[str]:
        """Expressions without a number, after events that some panels only show then."""
        tenants_file.write_text(f"{content}# no tenants {next(rows)} [")  # an alert
        key = caller.compile(h_request(next(rows), 80)).key
        for _ in range(2):
            caller.lookup(key)
        for refused, asked in ((caller, b"k" * 32), (Caller(farm.endpoint, "kf_unknown"), key)):
            with pytest.raises(KernelfarmError):
                refused.lookup(asked)
        return [text for text in dashboard_expressions() if not prometheus.numbers(text)]

    try:
        ends_s = time.monotonic() + ALERT_S
        while (without := empty()) and time.monotonic() < ends_s:
            time.sleep(0.5)
        assert without == []
        assert "cpu" in prometheus.values_of_label("vendor", "kernelfarm_queued_jobs")
    finally:
        tenants_file.write_text(content)


def test_kernels_without_a_worker(prometheus: Prometheus, caller: Caller) -> None:
    with in_background(lambda: caller.compile(h_request(32, 64, "cuda:sm_90a"))):
        prometheus.wait_for("KernelfarmNoWorker", "KernelfarmQueueOld")
    # Prometheus sees no increase in the first failure, with which its series begins.
    columns = iter(range(65, 999))
    fail = lambda: caller.compile(h_request(48, next(columns), "cuda:sm_90a"))  # noqa: E731
    prometheus.repeat_until(fail, "KernelfarmCallsFail")


def test_an_unusable_tenants_file(
    prometheus: Prometheus, tenants_file: Path, caller: Caller
) -> None:
    content = tenants_file.read_text()
    times = itertools.count()

    def change() -> None:
        tenants_file.write_text(f"no tenants, {next(times)}")
        caller.capabilities()

    prometheus.repeat_until(change, "KernelfarmTenantsFileUnusable")
    tenants_file.write_text(content)


def test_a_tenant_near_its_quota(
    prometheus: Prometheus, tenants_file: Path, store: redis.Redis, caller: Caller
) -> None:
    caller.compile(h_request())
    # Without recorded failures, which expire after seconds.
    stored = store.hget(RedisKeys("default/acme").quota_usage, "bytes")
    assert stored is not None
    allow(tenants_file, Quota(max_bytes=round(int(stored) / 0.95)))

    # A frontend reads the file again when it is called.
    prometheus.repeat_until(caller.usage, "KernelfarmTenantNearQuota")
    allow(tenants_file, Quota())


def test_a_kernel_whose_worker_is_killed_twice(
    prometheus: Prometheus, farm: Farm, caller: Caller
) -> None:
    with in_background(lambda: caller.compile(slow_request())):
        kill_in_job(farm)
        kill_in_job(farm)
        prometheus.wait_for("KernelfarmTakeovers", "KernelfarmQuarantine")


def kill_in_job(farm: Farm) -> None:
    """Kills the worker when it begins the next job."""
    ended = farm.log("worker-cpu-0").count("job_begun")
    if is_working(farm):
        ended -= 1
    wait_until(
        lambda: farm.log("worker-cpu-0").count("job_begun") > ended, TIMEOUT_S, "a job begins"
    )
    (pid,) = farm.pids("worker-cpu-0")
    kill_tree(pid)
    wait_until(lambda: farm.is_back("worker-cpu-0", pid), TIMEOUT_S, "another worker")


def is_working(farm: Farm) -> bool:
    log = farm.log("worker-cpu-0")
    return log.rfind("job_begun") > max(log.rfind("worker_ready"), log.rfind("job_done"))


def test_altered_blobs(prometheus: Prometheus, store: redis.Redis, caller: Caller) -> None:
    sha256 = binary_of(caller.compile(h_request(16, 32)))

    def alter() -> None:
        store.set(RedisKeys("default/acme").blob(sha256), b"another content")
        with pytest.raises(PoisonedBlobError):
            caller.read(sha256)

    prometheus.repeat_until(alter, "KernelfarmCacheAltered")


def test_a_lost_epoch_table(prometheus: Prometheus, store: redis.Redis, caller: Caller) -> None:
    key = caller.compile(h_request()).key
    store.delete(RedisKeys("default").epochs)
    prometheus.repeat_until(lambda: caller.lookup(key), "KernelfarmEpochTableLost")


def test_a_service_that_hangs(prometheus: Prometheus, farm: Farm) -> None:
    (pid,) = farm.pids("optimizer")
    with stopped(pid):
        prometheus.wait_for("KernelfarmProcessDown")
    wait_until(
        lambda: "KernelfarmProcessDown" not in prometheus.firing(), TIMEOUT_S, "it serves again"
    )


def test_a_cache_that_hangs(prometheus: Prometheus, farm: Farm) -> None:
    (pid,) = farm.pids("redis-cache")
    with stopped(pid):
        prometheus.wait_for("KernelfarmCacheSilent")
