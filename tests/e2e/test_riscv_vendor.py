"""A vendor outside of the tree: its farm compiles models, and an emulated processor runs them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from examples.model_zoo import MODELS
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.chart import CHART, render
from tests.support.farm import QUICK_SWEEPS, Farm, running_farm
from tests.support.riscv_vendor import PACKAGE, SMALL, TARGET, WIDE_TARGET, install_riscv_vendor
from tests.support.third_party import need

QUICK = ("reference", "f16-norm", "rows")
TOOLS = ("qemu-riscv64", "riscv64-linux-gnu-gcc")

pytestmark = pytest.mark.third_party


@dataclass(frozen=True)
class RiscvFarm:
    """A farm of the vendor alone, and the environment of its clients."""

    farm: Farm
    environment: dict[str, str]

    def output(self, *command: str, **more: str) -> str:
        """What a Python command prints; if it fails, the test fails with its errors."""
        ended = subprocess.run(
            [sys.executable, *command],
            env={**os.environ, **self.environment, **more},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-4000:]
        return ended.stdout

    def models(self, *names: str, target: str = TARGET) -> dict[str, dict[str, Any]]:
        """Errors and launches of models, by name."""
        command = ("-m", "tests.e2e.riscv_client", *names)
        found = json.loads(self.output(*command, KERNELFARM_HOST_TARGET=target).splitlines()[-1])
        assert list(found) == list(names)
        return found


@pytest.fixture(scope="module")
def riscv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RiscvFarm]:
    path = install_riscv_vendor(tmp_path_factory.mktemp("riscv"))
    folder = tmp_path_factory.mktemp("farm")
    with running_farm(folder, "riscv", PYTHONPATH=path, **QUICK_SWEEPS) as farm:
        client = {
            "PYTHONPATH": path,
            "KERNELFARM_ENDPOINT": farm.endpoint,
            "KERNELFARM_DISK_CACHE_BYTES": "0",
        }
        yield RiscvFarm(farm, client)


@pytest.fixture(scope="module")
def found(riscv: RiscvFarm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process reports that runs commands and models."""
    need(*TOOLS)
    keys = riscv.farm.data_dir / "keys"
    signing = {
        "KERNELFARM_TRACE_KEY_FILE": str(keys / TRACE_KEY),
        "KERNELFARM_TRUSTED_KEYS_FILE": str(keys / PUBLIC_KEYS),
        "KERNELFARM_HOST_TARGET": TARGET,
        "COLUMNS": "200",
    }
    folder = tmp_path_factory.mktemp("commands")
    command = ("-m", "tests.e2e.riscv_commands", str(folder), *QUICK)
    reported: dict[str, Any] = json.loads(riscv.output(*command, **signing).splitlines()[-1])
    return reported


def test_emulated_kernels_are_as_exact_as_eager(found: dict[str, Any]) -> None:
    assert list(found["models"]) == list(QUICK)
    for name, row in found["models"].items():
        assert row["is_exact"], (name, row)
        assert row["launches"] >= 2, (name, row)


def test_commands_know_the_vendor_and_warmed_kernels_run(found: dict[str, Any]) -> None:
    assert f"{TARGET} (KERNELFARM_HOST_TARGET; the best here is cpu:" in found["doctor"]
    lines = [line.split()[:3] for line in found["doctor"].split("\n")]
    for tool in ("LLVM", "LLD", *TOOLS):
        assert ["riscv", tool, "ok"] in lines
    assert "1 of 1 programs present" in found["warm"]
    assert TARGET in found["compile"]
    assert "vsetivli" in found["asm"] or "vsetvli" in found["asm"]
    assert found["counters"]["warm.farm.hits"] == 1
    assert found["error"] < 1e-6


def test_a_target_that_the_vendor_lacks_is_refused_with_those_that_it_has(riscv: RiscvFarm) -> None:
    code = (
        "from kernelfarm.client.loaders.by_device import host_support\n"
        "from kernelfarm.errors import UnknownTargetError\n"
        "try:\n    host_support()\n"
        "except UnknownTargetError as error:\n    print(error)\n"
    )
    message = riscv.output("-c", code, KERNELFARM_HOST_TARGET="riscv:rv32i").strip()
    assert message == f"unknown target 'riscv:rv32i'; expected one of: {TARGET}, {WIDE_TARGET}"


def test_the_chart_deploys_the_vendors_workers() -> None:
    deployments = {
        document["metadata"]["name"]: document
        for document in render("-f", CHART / "values/minimal.yaml", "-f", PACKAGE / "values.yaml")
        if document["kind"] == "Deployment"
    }
    pod = deployments["kf-kernelfarm-worker-riscv"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert container["image"] == "registry.example/kernelfarm/worker-riscv:1.0"
    assert container["command"][-4:-1] == ["--queue", "riscv", "--concurrency"]


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, WIDE_TARGET])
def test_emulated_models_are_as_exact_as_eager(riscv: RiscvFarm, target: str) -> None:
    need(*TOOLS)
    names = [f"{model}/{dtype}" for model in MODELS for dtype in ("float32", "bfloat16")]
    for name, row in riscv.models(*SMALL, *names, target=target).items():
        assert row["is_exact"], (name, row)
        assert row["launches"] >= 2, (name, row)
