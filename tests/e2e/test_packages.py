"""Packages by way of a real farm, between processes: no trace, no compilation, its own source."""

from __future__ import annotations

import json
import os
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from kernelfarm.cli import make_app
from kernelfarm.client.farm.cache_client import CacheAdmin
from kernelfarm.client.loaders.host_target import host_cpu_target
from kernelfarm.signing.key_files import PUBLIC_KEYS, TRACE_KEY
from tests.support.farm import TIMEOUT_S, Farm
from tests.support.torch_children import run_python

TOLERANCE = 1e-5

UNUSED = {"pydantic", "opentelemetry", "redis", "celery", "llvmlite"}
"""Packages that a warm start does not need."""

SOURCE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(12, 8)

    def forward(self, x):
        return torch.tanh(self.layer(x) * {number}).softmax(-1)  # {comment}

def built():
    return Model(), (torch.zeros(4, 12),)
"""

MANIFEST = """
format: 1
targets: ["{target}"]
models:
  - name: packaged
    entry: packaged_here:built
"""

FLEET = 50


@dataclass(frozen=True)
class Machines:
    """Processes with disks of their own, and the source of the model that they call."""

    farm: Farm
    folder: Path

    def write(self, comment: str) -> Path:
        """Writes the module of the model; its number is that of no other test."""
        number = 1.0 + zlib.crc32(os.fsencode(self.folder)) / 2**32
        source = self.folder / "source"
        source.mkdir(exist_ok=True)
        (source / "packaged_here.py").write_text(SOURCE.format(number=number, comment=comment))
        return source

    def start(self, disk: str, comment: str = "as it was", **stated: str) -> dict[str, Any]:
        """Starts a process, and returns what it reports."""
        source = self.write(comment)
        environment = {
            **os.environ,
            "KERNELFARM_ENDPOINT": self.farm.endpoint,
            "KERNELFARM_MODE": "strict",
            "KERNELFARM_PACKAGES": "trusted",
            "KERNELFARM_TRUSTED_KEYS_FILE": str(self.farm.data_dir / "keys" / PUBLIC_KEYS),
            "KERNELFARM_DISK_CACHE_DIR": str(self.folder / disk),
            **stated,
        }
        arguments = ("-m", "tests.e2e.packaged_client", str(source))
        done = run_python(arguments, environment, timeout_s=4 * TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert found["error"] < TOLERANCE
        return found


@pytest.fixture
def machines(farm: Farm, tmp_path: Path) -> Machines:
    return Machines(farm, tmp_path)


def jobs_of(farm: Farm) -> int:
    with CacheAdmin(farm.endpoint) as admin:
        return int(admin.usage().spaces[1].counters.get("jobs", 0))


# slow: each process imports PyTorch.
@pytest.mark.slow
def test_new_processes_with_empty_disks_neither_trace_nor_compile(
    farm: Farm, machines: Machines
) -> None:
    key = str(farm.data_dir / "keys" / TRACE_KEY)
    made = machines.start("publisher", KERNELFARM_TRACE_KEY_FILE=key)
    assert made["counters"]["packages.farm.published"] == 1
    jobs = jobs_of(farm)
    for disk in ("one", "another"):
        found = machines.start(disk)
        assert (found["traced"], found["frames"]) == (0, 0)
        assert found["counters"]["packages.farm.hits"] == found["counters"]["farm.prefetched"] == 1
        assert not UNUSED & set(found["imported"])
    assert jobs_of(farm) == jobs
    # The comment is no part of the bytecode, but of the source that PyTorch recorded.
    changed = machines.start("changed", "another comment")
    assert changed["counters"]["refused.packages.source_changed"] == 1
    assert changed["frames"] == 1


# slow: fifty processes.
@pytest.mark.slow
def test_a_fleet_neither_traces_nor_compiles_after_a_warming_job(
    farm: Farm, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = machines.write("as it was")
    monkeypatch.syspath_prepend(str(source))
    keys = farm.data_dir / "keys"
    monkeypatch.setenv("KERNELFARM_TRACE_KEY_FILE", str(keys / TRACE_KEY))
    monkeypatch.setenv("KERNELFARM_TRUSTED_KEYS_FILE", str(keys / PUBLIC_KEYS))
    manifest = machines.folder / "m.yaml"
    manifest.write_text(MANIFEST.format(target=host_cpu_target()))
    command = ["warm", str(manifest), "--packages", "--endpoint", farm.endpoint]
    done = CliRunner().invoke(make_app(), command)
    assert done.exit_code == 0 and "package present" in done.output, done.output
    monkeypatch.delenv("KERNELFARM_TRACE_KEY_FILE")
    jobs = jobs_of(farm)
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda n: machines.start(f"disk-{n}"), range(FLEET)))
    assert [(one["traced"], one["frames"]) for one in found] == [(0, 0)] * FLEET
    assert [one["counters"]["packages.loaded"] for one in found] == [1] * FLEET
    assert [one["counters"]["farm.prefetched"] for one in found] == [1] * FLEET
    assert jobs_of(farm) == jobs
