"""No service needs torch: a whole farm serves where torch cannot be imported."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.acceptance.everything import ACCELERATORS
from tests.farm_process import Farm, running_farm
from tests.service.calls import compile_at
from tests.service.h_graph import h_request

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu:x86-64-v4", "cuda:sm_80", "rocm:gfx90a", "ascend:910b")

# Every Python process imports this by itself when it starts; each leaves its number.
BLOCK = """
import os, pathlib, sys
sys.modules["torch"] = None
pathlib.Path(__file__).with_name(f"{os.getpid()}.pid").touch()
"""

IMPORT_ALL = """
import importlib, pkgutil, sys
packages = ["frontend_svc", "optimizer_svc", "codegen_svc"]
packages += ["kernelfarm." + name for name in ("ir", "wire", "cache", "service", "supervisor")]
for package in packages:
    folder = importlib.import_module(package).__path__
    for module in pkgutil.walk_packages(folder, package + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
            print(module.name)
heavy = sorted({"torch", "transformers"} & set(sys.modules))
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def blocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on PYTHONPATH, keeps torch out of every process."""
    folder = tmp_path_factory.mktemp("blocked")
    (folder / "sitecustomize.py").write_text(BLOCK)
    return folder


@pytest.fixture(scope="module")
def farm_without_torch(blocked: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    path = os.pathsep.join([str(blocked), str(ROOT)])
    vendors = ",".join(["cpu", *ACCELERATORS])
    data = tmp_path_factory.mktemp("farm")
    with running_farm(data, vendors, PYTHONPATH=path) as running:
        yield running


def test_a_farm_serves_every_vendor_without_torch(farm_without_torch: Farm, blocked: Path) -> None:
    programs = compile_at(farm_without_torch.endpoint, h_request(64, 128, *TARGETS)).programs
    assert sorted(program.target for program in programs) == sorted(TARGETS)
    assert all(program.artifacts and program.codegen_jobs for program in programs)
    children = [psutil.Process(pid) for pid in farm_without_torch.pids("")]
    python = {child.pid for child in children if "python" in child.name()}
    assert len(python) >= 3 + len(TARGETS)  # three rooms, one worker for each vendor
    assert python <= {int(path.stem) for path in blocked.glob("*.pid")}


def test_no_module_of_the_services_imports_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    for module in ("frontend_svc.service", "optimizer_svc.service", "codegen_svc.tasks"):
        assert module in imported
