"""Alerts fire that a farm of correct backends never shows: bugs, losses, shortages, overload.

As `test_prometheus.py`, with a vendor outside of the tree whose compilations end as a test says.
What the cache's server loses or gets back is changed in that server, as an operator would.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import h2.connection
import psutil
import pytest
import redis

from kernelfarm.cache.redis_keys import RedisKey, RedisKeys
from kernelfarm.errors import KernelfarmError
from kernelfarm.processes.ports import free_ports
from kernelfarm.signing import Space
from kernelfarm.v1 import cache_service_pb2 as cache_api
from tests.support.codegen_processes import PLUGIN
from tests.support.farm import TIMEOUT_S, Farm, running_farm, wait_until
from tests.support.processes import kill_tree
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.redis_of_process import client_of, socket_of
from tests.support.small_graphs import h_request
from tests.support.source_code import ROOT
from tests.support.tenants_farm import Caller
from tests.support.third_party import need

TARGET = "echo:one"
KEYS = RedisKeys("default")
MAX_MESSAGE_BYTES = 16 << 20
MAX_MESSAGES = 4
LEASE_S = 1.0
IN_GATEWAY_S = 2.0

pytestmark = pytest.mark.slow  # a farm and a Prometheus of its own, and minutes of waiting


@pytest.fixture(scope="module")
def gates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the vendor's compilations report, and find how they end."""
    return tmp_path_factory.mktemp("gates")


@pytest.fixture(scope="module")
def farm(gates: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    need("prometheus")
    environment = {
        "PYTHONPATH": os.pathsep.join([str(PLUGIN), str(ROOT)]),
        "ECHO_GATES": str(gates),
        "KERNELFARM_LEASE_TTL_S": str(LEASE_S),
        "KERNELFARM_GATEWAY_MAX_AGE_S": str(IN_GATEWAY_S),
        "KERNELFARM_MAX_REQUESTS_BYTES": str(MAX_MESSAGES * MAX_MESSAGE_BYTES),
        # A failure is tried again at once.
        "KERNELFARM_BUG_TTL_S": "0.1",
        "KERNELFARM_SHORTAGE_TTL_S": "0.1",
        "KERNELFARM_OUTAGE_TTL_S": "0.1",
    }
    data = tmp_path_factory.mktemp("farm")
    with running_farm(data, "echo", metrics=True, **environment) as started:
        yield started


@pytest.fixture(scope="module")
def prometheus(farm: Farm, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    with running_prometheus(tmp_path_factory.mktemp("prometheus") / "own", farm) as started:
        yield started


@pytest.fixture
def caller(farm: Farm) -> Caller:
    return Caller(farm.endpoint, None)


@pytest.fixture(scope="module")
def store(farm: Farm) -> Iterator[redis.Redis]:
    (pid,) = farm.pids("redis-cache")
    with client_of(socket_of(psutil.Process(pid))) as client:
        yield client


@pytest.fixture
def frontend(farm: Farm) -> psutil.Process:
    (pid,) = farm.pids("frontend")
    return psutil.Process(pid)


@contextmanager
def all_kernels(gates: Path, ending: str) -> Iterator[None]:
    """Every compilation ends so during the block."""
    (gates / "ending").write_text(ending)
    try:
        yield
    finally:
        (gates / "ending").unlink()


def started(work: Callable[[], object]) -> threading.Thread:
    """A thread that calls the farm; its errors are those that the fault causes."""

    def run() -> None:
        with suppress(KernelfarmError):
            work()

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def release_gated_kernels(gates: Path, threads: Iterable[threading.Thread]) -> None:
    """Lets each gated kernel continue until the calls that wait for them have ended."""

    def have_ended() -> bool:
        for begun in gates.glob("*.pid"):
            begun.with_suffix(".go").touch()
        return not any(thread.is_alive() for thread in threads)

    wait_until(have_ended, TIMEOUT_S, "the calls end")
    for left in (*gates.glob("*.pid"), *gates.glob("*.go")):
        left.unlink()


@pytest.mark.parametrize(
    ("ending", "rows", "alerts"),
    [
        ("buggy", 100, ("KernelfarmBug", "KernelfarmKernelsFail")),
        ("toolless", 200, ("KernelfarmWorkersShort",)),
    ],
)
def test_kernels_that_a_backend_does_not_make(
    ending: str,
    rows: int,
    alerts: tuple[str, ...],
    prometheus: Prometheus,
    gates: Path,
    caller: Caller,
) -> None:
    with all_kernels(gates, ending):
        prometheus.repeat_until(lambda: caller.compile(h_request(rows, 16, TARGET)), *alerts)


class Backup:
    """Entries and blobs of the cache as they were."""

    def __init__(self, store: redis.Redis, *prefixes: str) -> None:
        self._store = store
        names = [RedisKey(n.decode()) for p in prefixes for n in store.scan_iter(f"{p}*")]
        self._content = {name: (store.dump(name), store.pttl(name)) for name in names}

    def delete(self) -> None:
        """Removes what it holds from the cache."""
        self._store.delete(*self._content)

    def restore(self) -> None:
        """Stores its content again."""
        for name, (content, left_ms) in self._content.items():
            self._store.restore(name, max(left_ms, 0), content, replace=True)


def test_a_toolchain_with_two_results(
    prometheus: Prometheus, gates: Path, store: redis.Redis, caller: Caller
) -> None:
    """A cache that lost its kernels gets them back while other ones compile."""
    prometheus.wait_without("KernelfarmResultsDiffer")
    request = h_request(11, 16, TARGET)
    with all_kernels(gates, "differing"):
        caller.compile(request)
    kernels = Backup(store, KEYS.entry_prefix(Space.KERNELS), KEYS.blob_prefix)
    programs = Backup(store, KEYS.entry_prefix(Space.PROGRAMS))
    kernels.delete()
    programs.delete()
    time.sleep(IN_GATEWAY_S)  # the gateway has dropped the program
    with all_kernels(gates, "gated"):
        again = started(lambda: caller.compile(request))
        wait_until(lambda: any(gates.glob("*.pid")), TIMEOUT_S, "it compiles")
        kernels.restore()
        release_gated_kernels(gates, [again])
    prometheus.wait_for("KernelfarmResultsDiffer")


def test_a_program_in_memory_that_the_cache_calls_stale(
    prometheus: Prometheus, store: redis.Redis, caller: Caller
) -> None:
    """The cache gets back what it had before an invalidation; the gateway has a newer program."""
    request = h_request(12, 16, TARGET)
    key = caller.compile(request).key
    before = Backup(store, KEYS.entry_prefix(Space.PROGRAMS))
    caller.cache("Invalidate", cache_api.InvalidateRequest(tags=["op:aten.ceil.default"]))

    def serve_stale() -> None:
        caller.compile(request)
        before.restore()
        caller.lookup(key)

    prometheus.repeat_until(serve_stale, "KernelfarmStaleServe")


def test_a_cache_that_evicts_blobs(
    prometheus: Prometheus, store: redis.Redis, caller: Caller
) -> None:
    requests = [h_request(rows, 32, TARGET) for rows in range(1, 61)]
    limit = store.config_get("maxmemory")["maxmemory"]

    def evict() -> None:
        keys = [caller.compile(request).key for request in requests]
        time.sleep(IN_GATEWAY_S)  # the gateway has dropped the programs
        left = store.dbsize()
        bound = int(store.info("memory")["used_memory"])
        while store.dbsize() > left * 0.6:
            bound -= 20_000
            store.config_set("maxmemory", bound)
            store.set("filled", b"")  # evicts
        store.config_set("maxmemory", limit)
        for key in keys:
            with suppress(KernelfarmError):
                caller.lookup(key)

    try:
        prometheus.repeat_until(evict, "KernelfarmCacheTooSmall")
    finally:
        store.config_set("maxmemory", limit)


def test_results_after_their_leases(
    prometheus: Prometheus, gates: Path, frontend: psutil.Process, caller: Caller
) -> None:
    def outlive() -> None:
        with all_kernels(gates, "gated"):
            column = 64 + time.monotonic_ns() % 4096  # other programs each time
            calls = [
                started(lambda rows=rows: caller.compile(h_request(rows, column, TARGET)))
                for rows in range(2, 18)
            ]
            wait_until(lambda: any(gates.glob("*.pid")), TIMEOUT_S, "kernels compile")
            os.kill(frontend.pid, signal.SIGSTOP)
            time.sleep(2 * LEASE_S)
            os.kill(frontend.pid, signal.SIGCONT)
            release_gated_kernels(gates, calls)

    prometheus.repeat_until(outlive, "KernelfarmLeasesOutlived")


def test_requests_that_fill_the_memory(prometheus: Prometheus, farm: Farm) -> None:
    """A request that arrives slowly counts as the largest one."""
    prometheus.wait_without("KernelfarmInboundFull")
    host, _, port = farm.endpoint.rpartition(":")
    headers = [
        *((":method", "POST"), (":scheme", "http"), (":authority", farm.endpoint)),
        (":path", "/kernelfarm.v1.CompileService/Compile"),
        *(("te", "trailers"), ("content-type", "application/grpc")),
    ]
    with socket.create_connection((host, int(port)), TIMEOUT_S) as connection:
        http = h2.connection.H2Connection()
        http.initiate_connection()
        for _ in range(MAX_MESSAGES):
            stream = http.get_next_available_stream_id()
            http.send_headers(stream, headers)
            http.send_data(stream, b"\0" + (1 << 20).to_bytes(4, "big") + b"the beginning")
        connection.sendall(http.data_to_send())
        prometheus.wait_for("KernelfarmInboundFull")


def test_connections_that_use_up_the_open_files(
    prometheus: Prometheus, farm: Farm, frontend: psutil.Process
) -> None:
    prometheus.wait_without("KernelfarmOpenFiles")
    host, _, port = farm.endpoint.rpartition(":")
    before = frontend.rlimit(resource.RLIMIT_NOFILE)
    limit = frontend.num_fds() + 40
    opened: list[socket.socket] = []
    frontend.rlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        while frontend.num_fds() < 0.9 * limit:
            opened.append(socket.create_connection((host, int(port)), TIMEOUT_S))
            time.sleep(0.02)  # until it is accepted
        prometheus.wait_for("KernelfarmOpenFiles")
    finally:
        frontend.rlimit(resource.RLIMIT_NOFILE, before)
        for connection in opened:
            connection.close()


def test_a_cache_that_answers_slowly(
    prometheus: Prometheus, store: redis.Redis, caller: Caller
) -> None:
    keys = [caller.compile(h_request(rows, 48, TARGET)).key for rows in range(2, 10)]

    def look_up() -> None:
        store.client_pause(200)
        for key in keys:
            caller.lookup(key)

    prometheus.repeat_until(look_up, "KernelfarmHitsSlow")


def test_an_upgrade_of_one_worker_of_two(
    prometheus: Prometheus, farm: Farm, tmp_path: Path
) -> None:
    prometheus.wait_without("KernelfarmToolchainsDiffer")
    newer = tmp_path / "newer"
    shutil.copytree(PLUGIN, newer)
    with (newer / "echo_backend.py").open("a") as backend:
        backend.write("# A newer version.\n")
    (pid,) = farm.pids("worker-echo-0")
    worker = psutil.Process(pid)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    changed = {
        "PYTHONPATH": os.pathsep.join([str(newer), str(ROOT)]),
        "KERNELFARM_METRICS_LISTEN": address,
        "KERNELFARM_WORKER_HEARTBEAT_FILE": str(tmp_path / "heartbeat"),
    }
    command, environment = worker.cmdline(), worker.environ() | changed
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, env=environment, stderr=log) as second,
    ):
        try:
            prometheus.scrape_also("kernelfarm-worker-echo-1", address)
            prometheus.wait_for("KernelfarmToolchainsDiffer")
        finally:
            kill_tree(second.pid)
