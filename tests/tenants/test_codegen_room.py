"""Tenants in the codegen room: real edge, broker, cache and worker; the echo vendor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from kernelfarm.cache import KernelCache, Space
from kernelfarm.digest import kernel_key
from kernelfarm.errors import CallerError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel, translated_errors
from kernelfarm.v1 import compile_service_pb2
from kernelfarm.wire import kernel_from_proto
from tests.farm.kernels import fresh_kernel
from tests.farm.processes import CodegenRoom, codegen_room

TARGET = "echo:one"
FLOOD = 40


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenRoom]:
    """One worker process, and few places in its queue."""
    folder = tmp_path_factory.mktemp("turns")
    with codegen_room(folder, queue_places="2", max_jobs_of_a_tenant="100") as started:
        started.start_edge()
        started.start_worker()
        yield started


def request_of(
    namespace: str, *kernels: loops_pb2.Kernel, is_warm_up: bool = False, salt: bytes = b""
) -> pb.BuildKernelsRequest:
    priority = (
        compile_service_pb2.PRIORITY_WARM_UP
        if is_warm_up
        else compile_service_pb2.PRIORITY_INTERACTIVE
    )
    return pb.BuildKernelsRequest(
        kernels=kernels, target=TARGET, namespace=namespace, priority=priority, salt=salt
    )


async def looked_for(room: CodegenRoom, namespace: str, times: int) -> None:
    """Returns when so many kernels were looked for in a namespace, and not found."""
    async with KernelCache(room.cache.url, space=Space.KERNELS) as farm, asyncio.timeout(20):
        while (await farm.within(namespace).stats()).get("misses", 0) < times:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("is_warm_up", [False, True])
async def test_a_flood_of_one_tenant_delays_another_by_few_jobs(
    room: CodegenRoom, *, is_warm_up: bool
) -> None:
    gate = f"gated_{is_warm_up}"
    flood = [fresh_kernel(gate), *(fresh_kernel(f"plain_{is_warm_up}_{n}") for n in range(FLOOD))]
    done: list[int] = []
    async with open_channel(room.address) as channel:
        stub = CodegenServiceStub(channel)

        async def take(request: pb.BuildKernelsRequest) -> None:
            async for built in stub.BuildKernels(request, timeout=60):
                done.append(built.index)

        flooding = asyncio.create_task(
            take(request_of("default/acme", *flood, is_warm_up=is_warm_up))
        )
        await asyncio.to_thread(room.pid_at_gate, gate)
        other = stub.BuildKernels(request_of("default/beta", fresh_kernel("plain_b")), timeout=60)
        reading = asyncio.create_task(other.read())
        await looked_for(room, "default/beta", 1 + is_warm_up)
        room.open_gate(gate)
        await asyncio.wait_for(reading, 30)
        before = len(done)
        await flooding
    # The gate, what was in the queue (two places and two for the worker), and one turn.
    assert before <= 8
    assert len(done) == FLOOD + 1


async def test_equal_kernels_of_two_tenants_are_two_and_lie_apart(room: CodegenRoom) -> None:
    kernel = fresh_kernel("plain_twice")
    key = kernel_key(kernel_from_proto(kernel), TARGET)
    salts = {"default/acme": b"a" * 32, "default/beta": b"b" * 32, "": b""}
    async with open_channel(room.address) as channel:
        stub = CodegenServiceStub(channel)
        for namespace, salt in salts.items():
            call = stub.BuildKernels(request_of(namespace, kernel, salt=salt))
            (built,) = [response async for response in call]
            signed = built.signed[0]
            assert built.caused_job
            assert (signed.manifest.namespace, signed.manifest.key) == (namespace or "default", key)
            tags = [tag for tag in signed.manifest.tags if tag.startswith("tenant:")]
            assert tags == ([f"tenant:{namespace.partition('/')[2]}"] if namespace else [])
    assert room.compilations("plain_twice") == 3
    async with KernelCache(room.cache.url, space=Space.KERNELS) as farm:
        acme = farm.within("default/acme", salts["default/acme"])
        assert (await acme.lookup(key)).is_hit
        assert not (await farm.within("default/acme").lookup(key)).is_hit


async def test_namespaces_of_other_farms_are_refused(room: CodegenRoom) -> None:
    async with open_channel(room.address) as channel:
        stub = CodegenServiceStub(channel)
        for namespace in ("elsewhere", "elsewhere/acme", "default/acme:m:k", "default/a/b"):
            with pytest.raises(CallerError, match="expected 'default'"), translated_errors("edge"):
                await stub.BuildKernels(request_of(namespace, fresh_kernel("plain_x"))).read()
