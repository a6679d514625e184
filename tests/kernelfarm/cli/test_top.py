"""`kernelfarm top` with a real farm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kernelfarm.cli.top import _quantile
from kernelfarm.v1 import compile_service_pb2 as api
from tests.support.farm import TIMEOUT_S, Farm, running_farm

ONCE = [sys.executable, "-m", "kernelfarm.cli", "top", "--once"]


def top(*arguments: str) -> str:
    shown = subprocess.run(
        [*ONCE, *arguments],
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert shown.returncode == 0, shown.stderr
    return shown.stdout


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    with running_farm(tmp_path_factory.mktemp("farm"), "cpu", metrics=True) as started:
        with grpc.insecure_channel(started.endpoint) as channel:
            call = channel.unary_unary(
                "/kernelfarm.v1.CompileService/Lookup", api.LookupRequest.SerializeToString, None
            )
            with pytest.raises(grpc.RpcError):
                call(api.LookupRequest(key=bytes(32)), timeout=TIMEOUT_S)
        yield started


@pytest.mark.slow  # a farm of its own
def test_a_frame_shows_vendors_hits_and_calls(farm: Farm) -> None:
    frame = top("--endpoint", farm.endpoint, "--data-dir", str(farm.data_dir))
    assert "6 of 6 processes ready" in frame
    (cpu,) = (line for line in frame.splitlines() if line.startswith("cpu "))
    assert cpu.split()[1:6] == ["0.0", "0", "0", "0", "1"]
    assert "x86-64-v3" in cpu
    (cuda,) = (line for line in frame.splitlines() if line.startswith("cuda "))
    assert "no worker with its toolchain" in cuda
    (programs,) = (line for line in frame.splitlines() if line.startswith("programs "))
    assert programs.split()[4] == "1", "the look-up missed"
    assert "access_unrestricted" in frame, "the warnings of the logs"


@pytest.mark.slow  # a farm of its own
def test_without_metrics_a_frame_shows_what_the_farm_answers(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "farm.json").write_text(json.dumps({"children": {}}))
    frame = top(
        "--endpoint", farm.endpoint, "--data-dir", str(tmp_path), "--metrics", "127.0.0.1:9"
    )
    assert "no metrics of 127.0.0.1:9" in frame
    assert "start the farm with --metrics" in frame


def test_quantiles_are_bounds_of_buckets() -> None:
    bounds = {0.001: 50.0, 0.01: 99.0, float("inf"): 100.0}
    assert _quantile(bounds, 0.5) == "0.001"
    assert _quantile(bounds, 0.99) == "0.01"
    assert _quantile(bounds, 1.0) == "more"
    assert _quantile({}, 0.5) == "-"
