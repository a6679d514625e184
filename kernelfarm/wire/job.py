"""Codec of kernel jobs, which the edge stores in the cache for the worker."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from kernelfarm.errors import MalformedMessageError
from kernelfarm.internal.v1 import codegen_service_pb2 as pb
from kernelfarm.internal.v1 import loops_pb2
from kernelfarm.ir.any_kernel import AnyKernel
from kernelfarm.wire.any_kernel import any_kernel_from_proto


def job_to_bytes(kernel: loops_pb2.Kernel, target: str) -> bytes:
    """A job of one kernel, as the edge received its message, and a target."""
    return pb.BuildKernelsRequest(kernels=[kernel], target=target).SerializeToString()


def job_from_bytes(job: bytes) -> tuple[AnyKernel, str]:
    """The kernel and its target descriptor.

    Raises:
        MalformedMessageError: the bytes are not a job of one kernel.
    """
    try:
        message = pb.BuildKernelsRequest.FromString(job)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(job)} bytes that are no kernel job: {error}") from error
    if len(message.kernels) != 1:
        raise MalformedMessageError(f"a job of {len(message.kernels)} kernels; expected 1")
    return any_kernel_from_proto(message.kernels[0]), message.target
