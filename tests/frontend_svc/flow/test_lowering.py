"""A request for several targets is decomposed once for all targets that sort alike."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import torch

from frontend_svc.flow.events import EventStream
from frontend_svc.flow.graph_job_client import DecomposedGraph
from frontend_svc.flow.import_cache import GraphImport
from frontend_svc.flow.shared_decomposition import SharedDecomposition
from kernelfarm.targets import target_facts
from kernelfarm.wire import graph_to_proto
from tests.frontend_svc.flow.jobs import job_of
from tests.frontend_svc.flow.work_processes import cpu_work
from tests.support.single_operator import Call, captured_graph


def test_a_request_is_decomposed_once_for_targets_that_sort_alike() -> None:
    async def lower(call: Call) -> list[DecomposedGraph]:
        names = ("cpu:x86-64-v3", "cpu:aarch64", "cuda:sm_90a", "ascend:910b")
        graph = graph_to_proto(captured_graph(call)).SerializeToString()
        job = replace(job_of(), graph=graph, targets=names)
        async with cpu_work() as cpu:
            imported = GraphImport(job, b"digest", cpu)
            work = SharedDecomposition(cpu, EventStream(), imported, fallback_random=False)
            return [await work.result(target_facts(name)) for name in names]

    long_rows = Call("aten.sort.default", [torch.zeros(2, 5000)])
    first, second, third, fourth = asyncio.run(lower(long_rows))
    assert first is second and third is fourth
    assert "extern" not in first.report and "extern" in third.report
    assert len(set(map(id, asyncio.run(lower(Call("aten.neg.default", [torch.ones(3)])))))) == 1
