"""A prepared folder serves a process that has no farm; rehearsed on this machine's CPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernelfarm.client import counters
from kernelfarm.client.loaders.by_device import device_support
from tests.gpu.recorded_scenarios import all_scenarios
from tests.gpu.run_case import problem_of
from tests.gpu.table import all_cases
from tests.support.prepared_folder import offline

CPU = torch.device("cpu")
NAMES = ("dropout of any size", "gradients of windows", "losses")


@pytest.mark.slow
def test_cases_run_from_a_folder_without_the_farm_that_made_it(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu", "build", str(tmp_path), "--kind", "programs"]
    command += ["--target", device_support(CPU).target, "--only", *NAMES]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    before = counters.snapshot().get("disk.hits", 0)
    with offline(tmp_path) as prepared:
        assert set(prepared.graphs) == set(NAMES)
        for case in all_cases([]):
            if case.name in NAMES:
                assert problem_of(case, CPU, {"mode": "strict", "timeout_s": 5.0}) == ""
    assert counters.snapshot()["disk.hits"] - before >= len(NAMES)


@pytest.mark.slow
def test_kernels_bound_by_memory_are_measured_without_the_farm_that_made_them(
    tmp_path: Path,
) -> None:
    folder, table = tmp_path / "prepared", tmp_path / "table.json"
    command = [sys.executable, "-m", "benchmarks.memory_bound"]
    only = ["--only", "rotary", "cross_entropy_training", "column_sum"]
    target = ["--target", device_support(CPU).target, "--elems", "1048576"]
    subprocess.run([*command, "build", str(folder), *target, *only], check=True)
    options = ["--no-inductor", "--json", str(table)]
    subprocess.run([*command, "run", str(folder), *options, *only], check=True)
    rows = json.loads(table.read_text())
    assert len(rows) == 12
    for row in rows:
        assert row["failure"] == ""
        assert row["difference"] <= row["limit"]
        assert row["ms"].keys() == {"copy", "eager", "kernelfarm"}


@pytest.mark.slow
def test_scenarios_of_replays_run_from_a_folder_without_the_farm_that_made_it(
    tmp_path: Path,
) -> None:
    folder, table = tmp_path / "prepared", tmp_path / "table.json"
    command = [sys.executable, "-m", "tests.gpu.recorded"]
    target = ["--target", device_support(CPU).target]
    subprocess.run([*command, "build", str(folder), *target], check=True)
    subprocess.run([*command, "run", str(folder), "--json", str(table)], check=True)
    found = json.loads(table.read_text())
    assert len(found) == 3 * len(list(all_scenarios()))
    assert {outcome["outcome"] for outcome in found.values()} == {"right"}


@pytest.mark.slow
def test_launches_are_measured_without_the_farm_that_made_the_programs(tmp_path: Path) -> None:
    folder, table = tmp_path / "prepared", tmp_path / "table.json"
    command = [sys.executable, "-m", "benchmarks.launch_path"]
    target = ["--target", device_support(CPU).target]
    subprocess.run([*command, "build", str(folder), *target], check=True)
    options = ["--no-inductor", "--json", str(table)]
    subprocess.run([*command, "run", str(folder), *options], check=True)
    rows = json.loads(table.read_text())
    assert {"launch", "layers, call", "layers, with kernels"} <= rows.keys()
    for times in rows.values():
        assert times.keys() == {"kernelfarm", "kernelfarm reduce-overhead"}
        assert all(us > 0 for us in times.values())
