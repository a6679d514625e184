"""A request for several targets is decomposed once for all targets that decompose alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.flow.events import EventStream
from frontend_svc.flow.graph_job_client import DecomposedGraph
from frontend_svc.flow.import_cache import GraphImport
from frontend_svc.flow.shared_decomposition import SharedDecomposition
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_to_proto
from tests.frontend_svc.flow.jobs import job_of
from tests.frontend_svc.flow.work_processes import cpu_work
from tests.support.single_operator import Call, captured_graph

TARGETS = ("cpu:x86-64-v3", "cpu:aarch64", "cuda:sm_90a", "ascend:910b")


async def _lowered(call: Call, *, is_deterministic: bool = False) -> list[DecomposedGraph]:
    graph = graph_to_proto(captured_graph(call)).SerializeToString()
    job = replace(job_of(), graph=graph, targets=TARGETS)
    async with cpu_work() as cpu:
        imported = GraphImport(job, b"digest", cpu)
        options = CompileOptions(is_deterministic)
        work = SharedDecomposition(cpu, EventStream(), imported, options=options)
        return [await work.result(target_facts(name)) for name in TARGETS]


def test_a_request_is_decomposed_once_for_targets_that_sort_alike() -> None:
    long_rows = Call("aten.sort.default", [torch.zeros(2, 5000)])
    first, second, third, fourth = asyncio.run(_lowered(long_rows))
    assert first is second and third is fourth
    assert "extern" not in first.report and "extern" in third.report
    assert len(set(map(id, asyncio.run(_lowered(Call("aten.neg.default", [torch.ones(3)])))))) == 1


def test_a_deterministic_request_keeps_updates_of_floats_on_targets_that_order_them() -> None:
    rows, numbers = torch.ones(3, 4), torch.tensor([1, 4, 1])
    call = Call("aten.index_add.default", [torch.zeros(6, 4), 0, numbers, rows])
    first, second, third, fourth = asyncio.run(_lowered(call, is_deterministic=True))
    assert first is second and third is fourth
    assert "decomposed" in first.report and "scatter" in first.report
    assert third.report.startswith("node 0 aten.index_add.default: extern (deterministic: ")
    assert len(set(map(id, asyncio.run(_lowered(call))))) == 1
