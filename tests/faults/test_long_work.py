"""Work that takes too long, or whose process ends: other callers do not wait for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count

import grpc
import psutil
import pytest

from kernelfarm.errors import WorkProcessError
from kernelfarm.service.channels import channel_options
from kernelfarm.v1 import cache_service_pb2 as cache_api
from kernelfarm.v1 import compile_service_pb2 as api
from kernelfarm.v1.cache_service_pb2_grpc import CacheServiceStub
from kernelfarm.wire import graph_to_proto
from kernelfarm.wire.status import error_from_rpc
from tests.support.calls import compile_at, stub_of
from tests.support.costly_graphs import cat_graph, long_graph, request_of
from tests.support.farm import TIMEOUT_S, Farm, wait_until
from tests.support.processes import is_running
from tests.support.small_graphs import CPU, h_request

MOST_NODES = 50_000

rows = count(1000)


@pytest.fixture(scope="module")
def farm(hurt_farm: Farm) -> Farm:
    """The last test stops it."""
    return hurt_farm


def work_processes(farm: Farm, service: str) -> list[psutil.Process]:
    """The child processes in which a service works."""
    (pid,) = farm.pids(service)
    servers = psutil.Process(pid).children()
    return [child for server in servers for child in server.children()]


def busy(farm: Farm, service: str) -> list[psutil.Process]:
    """The work processes that have used more than a tenth of a second of processor time."""
    found = []
    for process in work_processes(farm, service):
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        if used.user + used.system > 0.1:
            found.append(process)
    return found


def new_program_compiles(farm: Farm) -> None:
    assert compile_at(farm.endpoint, h_request(next(rows))).program.artifacts


@contextmanager
def compiling(farm: Farm, *requests: api.CompileRequest) -> Iterator[list[grpc.Call]]:
    """Calls with these requests, which run; cancelled at the end."""
    with stub_of(farm.endpoint) as stub:
        calls = [stub.Compile(request, timeout=TIMEOUT_S) for request in requests]
        try:
            yield calls
        finally:
            for call in calls:
                call.cancel()


def test_graphs_whose_work_takes_long_do_not_delay_other_callers(farm: Farm) -> None:
    cats = (request_of(cat_graph(13, columns)) for columns in (1, 2, 3))
    long = (request_of(long_graph(40_000, columns)) for columns in (1, 2, 3))
    with compiling(farm, *cats, *long):
        wait_until(lambda: bool(busy(farm, "frontend")), TIMEOUT_S, "a child works")
        for _ in range(3):
            new_program_compiles(farm)


def test_a_call_that_is_cancelled_frees_its_processor(farm: Farm) -> None:
    request = cache_api.ExplainMissRequest(
        graph=graph_to_proto(long_graph(MOST_NODES, 11)), target=CPU
    )
    with grpc.insecure_channel(farm.endpoint, options=channel_options()) as channel:
        call = CacheServiceStub(channel).ExplainMiss.future(request, timeout=TIMEOUT_S)
        wait_until(lambda: bool(working(farm)), TIMEOUT_S, "a child explains")
        ours = working(farm)
        call.cancel()
    wait_until(lambda: not any(map(is_running, ours)), TIMEOUT_S, "the child is ended")
    new_program_compiles(farm)


def working(farm: Farm) -> list[int]:
    """Work processes that use a processor now."""
    found = []
    for process in work_processes(farm, "frontend"):
        try:
            if process.cpu_percent(0.05) > 0:
                found.append(process.pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.parametrize("service", ["frontend", "optimizer"])
def test_a_process_that_is_killed_costs_one_attempt(farm: Farm, service: str) -> None:
    nodes = {"frontend": 40_000, "optimizer": 6_000}[service]
    request = request_of(long_graph(nodes, next(rows)))

    def error_of(call: grpc.Call) -> Exception | None:
        try:
            list(call)
        except grpc.RpcError as error:
            return error_from_rpc(error)
        return None

    with compiling(farm, request) as (call,), ThreadPoolExecutor(1) as reader:
        failed = reader.submit(error_of, call)

        def killed() -> bool:
            for process in busy(farm, service):
                os.kill(process.pid, signal.SIGKILL)
            return failed.done()

        wait_until(killed, TIMEOUT_S, "the call's error")
    error = failed.result()
    assert isinstance(error, WorkProcessError) and error.status == "UNAVAILABLE", error
    assert error.retry_after_s is not None
    new_program_compiles(farm)


def test_explanations_do_not_delay_other_callers(farm: Farm) -> None:
    graphs = (graph_to_proto(long_graph(MOST_NODES, columns)) for columns in (21, 22, 23, 24))
    requests = [cache_api.ExplainMissRequest(graph=graph, target=CPU) for graph in graphs]
    assert requests[0].ByteSize() > 2_700_000
    with grpc.insecure_channel(farm.endpoint, options=channel_options()) as channel:
        stub = CacheServiceStub(channel)
        calls = [stub.ExplainMiss.future(request, timeout=TIMEOUT_S) for request in requests]
        new_program_compiles(farm)
        assert not all(call.done() for call in calls)
        for call in calls:
            call.cancel()


def test_a_farm_that_is_stopped_ends_unfinished_work_within_the_grace(farm: Farm) -> None:
    cats = (request_of(cat_graph(13, columns)) for columns in (31, 32, 33, 34))
    long = (request_of(long_graph(40_000, columns)) for columns in (31, 32))
    with compiling(farm, *cats, *long):
        wait_until(lambda: bool(busy(farm, "frontend")), TIMEOUT_S, "a child works")
        ours = [p.pid for name in ("frontend", "optimizer") for p in work_processes(farm, name)]
        ours += [child["pid"] for child in farm.status()["children"].values()]
        assert farm.stop() == 0
    assert farm.status()["state"] == "stopped"
    reported = (farm.data_dir / "up.log").read_text()
    assert "did not drain" not in reported, reported
    wait_until(lambda: not any(map(is_running, ours)), TIMEOUT_S, "children end with services")
    assert "Traceback" not in farm.log("frontend") + farm.log("optimizer")
