"""Calls of the code generation service."""

from __future__ import annotations

from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.internal.v1.codegen_service_pb2_grpc import CodegenServiceStub
from kernelfarm.service.channels import translated_errors
from kernelfarm.v1 import artifact_pb2, compile_service_pb2
from tests.support.farm import TIMEOUT_S
from tests.support.fresh_kernels import fresh_kernel

TARGET = "echo:one"


async def build(
    stub: CodegenServiceStub,
    *kernels: loops_pb2.Kernel,
    target: str = TARGET,
    priority: int = 0,
    namespace: str = "",
    timeout_s: float = TIMEOUT_S,
) -> dict[int, pb.BuildKernelsResponse]:
    """Responses by the index of their kernel, in the order in which they came."""
    request = pb.BuildKernelsRequest(
        kernels=kernels,
        target=target,
        priority=compile_service_pb2.Priority.ValueType(priority),
        namespace=namespace,
    )
    with translated_errors("codegen"):
        return {r.index: r async for r in stub.BuildKernels(request, timeout=timeout_s)}


async def build_fresh(
    stub: CodegenServiceStub,
    name: str,
    *,
    target: str = TARGET,
    namespace: str = "",
    timeout_s: float = TIMEOUT_S,
) -> pb.BuildKernelsResponse:
    """The response for a kernel that no other call has asked for."""
    responses = await build(
        stub, fresh_kernel(name), target=target, namespace=namespace, timeout_s=timeout_s
    )
    return responses[0]


def artifacts_of(response: pb.BuildKernelsResponse) -> list[artifact_pb2.Artifact]:
    """The artifacts of a kernel, the general one last."""
    return [artifact_pb2.Artifact.FromString(signed.content) for signed in response.signed]
