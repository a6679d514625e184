"""One process with two devices of a kind: each has kernels of its own, in its own memory."""

from __future__ import annotations

from pathlib import Path

import torch

from kernelfarm.client import counters
from kernelfarm.client.farm.compile_options import CompileOptions
from kernelfarm.client.loaders.by_device import device_support
from kernelfarm.client.loaders.contract import DeviceSupport
from kernelfarm.client.loaders.cpu import CpuLoader
from kernelfarm.client.runtime.runner import PlanRunner
from tests.support.client_process import new_process
from tests.support.farm import Farm
from tests.support.traced_graphs import traced_one


def test_a_program_is_loaded_for_each_device_and_fetched_once(farm: Farm, tmp_path: Path) -> None:
    x = torch.randn(4, 9)
    captured = traced_one(lambda a: a.exp().sum(1) * 0.8125, x)
    process = new_process(farm.endpoint, tmp_path)
    first = device_support(captured.device)
    second = DeviceSupport(first.target, CpuLoader())
    programs = [
        process.store.program(process.access, captured, support, CompileOptions())
        for support in (first, second, first, second)
    ]
    assert programs[0] is programs[2]
    assert programs[1] is programs[3]
    kernels = [[v.kernel for variants in p.kernels for v in variants] for p in programs[:2]]
    assert kernels[0]
    assert not set(map(id, kernels[0])) & set(map(id, kernels[1]))
    counted = counters.snapshot()
    assert (counted["farm.misses"], counted["disk.hits"], counted["memory.hits"]) == (1, 1, 2)
    for program, support in zip(programs, (first, second), strict=False):
        run = PlanRunner(program.for_graph(captured, support.loader))
        torch.testing.assert_close(run([x])[0], x.exp().sum(1) * 0.8125)
