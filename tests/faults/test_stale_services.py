"""A frontend does not believe what other rooms said of another moment: adversaries stand between.

They pass calls on to real rooms, and change one thing of what these answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
import redis

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
from kernelfarm.signing.key_files import PROGRAM_KEY
from kernelfarm.v1.compile_service_pb2_grpc import CompileServiceStub
from kernelfarm.wire.manifest import manifest_from_proto
from tests.support.codegen_processes import CodegenFarm, codegen_farm, start_service
from tests.support.farm import TIMEOUT_S
from tests.support.small_graphs import h_request

TARGET = "echo:one"


class ReplayingEdge(CodegenServiceServicer):
    """Gives a kernel as it was given first, `replays` times."""

    def __init__(self, real: str) -> None:
        self._stub = CodegenServiceStub(open_channel(real))
        self._first: list[codegen_service_pb2.BuildKernelsResponse] = []
        self.replays = 0

    async def BuildKernels(  # noqa: N802 (the protocol's name)
        self, request: codegen_service_pb2.BuildKernelsRequest, context: object
    ) -> AsyncIterator[codegen_service_pb2.BuildKernelsResponse]:
        if self.replays:
            self.replays -= 1
            for reported in self._first:
                yield reported
            return
        answers = [answer async for answer in self._stub.BuildKernels(request)]
        self._first = self._first or answers
        for answer in answers:
            yield answer


class ReplacedOptimizer(OptimizerServiceServicer):
    """Is asked for its toolchain just before another one takes its place."""

    def __init__(self, real: str) -> None:
        self._stub = OptimizerServiceStub(open_channel(real))

    async def GetToolchain(  # noqa: N802 (the protocol's name)
        self, request: optimizer_service_pb2.GetToolchainRequest, context: object
    ) -> optimizer_service_pb2.GetToolchainResponse:
        return optimizer_service_pb2.GetToolchainResponse(toolchain="optimizer@before")

    async def Optimize(  # noqa: N802 (the protocol's name)
        self, request: optimizer_service_pb2.OptimizeRequest, context: object
    ) -> optimizer_service_pb2.OptimizeResponse:
        return await self._stub.Optimize(request)


@pytest.fixture
def codegen(tmp_path: Path) -> Iterator[CodegenFarm]:
    """A codegen room with a worker, an optimizer, and the adversaries' sockets before them."""
    with codegen_farm(tmp_path) as started:
        started.settings |= {
            "KERNELFARM_PROGRAM_KEY_FILE": str(tmp_path / "keys" / PROGRAM_KEY),
            "KERNELFARM_OPTIMIZER_LISTEN": f"unix:{tmp_path}/optimizer",
            "KERNELFARM_OPTIMIZER_ADDRESS": f"unix:{tmp_path}/optimizer",
            "KERNELFARM_CODEGEN_ADDRESS": started.address,
        }
        started.start_edge()
        started.start_worker()
        start_service(started, "optimizer", "optimizer")
        yield started


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


async def compiled(room: CodegenFarm) -> Manifest:
    """The manifest of the program that the frontend gives."""
    request = h_request(64, 128, TARGET)
    request.wants_signed = True
    async with open_channel(f"unix:{room.folder}/front") as channel:
        with translated_errors("frontend"):
            async for event in CompileServiceStub(channel).Compile(request, timeout=TIMEOUT_S):
                if event.WhichOneof("event") == "program":
                    return manifest_from_proto(event.program.signed.manifest)
    raise AssertionError("no program")


async def test_a_kernel_that_was_invalidated_gets_into_no_program(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    edge = ReplayingEdge(codegen.address)
    address = f"unix:{tmp_path}/replaying"
    async with serving(address, lambda s: add_CodegenServiceServicer_to_server(edge, s)):
        await asyncio.to_thread(
            start_service, codegen, "frontend", "front", KERNELFARM_CODEGEN_ADDRESS=address
        )
        before = await compiled(codegen)
        made = stats_of(codegen)["k.published"]
        bad = next(tag for tag in before.tags if tag.startswith("artifact:"))
        async with KernelCache(codegen.cache.url, space=Space.PROGRAMS) as cache:
            epoch = await cache.epochs.invalidate([bad])
            await cache.epochs.wait_for_gateways(epoch)
        edge.replays = 1  # as a look-up that was under way might
        after = await compiled(codegen)
        assert edge.replays == 0
        assert after.epoch == epoch.number
        assert stats_of(codegen)["k.published"] == made + 1, "the kernel was not made again"


async def test_an_edge_that_goes_on_to_give_what_was_invalidated_is_not_believed(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    edge = ReplayingEdge(codegen.address)
    address = f"unix:{tmp_path}/replaying"
    async with serving(address, lambda s: add_CodegenServiceServicer_to_server(edge, s)):
        await asyncio.to_thread(
            start_service, codegen, "frontend", "front", KERNELFARM_CODEGEN_ADDRESS=address
        )
        await compiled(codegen)
        async with KernelCache(codegen.cache.url, space=Space.PROGRAMS) as cache:
            epoch = await cache.epochs.invalidate(["driver:echo"])
            await cache.epochs.wait_for_gateways(epoch)
        edge.replays = 1000
        with pytest.raises(UnavailableError, match="returned invalidated kernels"):
            await compiled(codegen)
        assert stats_of(codegen)["p.published"] == 1


async def test_a_program_is_tagged_with_the_optimizer_that_made_it(
    codegen: CodegenFarm, tmp_path: Path
) -> None:
    replaced = ReplacedOptimizer(f"unix:{tmp_path}/optimizer")
    address = f"unix:{tmp_path}/replaced"
    async with serving(address, lambda s: add_OptimizerServiceServicer_to_server(replaced, s)):
        await asyncio.to_thread(
            start_service, codegen, "frontend", "front", KERNELFARM_OPTIMIZER_ADDRESS=address
        )
        tags = (await compiled(codegen)).tags
    async with open_channel(f"unix:{tmp_path}/optimizer") as channel:
        made_by = await OptimizerServiceStub(channel).GetToolchain(
            optimizer_service_pb2.GetToolchainRequest()
        )
    assert [tag for tag in tags if tag.startswith("toolchain:optimizer")] == [
        f"toolchain:{made_by.toolchain}"
    ]
    assert {f"pass:{name}" for name in made_by.passes} <= set(tags)


def stats_of(room: CodegenFarm) -> dict[str, int]:
    with redis.Redis.from_url(room.cache.url) as raw:
        return {name.decode(): int(n) for name, n in raw.hgetall("kf:{default}:stats").items()}
