"""Assembles the serialized result of a program, for the cache and for clients."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kernelfarm.errors import InternalError
from kernelfarm.signing import BlobRef
from kernelfarm.v1 import artifact_pb2, compile_service_pb2, plan_pb2

KernelArtifacts = tuple[artifact_pb2.Artifact, ...]
"""The variants of one kernel, the most specific first, the general one last."""


@dataclass(frozen=True, slots=True)
class SerializedProgram:
    """A serialized result without its outcome.

    `blobs` are the program's own stages by SHA-256. `named` are all blobs that the result refers
    to, including the kernels' stages; the result is complete only while all of them exist.
    """

    payload: bytes
    blobs: dict[bytes, bytes]
    named: tuple[BlobRef, ...]


def program_result(
    key: bytes,
    plan: plan_pb2.Plan,
    kernels: Sequence[KernelArtifacts],
    texts: Iterable[tuple[str, str]],
) -> SerializedProgram:
    """The result of a program: its plan with kernel keys, artifacts in the plan's order, stages.

    Raises:
        InternalError: the kernels are not those of the plan.
    """
    if len(kernels) != len(plan.kernels) or not all(kernels):
        raise InternalError(f"{len(plan.kernels)} kernels in the plan, artifacts of {len(kernels)}")
    keyed = plan_pb2.Plan()
    keyed.CopyFrom(plan)
    for use, variants in zip(keyed.kernels, kernels, strict=True):
        use.key = variants[0].key
    contents = [(name, text.encode("utf-8")) for name, text in texts]
    blobs = {hashlib.sha256(content).digest(): content for _, content in contents}
    artifacts = [artifact for variants in kernels for artifact in variants]
    message = compile_service_pb2.ProgramResult(
        key=key,
        target=plan.target,
        plan=keyed,
        artifacts=artifacts,
        stages=[_text_stage(name, content) for name, content in contents],
    )
    named = {sha256: len(content) for sha256, content in blobs.items()}
    for artifact in artifacts:
        named.update((stage.blob.sha256, stage.blob.size_bytes) for stage in artifact.stages)
    return SerializedProgram(
        payload=message.SerializeToString(deterministic=True),
        blobs=blobs,
        named=tuple(BlobRef(sha256, size_bytes) for sha256, size_bytes in named.items()),
    )


def _text_stage(name: str, content: bytes) -> artifact_pb2.Stage:
    blob = artifact_pb2.Blob(sha256=hashlib.sha256(content).digest(), size_bytes=len(content))
    return artifact_pb2.Stage(name=name, blob=blob, is_text=True)
