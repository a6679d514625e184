"""Packages by way of a real farm, between processes: no trace, no compilation, its own source."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernelfarm.client.farm.cache_client import CacheAdmin
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
"""

Start = Callable[..., dict[str, Any]]


@pytest.fixture
def start(farm: Farm, tmp_path: Path) -> Start:
    """Starts a process with a disk of its own, and returns what it reports."""

    def process(disk: str, comment: str = "as it was", **stated: str) -> dict[str, Any]:
        number = 1.0 + int.from_bytes(os.fsencode(tmp_path.name)[-3:], "little") / 2**24
        folder = tmp_path / "source"
        folder.mkdir(exist_ok=True)
        (folder / "packaged_here.py").write_text(SOURCE.format(number=number, comment=comment))
        environment = {
            **os.environ,
            "KERNELFARM_ENDPOINT": farm.endpoint,
            "KERNELFARM_MODE": "strict",
            "KERNELFARM_PACKAGES": "trusted",
            "KERNELFARM_TRUSTED_KEYS_FILE": str(farm.data_dir / "keys" / PUBLIC_KEYS),
            "KERNELFARM_DISK_CACHE_DIR": str(tmp_path / disk),
            **stated,
        }
        arguments = ("-m", "tests.e2e.packaged_client", str(folder))
        done = run_python(arguments, environment, timeout_s=4 * TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        assert found["error"] < TOLERANCE
        return found

    return process


def jobs_of(farm: Farm) -> int:
    with CacheAdmin(farm.endpoint) as admin:
        return int(admin.usage().spaces[1].counters.get("jobs", 0))


# slow: each process imports PyTorch.
@pytest.mark.slow
def test_new_processes_with_empty_disks_neither_trace_nor_compile(farm: Farm, start: Start) -> None:
    key = str(farm.data_dir / "keys" / TRACE_KEY)
    made = start("publisher", KERNELFARM_TRACE_KEY_FILE=key)
    assert made["counters"]["packages.farm.published"] == 1
    jobs = jobs_of(farm)
    for disk in ("one", "another"):
        found = start(disk)
        assert (found["traced"], found["frames"]) == (0, 0)
        assert found["counters"]["packages.farm.hits"] == found["counters"]["farm.prefetched"] == 1
        assert not UNUSED & set(found["imported"])
    assert jobs_of(farm) == jobs
    # The comment is no part of the bytecode, but of the source that PyTorch recorded.
    changed = start("changed", "another comment")
    assert changed["counters"]["refused.packages.source_changed"] == 1
    assert changed["frames"] == 1
