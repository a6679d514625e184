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
from tests.support.farm import QUICK_SWEEPS, Farm, running_farm
from tests.support.riscv_vendor import SMALL, TARGET, WIDE_TARGET, install_riscv_vendor
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


def test_emulated_kernels_are_as_exact_as_eager(riscv: RiscvFarm) -> None:
    need(*TOOLS)
    for name, row in riscv.models(*QUICK).items():
        assert row["is_exact"], (name, row)
        assert row["launches"] >= 2, (name, row)


@pytest.mark.slow
@pytest.mark.parametrize("target", [TARGET, WIDE_TARGET])
def test_emulated_models_are_as_exact_as_eager(riscv: RiscvFarm, target: str) -> None:
    need(*TOOLS)
    names = [f"{model}/{dtype}" for model in MODELS for dtype in ("float32", "bfloat16")]
    for name, row in riscv.models(*SMALL, *names, target=target).items():
        assert row["is_exact"], (name, row)
        assert row["launches"] >= 2, (name, row)
