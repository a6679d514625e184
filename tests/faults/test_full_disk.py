"""A service whose log is on a full disk: it loses lines, and serves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from kernelfarm.internal.v1 import optimizer_service_pb2 as pb
from kernelfarm.internal.v1.optimizer_service_pb2_grpc import OptimizerServiceStub
from kernelfarm.service.probes import is_serving
from tests.support.farm import TIMEOUT_S, wait_until


def test_a_service_that_cannot_write_its_log_answers_and_drains(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/optimizer"
    added = {"KERNELFARM_OPTIMIZER_LISTEN": address, "KERNELFARM_LOG_LEVEL": "debug"}
    with Path("/dev/full").open("wb") as full:
        service = subprocess.Popen(
            [sys.executable, "-m", "optimizer_svc"], env={**os.environ, **added}, stderr=full
        )
    try:
        is_up = lambda: service.poll() is not None or asyncio.run(is_serving(address))  # noqa: E731
        wait_until(is_up, TIMEOUT_S, "the service")
        with grpc.insecure_channel(address) as channel:
            stub = OptimizerServiceStub(channel)
            assert stub.GetToolchain(pb.GetToolchainRequest(), timeout=TIMEOUT_S).toolchain
            with pytest.raises(grpc.RpcError) as caught:
                stub.Optimize(pb.OptimizeRequest(target="no:chip"), timeout=TIMEOUT_S)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        service.send_signal(signal.SIGTERM)
        # Python exits with 120 if it cannot write the last lines.
        assert service.wait(TIMEOUT_S) in {0, 120}
    finally:
        service.kill()
        service.wait()
