"""Tenants in code generation: real edge, broker, cache and worker, and the echo vendor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

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
from tests.support.codegen_calls import TARGET
from tests.support.codegen_processes import CodegenFarm, codegen_farm
from tests.support.farm import until
from tests.support.fresh_kernels import fresh_kernel

FLOOD = 12


@pytest.fixture(scope="module")
def codegen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CodegenFarm]:
    """One worker process with a short queue; each job has a message of its own."""
    folder = tmp_path_factory.mktemp("turns")
    with codegen_farm(
        folder, queue_headroom="2", max_jobs_per_tenant="100", job_group_s="0"
    ) as started:
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


def events(farm: CodegenFarm, event: str) -> int:
    """How often the edge logged an event."""
    return farm.log("edge").count(f'"event": "{event}"'.encode())


async def blocked_job(farm: CodegenFarm) -> str:
    """Waits until the worker blocks in a job, lets that job go on and returns its name."""
    arrived: list[Path] = []
    is_there = lambda: bool(arrived.extend(farm.blocked_jobs.glob("*.pid")) or arrived)  # noqa: E731
    await until(is_there, "a gated kernel")
    arrived[0].unlink()
    return arrived[0].stem


@pytest.mark.parametrize("is_warm_up", [False, True])
async def test_a_flood_of_one_tenant_delays_another_by_few_jobs(
    codegen: CodegenFarm, *, is_warm_up: bool
) -> None:
    flood = [f"gated_{is_warm_up}_{number}" for number in range(FLOOD)]
    late = f"gated_{is_warm_up}_late"
    async with open_channel(codegen.address) as channel:
        stub = CodegenServiceStub(channel)

        async def build(request: pb.BuildKernelsRequest) -> int:
            return len([built async for built in stub.BuildKernels(request, timeout=120)])

        # Another tenant is active: of one worker process the flood holds one position.
        await build(request_of("default/beta", fresh_kernel(f"plain_{is_warm_up}")))
        queued, waiting = events(codegen, "job_queued"), events(codegen, "job_waiting")
        flooding = asyncio.create_task(
            build(request_of("default/acme", *map(fresh_kernel, flood), is_warm_up=is_warm_up))
        )
        compiled = [await blocked_job(codegen)]
        await until(lambda: events(codegen, "job_waiting") >= waiting + FLOOD - 1, "jobs that wait")
        # The worker may begin a job before the edge has logged it.
        await until(lambda: events(codegen, "job_queued") > queued, "a job of the flood")
        assert events(codegen, "job_queued") == queued + 1
        other = asyncio.create_task(build(request_of("default/beta", fresh_kernel(late))))
        await until(lambda: events(codegen, "job_queued") == queued + 2, "the other tenant's job")
        codegen.release_job(compiled[0])
        while len(compiled) <= FLOOD:
            compiled.append(await blocked_job(codegen))
            codegen.release_job(compiled[-1])
        assert (await other, await flooding) == (1, FLOOD)
    assert sorted(compiled) == sorted([*flood, late])
    assert compiled[1] == late


async def test_equal_kernels_of_two_tenants_are_compiled_and_stored_separately(
    codegen: CodegenFarm,
) -> None:
    kernel = fresh_kernel("plain_twice")
    key = kernel_key(kernel_from_proto(kernel), TARGET)
    salts = {"default/acme": b"a" * 32, "default/beta": b"b" * 32, "": b""}
    async with open_channel(codegen.address) as channel:
        stub = CodegenServiceStub(channel)
        for namespace, salt in salts.items():
            call = stub.BuildKernels(request_of(namespace, kernel, salt=salt))
            (built,) = [response async for response in call]
            signed = built.signed[0]
            assert built.caused_job
            assert (signed.manifest.namespace, signed.manifest.key) == (namespace or "default", key)
            tags = [tag for tag in signed.manifest.tags if tag.startswith("tenant:")]
            assert tags == ([f"tenant:{namespace.partition('/')[2]}"] if namespace else [])
    assert codegen.compilations("plain_twice") == 3
    async with KernelCache(codegen.cache.url, space=Space.KERNELS) as farm:
        acme = farm.for_namespace("default/acme", salts["default/acme"])
        assert (await acme.lookup(key)).is_hit
        assert not (await farm.for_namespace("default/acme").lookup(key)).is_hit


async def test_every_tenant_finds_only_kernels_that_a_warmer_published(
    codegen: CodegenFarm,
) -> None:
    kernel, own = fresh_kernel("plain_shared"), fresh_kernel("plain_own")
    salts = {"default/acme": b"a" * 32, "default/beta": b"b" * 32}
    async with open_channel(codegen.address) as channel:
        stub = CodegenServiceStub(channel)

        async def build(
            kernel: loops_pb2.Kernel, namespace: str, salt: bytes = b""
        ) -> pb.BuildKernelsResponse:
            call = stub.BuildKernels(request_of(namespace, kernel, salt=salt))
            (built,) = [response async for response in call]
            return built

        assert (await build(own, "default/acme", salts["default/acme"])).caused_job
        assert (await build(own, "default/beta", salts["default/beta"])).caused_job
        assert (await build(own, "default/shared")).caused_job, "warmers find no kernel of a tenant"
        assert (await build(kernel, "default/shared")).caused_job
        for namespace, salt in salts.items():
            built = await build(kernel, namespace, salt)
            assert not built.caused_job
            for signed in built.signed:
                assert signed.manifest.namespace == "default/shared"
                assert [t for t in signed.manifest.tags if "tenant:" in t] == ["tenant:shared"]
        assert (await build(kernel, "")).caused_job, (
            "requests without a namespace use a part of their own"
        )
    assert (codegen.compilations("plain_own"), codegen.compilations("plain_shared")) == (3, 2)
    async with KernelCache(codegen.cache.url, space=Space.KERNELS) as farm:
        for namespace, salt in salts.items():
            part = farm.for_namespace(namespace, salt)
            digests = [blob.sha256 for signed in built.signed for blob in signed.manifest.blobs]
            assert None not in await part.get_blobs(digests)
            assert (await part.stats())["shared_hits"] == 1


async def test_a_shared_kernel_that_lacks_a_blob_is_compiled(codegen: CodegenFarm) -> None:
    kernel = fresh_kernel("plain_hole")
    async with open_channel(codegen.address) as channel:
        stub = CodegenServiceStub(channel)
        for namespace in ("default/shared", "default/acme"):
            call = stub.BuildKernels(request_of(namespace, kernel))
            (built,) = [response async for response in call]
            assert built.caused_job
            async with KernelCache(codegen.cache.url, space=Space.KERNELS) as farm:
                names = farm.for_namespace("default/shared").redis_keys
                for blob in built.signed[0].manifest.blobs:
                    await farm.client.delete(names.blob(blob.sha256))


async def test_namespaces_of_other_farms_are_refused(codegen: CodegenFarm) -> None:
    async with open_channel(codegen.address) as channel:
        stub = CodegenServiceStub(channel)
        for namespace in ("elsewhere", "elsewhere/acme", "default/acme:m:k", "default/a/b"):
            with pytest.raises(CallerError, match="expected 'default'"), translated_errors("edge"):
                await stub.BuildKernels(request_of(namespace, fresh_kernel("plain_x"))).read()
