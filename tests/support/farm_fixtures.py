"""Farms that tests share: each starts when the first test needs it, once in each xdist worker.

Tests that hurt a farm start their own. A farm that only one group of pytest-xdist uses ends with
that group: an idle one would use 4 % of a processor until the end of the run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kernelfarm.service.tenants.directory import Tenant, TenantDirectory
from kernelfarm.service.tenants.identity import Quota, Role
from kernelfarm.service.tenants.tokens import new_token
from kernelfarm.service.tenants.toml_file import write_tenants
from tests.support.farm import ACCELERATORS, QUICK_SWEEPS, Farm, running_farm
from tests.support.processes import kill_tree
from tests.support.tenants_farm import TENANTS, TenantFarm
from tests.support.xdist_groups import group_of

# Every Python process imports this when it starts; each leaves a file with its process id.
BLOCK_TORCH = """
import os, pathlib, sys
sys.modules["torch"] = None
pathlib.Path(__file__).with_name(f"{os.getpid()}.pid").touch()
"""

# The farms that end with their group.
_of_group: dict[str, Farm] = {}


# Last, so that fixtures of the test can still call the farm.
@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Ends the farm of a group after its last test; only then does the group not come again."""
    if not getattr(item.config.option, "loadgroup", False) or nextitem is None:
        return
    group = group_of(item)
    if group != group_of(nextitem) and group in _of_group:
        process = _of_group.pop(group).process
        kill_tree(process.pid)
        process.wait()


@pytest.fixture(scope="session")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that, on PYTHONPATH, keeps torch out of every process, and collects their ids."""
    folder = tmp_path_factory.mktemp("without-torch")
    (folder / "sitecustomize.py").write_text(BLOCK_TORCH)
    return folder


@pytest.fixture(scope="session")
def farm(tmp_path_factory: pytest.TempPathFactory, without_torch: Path) -> Iterator[Farm]:
    """A farm for the CPU, whose processes cannot import torch: no service needs it."""
    path = _with_sources(without_torch)
    folder = tmp_path_factory.mktemp("farm")
    with running_farm(folder, "cpu", workers=2, PYTHONPATH=path, **QUICK_SWEEPS) as running:
        yield running


@pytest.fixture(scope="session")
def vendor_farm(tmp_path_factory: pytest.TempPathFactory, without_torch: Path) -> Iterator[Farm]:
    """As `farm`, for every vendor; its tests are one group of pytest-xdist, `vendors`."""
    vendors = ",".join(sorted({"cpu", *ACCELERATORS}))
    path = _with_sources(without_torch)
    folder = tmp_path_factory.mktemp("vendors")
    with running_farm(folder, vendors, workers=2, PYTHONPATH=path, **QUICK_SWEEPS) as running:
        _of_group["vendors"] = running
        yield running


@pytest.fixture(scope="session")
def tenant_farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TenantFarm]:
    """A farm with three tenants; its tests are one group of pytest-xdist, `tenants`."""
    folder = tmp_path_factory.mktemp("tenants")
    path, tokens, tenants = folder / "tenants.toml", {}, []
    for number, name in enumerate(TENANTS):
        stored = []
        for role in Role:
            tokens[name, role], hashed = new_token(frozenset({role}))
            stored.append(hashed)
        tenants.append(Tenant(name, bytes([number]) * 32, Quota(), tuple(stored)))
    write_tenants(path, TenantDirectory(tenants))
    settings = {"KERNELFARM_TENANTS_FILE": str(path), "KERNELFARM_PAGE_LISTEN": "127.0.0.1:0"}
    with running_farm(folder / "farm", "cpu", **settings) as running:
        _of_group["tenants"] = running
        yield TenantFarm(running, path, tokens)


def _with_sources(folder: Path) -> str:
    """A module path of the folder and this repository."""
    return os.pathsep.join([str(folder), str(Path(__file__).parents[2])])
