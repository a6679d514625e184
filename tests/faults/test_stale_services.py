"""A frontend accepts no stale response of another service: proxies send it such responses.

The proxies forward calls to the real services, and change one thing in their responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from kernelfarm.cache import KernelCache, Space
from kernelfarm.errors import UnavailableError
from kernelfarm.internal.v1 import codegen_service_pb2, optimizer_service_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import (
    CodegenServiceServicer,
    CodegenServiceStub,
    add_CodegenServiceServicer_to_server,
)
from kernelfarm.internal.v1.optimizer_service_pb2_grpc import (
    OptimizerServiceServicer,
    OptimizerServiceStub,
    add_OptimizerServiceServicer_to_server,
)
from kernelfarm.service.channels import channel_options, open_channel, translated_errors
from kernelfarm.signing import Manifest
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from kernelfarm.wire.manifest import manifest_from_proto
from tests.support.codegen_calls import TARGET
from tests.support.codegen_processes import CodegenFarm
from tests.support.farm import TIMEOUT_S
from tests.support.small_graphs import h_request


class ReplayingEdge(CodegenServiceServicer):
    """Sends the responses of its first call again, for the next `replays` calls."""

    def __init__(self, real: str) -> None:
        self.channel = open_channel(real)
        self._stub = CodegenServiceStub(self.channel)
        self._first: list[codegen_service_pb2.BuildKernelsResponse] = []
        self.replays = 0

    async def BuildKernels(  # noqa: N802 (the protocol's name)
        self, request: codegen_service_pb2.BuildKernelsRequest, context: object
    ) -> AsyncIterator[codegen_service_pb2.BuildKernelsResponse]:
        if self.replays:
            self.replays -= 1
            for response in self._first:
                yield response
            return
        responses = [response async for response in self._stub.BuildKernels(request)]
        self._first = self._first or responses
        for response in responses:
            yield response


class ReplacedOptimizer(OptimizerServiceServicer):
    """Reports another toolchain than the one that optimizes, as if it had just been replaced."""

    def __init__(self, real: str) -> None:
        self.channel = open_channel(real)
        self._stub = OptimizerServiceStub(self.channel)

    async def GetToolchain(  # noqa: N802 (the protocol's name)
        self, request: optimizer_service_pb2.GetToolchainRequest, context: object
    ) -> optimizer_service_pb2.GetToolchainResponse:
        return optimizer_service_pb2.GetToolchainResponse(toolchain="optimizer@before")

    async def Optimize(  # noqa: N802 (the protocol's name)
        self, request: optimizer_service_pb2.OptimizeRequest, context: object
    ) -> optimizer_service_pb2.OptimizeResponse:
        return await self._stub.Optimize(request)


@pytest.fixture(scope="module")
def codegen(program_services: CodegenFarm) -> CodegenFarm:
    """The services behind a frontend; each test starts a frontend that calls a proxy."""
    return program_services


@asynccontextmanager
async def serving(address: str, add: Callable[[grpc.aio.Server], None]) -> AsyncIterator[None]:
    server = grpc.aio.server(options=channel_options())
    add(server)
    server.add_insecure_port(address)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def replaying_edge(codegen: CodegenFarm, name: str) -> AsyncIterator[ReplayingEdge]:
    """A proxy before the edge, and the frontend `name` that calls it."""
    edge = ReplayingEdge(codegen.address)
    address = f"unix:{codegen.folder}/edge-of-{name}"
    async with (
        edge.channel,
        serving(address, lambda s: add_CodegenServiceServicer_to_server(edge, s)),
    ):
        await asyncio.to_thread(codegen.start_service, "frontend", name, codegen_address=address)
        yield edge


async def compiled(codegen: CodegenFarm, name: str, rows: int) -> Manifest:
    """The manifest of a program from the frontend `name`."""
    request = h_request(rows, 128, TARGET)
    request.wants_signed = True
    async with open_channel(f"unix:{codegen.folder}/{name}") as channel:
        with translated_errors("frontend"):
            async for event in CompileServiceStub(channel).Compile(request, timeout=TIMEOUT_S):
                if event.WhichOneof("event") == "program":
                    return manifest_from_proto(event.program.signed.manifest)
    raise AssertionError("no program")


async def invalidate(codegen: CodegenFarm, tag: str) -> int:
    """Invalidates a tag; the epoch, once every gateway has applied it."""
    async with KernelCache(codegen.cache.url, space=Space.PROGRAMS) as cache:
        epoch = await cache.epochs.invalidate([tag])
        await cache.epochs.wait_for_gateways(epoch)
    return epoch.number


async def test_a_kernel_that_was_invalidated_gets_into_no_program(codegen: CodegenFarm) -> None:
    async with replaying_edge(codegen, "first") as edge:
        before = await compiled(codegen, "first", 84)
        published = codegen.counters()["k.published"]
        bad = next(tag for tag in before.tags if tag.startswith("artifact:"))
        epoch = await invalidate(codegen, bad)
        edge.replays = 1  # as the result of a look-up that began before the invalidation
        after = await compiled(codegen, "first", 84)
        assert edge.replays == 0
        assert after.epoch == epoch
        assert codegen.counters()["k.published"] == published + 1, "the kernel was not made again"


async def test_a_program_is_tagged_with_the_optimizer_that_made_it(codegen: CodegenFarm) -> None:
    optimizer, proxy = f"unix:{codegen.folder}/optimizer", f"unix:{codegen.folder}/replaced"
    replaced = ReplacedOptimizer(optimizer)
    async with (
        replaced.channel,
        serving(proxy, lambda s: add_OptimizerServiceServicer_to_server(replaced, s)),
    ):
        await asyncio.to_thread(
            codegen.start_service, "frontend", "second", optimizer_address=proxy
        )
        tags = (await compiled(codegen, "second", 85)).tags
    async with open_channel(optimizer) as channel:
        made_by = await OptimizerServiceStub(channel).GetToolchain(
            optimizer_service_pb2.GetToolchainRequest()
        )
    assert [tag for tag in tags if tag.startswith("toolchain:optimizer")] == [
        f"toolchain:{made_by.toolchain}"
    ]
    assert {f"pass:{name}" for name in made_by.passes} <= set(tags)


async def test_a_frontend_gives_up_on_an_edge_that_keeps_sending_what_was_invalidated(
    codegen: CodegenFarm,
) -> None:
    async with replaying_edge(codegen, "third") as edge:
        published = codegen.counters()["p.published"]
        await compiled(codegen, "third", 86)
        await invalidate(codegen, "driver:echo")
        edge.replays = 1000
        with pytest.raises(UnavailableError, match="returned invalidated kernels"):
            await compiled(codegen, "third", 86)
        assert codegen.counters()["p.published"] == published + 1
