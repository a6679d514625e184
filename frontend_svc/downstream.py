"""How the other rooms are asked: the optimizer and the code generators, over gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc.aio

from kernelfarm.internal.v1 import (
    codegen_service_pb2,
    codegen_service_pb2_grpc,
    loops_pb2,
    optimizer_service_pb2,
    optimizer_service_pb2_grpc,
)
from kernelfarm.service.channels import translated_errors
from kernelfarm.v1 import compile_service_pb2, graph_pb2, plan_pb2
from kernelfarm.wire.program_result import KernelArtifacts


@dataclass(frozen=True, slots=True)
class OptimizedProgram:
    """What the optimizer made; the messages pass through to code generation and to the client."""

    kernels: tuple[loops_pb2.Kernel, ...]
    plan: plan_pb2.Plan
    texts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class BuiltArtifacts:
    """One kernel of a request, built: its index there, and whether that took a job."""

    index: int
    artifacts: KernelArtifacts
    caused_job: bool


class OptimizerRoom:
    """Asks the optimizer."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub = optimizer_service_pb2_grpc.OptimizerServiceStub(channel)
        self._timeout_s = timeout_s

    async def optimize(
        self, request_id: str, graph: graph_pb2.Graph, target: str
    ) -> OptimizedProgram:
        """Loop kernels and plan of a Prims graph.

        Raises:
            UnavailableError: the optimizer does not answer.
            KernelfarmError: whatever the optimizer raised.
        """
        request = optimizer_service_pb2.OptimizeRequest(
            request_id=request_id, graph=graph, target=target
        )
        with translated_errors("optimizer"):
            response = await self._stub.Optimize(request, timeout=self._timeout_s)
        texts = tuple((stage.name, stage.text) for stage in response.stages)
        return OptimizedProgram(tuple(response.kernels), response.plan, texts)


class CodegenRoom:
    """Asks the code generators."""

    def __init__(self, channel: grpc.aio.Channel, timeout_s: float) -> None:
        self._stub = codegen_service_pb2_grpc.CodegenServiceStub(channel)
        self._timeout_s = timeout_s

    async def build(
        self, request_id: str, kernels: tuple[loops_pb2.Kernel, ...], target: str, priority: int
    ) -> AsyncIterator[BuiltArtifacts]:
        """Each kernel's artifacts as soon as they exist; nothing is asked for no kernels.

        Raises:
            KernelRejectedError: the target's toolchain refuses a kernel.
            UnavailableError: broker, cache or workers do not answer.
        """
        if not kernels:
            return
        request = codegen_service_pb2.BuildKernelsRequest(
            request_id=request_id,
            kernels=kernels,
            target=target,
            priority=compile_service_pb2.Priority.ValueType(priority),
        )
        with translated_errors("codegen"):
            async for built in self._stub.BuildKernels(request, timeout=self._timeout_s):
                yield BuiltArtifacts(built.index, tuple(built.artifacts), built.caused_job)

    async def toolchains(self) -> tuple[compile_service_pb2.TargetCapability, ...]:
        """Targets and toolchains of the workers that have reported.

        Raises:
            UnavailableError: the code generators' room does not answer.
        """
        request = codegen_service_pb2.GetToolchainsRequest()
        with translated_errors("codegen"):
            response = await self._stub.GetToolchains(request, timeout=5.0)
        return tuple(response.targets)
