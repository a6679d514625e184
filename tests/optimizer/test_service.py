"""The optimizer's process: its work ends with the call, with its time, and with the service."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import grpc
import psutil
import pytest

from frontend_svc.pipeline import lower_to_prims
from kernelfarm.errors import MalformedMessageError, WorkBudgetError, WorkTimeError
from kernelfarm.internal.v1 import optimizer_service_pb2 as api
from kernelfarm.internal.v1.optimizer_service_pb2_grpc import OptimizerServiceStub
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.wire import graph_to_proto
from kernelfarm.wire.status import error_from_rpc
from tests.farm_process import PATIENCE_S, is_running, wait_until
from tests.service.costly_graphs import long_graph
from tests.service.h_graph import CPU, h_graph


@contextmanager
def optimizer(
    folder: Path, **settings: str
) -> Iterator[tuple[subprocess.Popen[bytes], OptimizerServiceStub]]:
    """A service with these settings, and a stub for it."""
    address = f"unix:{folder}/optimizer"
    named = {f"KERNELFARM_{name.upper()}": value for name, value in settings.items()}
    environment = {**os.environ, "KERNELFARM_OPTIMIZER_LISTEN": address, **named}
    with (
        subprocess.Popen([sys.executable, "-m", "optimizer_svc"], env=environment) as process,
        grpc.insecure_channel(address) as channel,
    ):
        try:
            grpc.channel_ready_future(channel).result(PATIENCE_S)
            yield process, OptimizerServiceStub(channel)
        finally:
            process.kill()


def request_of(graph: Graph) -> api.OptimizeRequest:
    prims = graph_to_proto(lower_to_prims(graph).graph)
    return api.OptimizeRequest(graph=prims.SerializeToString(), target=CPU, tenant="acme")


@cache
def long_request() -> api.OptimizeRequest:
    """Seconds of honest work."""
    return request_of(long_graph(9_000))


def children(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Its work processes."""
    return [child for one in psutil.Process(process.pid).children() for child in one.children()]


def busy(process: subprocess.Popen[bytes]) -> list[int]:
    """Those that have used half a second, which no small graph takes."""
    return [child.pid for child in children(process) if sum(child.cpu_times()[:2]) > 0.5]


def test_a_small_graph_is_optimized_and_told_by_whom(tmp_path: Path) -> None:
    with optimizer(tmp_path) as (process, stub):
        response = stub.Optimize(request_of(h_graph()), timeout=PATIENCE_S)
        assert response.kernels and response.plan.steps
        assert response.made_by == stub.GetToolchain(api.GetToolchainRequest(), timeout=PATIENCE_S)
        # No hit needs it, so it yields to frontends.
        assert psutil.Process(process.pid).nice() == max(psutil.Process().nice(), 10)


def test_work_ends_with_its_call(tmp_path: Path) -> None:
    with optimizer(tmp_path) as (process, stub):
        call = stub.Optimize.future(long_request(), timeout=PATIENCE_S)
        wait_until(lambda: bool(busy(process)), PATIENCE_S, "a child works")
        (working,) = busy(process)
        call.cancel()
        wait_until(lambda: not is_running(working), PATIENCE_S, "the child is ended")
        assert stub.Optimize(request_of(h_graph()), timeout=PATIENCE_S).kernels


def test_a_service_that_is_stopped_ends_its_work_and_exits_in_order(tmp_path: Path) -> None:
    with optimizer(tmp_path, drain_grace_s="0.5") as (process, stub):
        call = stub.Optimize.future(long_request(), timeout=PATIENCE_S)
        wait_until(lambda: bool(busy(process)), PATIENCE_S, "a child works")
        ours = [child.pid for child in children(process)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
        assert call.exception(PATIENCE_S) is not None
    wait_until(lambda: not any(map(is_running, ours)), PATIENCE_S, "its children end with it")


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"max_work_processor_s": "0.3"}, WorkTimeError),
        ({"max_work_steps": "1"}, WorkBudgetError),
    ],
)
def test_work_that_takes_too_much_is_told_so(
    tmp_path: Path, settings: dict[str, str], error: type[Exception]
) -> None:
    with optimizer(tmp_path, **settings) as (_, stub):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Optimize(long_request(), timeout=PATIENCE_S)
        assert isinstance(error_from_rpc(caught.value), error)


def test_bytes_that_are_no_graph_are_malformed(tmp_path: Path) -> None:
    with optimizer(tmp_path) as (_, stub):
        with pytest.raises(grpc.RpcError) as caught:
            stub.Optimize(api.OptimizeRequest(graph=b"\xff", target=CPU), timeout=PATIENCE_S)
        assert isinstance(error_from_rpc(caught.value), MalformedMessageError)
