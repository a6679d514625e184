"""Kernels through code generation: real edge, broker, cache and workers, and the echo vendor."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from kernelfarm.errors import (
    InternalError,
    InvalidGraphError,
    KernelRejectedError,
    MalformedMessageError,
    UnavailableError,
    UnknownTargetError,
)
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import open_channel
from kernelfarm.v1 import compile_service_pb2
from kernelfarm.wire import binary_digest
from tests.support.codegen_calls import TARGET, artifacts_of, build
from tests.support.codegen_processes import CodegenFarm
from tests.support.fresh_kernels import fresh_kernel


async def test_an_out_of_tree_vendor_compiles_with_its_variants_in_order(
    stub: CodegenServiceStub,
) -> None:
    built = await build(stub, fresh_kernel("plain_variants"))
    special, general = artifacts_of(built[0])
    assert len(special.guard.atoms) == 1 and not general.guard.atoms
    assert general.target == TARGET
    assert general.toolchain.startswith("echo@")
    assert [stage.name for stage in general.stages] == ["source", "echo"]
    assert len(binary_digest(general)) == 32


async def test_the_second_request_makes_no_job(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    kernels = [fresh_kernel("plain_a"), fresh_kernel("plain_b")]
    first = await build(stub, *kernels)
    second = await build(stub, *kernels)
    assert all(response.caused_job for response in first.values())
    assert not any(response.caused_job for response in second.values())
    assert {i: artifacts_of(r)[0] for i, r in first.items()} == {
        i: artifacts_of(r)[0] for i, r in second.items()
    }
    assert codegen.compilations("plain_a") == 1


async def test_artifacts_stream_as_they_appear(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    gated, quick = fresh_kernel("gated_stream"), fresh_kernel("plain_stream")
    call = stub.BuildKernels(pb.BuildKernelsRequest(kernels=[gated, quick], target=TARGET))
    first = await call.read()
    assert first.index == 1
    codegen.release_job("gated_stream")
    second = await call.read()
    assert second.index == 0


async def test_equal_requests_to_two_edges_make_one_job(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    kernel = fresh_kernel("gated_shared")
    calls = [asyncio.create_task(build(stub, kernel)) for _ in range(20)]
    await asyncio.to_thread(codegen.start_service, "codegen", "edge2")
    async with open_channel(f"unix:{codegen.folder}/edge2") as channel:
        other = CodegenServiceStub(channel)
        calls += [asyncio.create_task(build(other, kernel)) for _ in range(20)]
        await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_shared")
        codegen.release_job("gated_shared")
        responses = await asyncio.gather(*calls)
    assert codegen.compilations("gated_shared") == 1
    assert sum(response[0].caused_job for response in responses) == 1


async def test_a_caller_that_gives_up_leaves_the_work_to_later_ones(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    kernel = fresh_kernel("gated_deserted")
    request = pb.BuildKernelsRequest(kernels=[kernel], target=TARGET)
    call = asyncio.create_task(stub.BuildKernels(request).read())
    await asyncio.to_thread(codegen.pid_of_blocked_job, "gated_deserted")
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    codegen.release_job("gated_deserted")
    built = await build(stub, kernel)
    assert not built[0].caused_job
    assert codegen.compilations("gated_deserted") == 1


async def test_a_refusal_by_the_toolchain_is_stored_and_given_again(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    kernel = fresh_kernel("rejected_1")
    for _ in range(3):
        with pytest.raises(KernelRejectedError, match="no such instruction"):
            await build(stub, kernel)
    assert codegen.compilations("rejected_1") == 1


async def test_one_bad_kernel_leaves_the_others_of_its_request_in_the_cache(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    good = fresh_kernel("plain_companion")
    with pytest.raises(KernelRejectedError):
        await build(stub, good, fresh_kernel("rejected_2"))
    assert (await build(stub, good))[0].signed
    assert codegen.compilations("plain_companion") == 1


async def test_a_backend_that_raises_is_our_bug_and_the_error_names_its_type(
    stub: CodegenServiceStub,
) -> None:
    with pytest.raises(InternalError, match="ZeroDivisionError: division by zero"):
        await build(stub, fresh_kernel("buggy_1"))


async def test_a_missing_tool_makes_the_kernel_unavailable_until_the_failure_expires(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    kernel = fresh_kernel("toolless_1")
    with pytest.raises(UnavailableError, match="the tool is away"):
        await build(stub, kernel)
    attempts = codegen.compilations("toolless_1")
    while codegen.compilations("toolless_1") == attempts:  # wait until the failure expires
        with pytest.raises(UnavailableError):
            await build(stub, kernel)


async def test_an_unknown_target_is_refused_with_the_known_ones(
    stub: CodegenServiceStub,
) -> None:
    with pytest.raises(UnknownTargetError, match="echo:one"):
        await build(stub, fresh_kernel("plain_target"), target="echo:two")


async def test_a_kernel_that_breaks_the_grammar_is_the_senders_fault(
    stub: CodegenServiceStub,
) -> None:
    kernel = fresh_kernel("plain_broken")
    kernel.body[1].compute.operands[0] = 7
    with pytest.raises(InvalidGraphError, match="plain_broken"):
        await build(stub, kernel)


async def test_a_request_without_kernels_is_malformed(stub: CodegenServiceStub) -> None:
    with pytest.raises(MalformedMessageError, match="without kernels"):
        await build(stub)


async def test_truncated_bytes_are_refused_by_name_and_the_service_goes_on(
    stub: CodegenServiceStub, codegen: CodegenFarm
) -> None:
    whole = pb.BuildKernelsRequest(kernels=[fresh_kernel("plain_cut")]).SerializeToString()
    method = "/kernelfarm.internal.v1.CodegenService/BuildKernels"
    async with open_channel(codegen.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="BuildKernelsRequest") as caught:
            await channel.unary_stream(method)(whole[:-2]).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert await build(stub, fresh_kernel("plain_after"))


async def test_toolchains_of_workers_are_reported(stub: CodegenServiceStub) -> None:
    response = await stub.GetToolchains(pb.GetToolchainsRequest())
    (entry,) = response.targets
    assert entry.target == TARGET
    assert entry.toolchain.startswith("echo@")
    assert not entry.makes_runnable_binaries


async def test_warm_up_jobs_are_built_too(stub: CodegenServiceStub) -> None:
    warm_up = compile_service_pb2.PRIORITY_WARM_UP
    assert (await build(stub, fresh_kernel("plain_warm"), priority=warm_up))[0].signed


async def test_a_hundred_kernels_at_once_are_all_built(stub: CodegenServiceStub) -> None:
    built = await build(stub, *(fresh_kernel(f"plain_many{i}") for i in range(100)))
    assert sorted(built) == list(range(100))
