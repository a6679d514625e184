"""The import cache: program keys and errors by the digest of a request's bytes and tenant."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio

from frontend_svc.flow.compile_options import CompileOptions
from frontend_svc.flow.failure_ttls import FailureTtls
from frontend_svc.flow.graph_job_client import GraphJobClient
from frontend_svc.flow.import_cache import CALLER_ERROR_TTL_S, ImportCache, request_digest
from kernelfarm.digest import program_keys
from kernelfarm.errors import (
    InvalidGraphError,
    MalformedMessageError,
    WorkBudgetError,
    WorkMemoryError,
)
from kernelfarm.service.process_pool.limits import MIB
from kernelfarm.v1 import graph_pb2
from kernelfarm.wire.embedded import embedded, field_tag
from tests.frontend_svc.flow.jobs import OPTIONS, job_of, part_of
from tests.frontend_svc.flow.work_processes import cpu_work
from tests.support.small_graphs import CPU, h_graph, h_request

TIMES = FailureTtls(rejection_s=300.0, exhausted_s=30.0, outage_s=2.0)


@pytest_asyncio.fixture
async def cpu() -> AsyncIterator[GraphJobClient]:
    async with cpu_work() as work:
        yield work


async def test_requests_with_equal_bytes_are_decoded_once_and_have_equal_keys(
    cpu: GraphJobClient,
) -> None:
    imports = ImportCache(cpu, TIMES)
    expected = program_keys(h_graph(), (CPU,), OPTIONS.key_pairs())
    part = part_of()
    together = await asyncio.gather(*(imports.of(job_of(part=part)) for _ in range(8)))
    assert len({id(imported) for imported, _ in together}) == 1
    graphs = [await imported.graph() for imported, _ in together]
    assert len(set(map(id, graphs))) == 1
    del together, graphs
    gc.collect()
    later, known = await imports.of(replace(job_of(part=part), request_id="another"))
    assert known.keys == expected and known.nodes == 7
    assert (await later.graph()).ops == tuple(sorted({node.op for node in h_graph().nodes}))


async def test_keys_are_cached_for_the_last_requests_only(cpu: GraphJobClient) -> None:
    imports = ImportCache(cpu, TIMES, most=2)
    part = part_of()
    for rows in (1, 2, 3):
        await imports.of(job_of(rows, part))
    cached = [request_digest(job_of(rows, part)) in imports for rows in (1, 2, 3)]
    assert cached == [False, True, True]


async def test_a_wrong_graph_is_refused_each_time(cpu: GraphJobClient) -> None:
    imports = ImportCache(cpu, TIMES)
    message = h_request().graph
    message.nodes[0].args[0].value = 99
    job = replace(job_of(), graph=message.SerializeToString())
    for _ in range(2):
        with pytest.raises(InvalidGraphError):
            await imports.of(job)
        assert request_digest(job) not in imports


async def test_a_mistake_that_is_repeated_at_once_is_decoded_once(cpu: GraphJobClient) -> None:
    moments = iter((0.0, CALLER_ERROR_TTL_S - 1, CALLER_ERROR_TTL_S + 1, CALLER_ERROR_TTL_S + 1))
    imports = ImportCache(cpu, TIMES, clock=lambda: next(moments))
    message = h_request().graph
    message.nodes[0].args[0].value = 99
    job = replace(job_of(), graph=message.SerializeToString())
    errors = []
    for _ in range(3):
        with pytest.raises(InvalidGraphError) as caught:
            await imports.of(job)
        errors.append((str(caught.value), caught.value.was_cached))
    assert len({text for text, _ in errors}) == 1
    assert [was_cached for _, was_cached in errors] == [False, True, False]


async def test_bytes_that_are_no_graph_are_malformed(cpu: GraphJobClient) -> None:
    with pytest.raises(MalformedMessageError, match=r"3 bytes that are no kernelfarm\.v1\.Graph"):
        await ImportCache(cpu, TIMES).of(replace(job_of(), graph=b"\xff\xff\xff"))


async def test_a_graph_that_spends_its_budget_is_refused_from_the_cache_for_a_while() -> None:
    moments = iter((0.0, TIMES.rejection_s - 1, TIMES.rejection_s + 1, TIMES.rejection_s + 1))
    async with cpu_work(max_work_steps=1) as cpu:
        imports = ImportCache(cpu, TIMES, clock=lambda: next(moments))
        errors = []
        for _ in range(3):
            with pytest.raises(WorkBudgetError) as caught:
                await imports.of(job_of())
            errors.append(caught.traceback[-1].name)
    assert errors[0] == errors[2] != errors[1]  # found by a child, cached, found again


async def test_a_message_that_needs_too_much_memory_is_refused_with_the_limit() -> None:
    number = graph_pb2.Argument(integer=1).SerializeToString()
    items = b"".join(embedded(field_tag(graph_pb2.ArgumentList, "items"), number))
    listed = b"".join(embedded(field_tag(graph_pb2.Argument, "list"), items * 7_000_000))
    node = b"".join(embedded(field_tag(graph_pb2.Node, "args"), listed))
    graph = b"".join(embedded(field_tag(graph_pb2.Graph, "nodes"), node))
    assert len(graph) < 32 * MIB
    limits = {"max_work_memory_bytes": 512 * MIB, "max_work_steps": 10**9}
    async with cpu_work(**limits) as cpu:
        imports = ImportCache(cpu, TIMES)
        for _ in range(2):  # the second time from the cache
            with pytest.raises(WorkMemoryError, match="512 MiB"):
                await imports.of(
                    replace(job_of(), graph=h_request().graph.SerializeToString() + graph)
                )
        assert (await imports.of(job_of()))[1].nodes == 7


def test_everything_that_selects_a_program_and_the_tenant_are_in_the_digest() -> None:
    job = job_of()
    others = [
        job_of(65),
        replace(job, targets=("cuda:sm_90a",)),
        replace(job, targets=(CPU, "cuda:sm_90a")),
        replace(job, options=CompileOptions(is_deterministic=True)),
        replace(job, options=CompileOptions(fallback_random=True)),
        replace(job, options=CompileOptions(products="own")),
        replace(job, tenant_cache=part_of("another")),
    ]
    digests = {request_digest(other) for other in (job, *others)}
    assert len(digests) == 1 + len(others)
    assert request_digest(replace(job, request_id="x", priority=2)) == request_digest(job)
