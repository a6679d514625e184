"""No service needs torch: the tests' farm serves where torch cannot be imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil

from tests.support.calls import compile_at
from tests.support.farm import Farm
from tests.support.small_graphs import h_request

TARGETS = ("cpu:x86-64-v4", "cuda:sm_80", "rocm:gfx90a", "ascend:910b")

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


def test_a_farm_serves_every_vendor_without_torch(vendor_farm: Farm, without_torch: Path) -> None:
    programs = compile_at(vendor_farm.endpoint, h_request(56, 104, *TARGETS)).programs
    assert sorted(program.target for program in programs) == sorted(TARGETS)
    assert all(program.artifacts and program.codegen_jobs for program in programs)
    children = [psutil.Process(pid) for pid in vendor_farm.pids("")]
    python = {child.pid for child in children if "python" in child.name()}
    assert len(python) >= 3 + len(TARGETS)  # three services, one worker for each vendor
    assert python <= {int(path.stem) for path in without_torch.glob("*.pid")}


def test_no_module_of_the_services_imports_torch() -> None:
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    imported = done.stdout.split()
    for module in (
        "frontend_svc.api.compile_service",
        "optimizer_svc.service",
        "codegen_svc.worker.tasks",
    ):
        assert module in imported
