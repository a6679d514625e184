"""Codec of artifacts and stages; their contents are separate, by digest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from kernelfarm.digest import DIGEST_BYTES
from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import BuiltKernel, StageText
from kernelfarm.v1 import artifact_pb2 as pb
from kernelfarm.wire.launch_facts import (
    guard_from_proto,
    guard_to_proto,
    launch_facts_from_proto,
    launch_facts_to_proto,
)

Blobs = dict[bytes, bytes]
"""Contents by SHA-256."""


def artifact_to_proto(
    built: BuiltKernel, key: bytes, target: str, toolchain: str, cost_ms: float
) -> tuple[pb.Artifact, Blobs]:
    """The message of an artifact, and the contents that it names."""
    stages, blobs = stages_to_proto(built.stages)
    message = pb.Artifact(
        key=key,
        target=target,
        binary_stage=built.binary_stage,
        stages=stages,
        launch=launch_facts_to_proto(built.launch),
        guard=guard_to_proto(built.guard),
        is_stub=built.is_stub,
        stub_reason=built.stub_reason,
        toolchain=toolchain,
        cost_ms=cost_ms,
        notes=built.notes,
    )
    return message, blobs


def stages_to_proto(stages: Iterable[StageText]) -> tuple[list[pb.Stage], Blobs]:
    """The messages of stages, and their contents by digest."""
    messages: list[pb.Stage] = []
    blobs: Blobs = {}
    for stage in stages:
        digest = hashlib.sha256(stage.content).digest()
        blobs[digest] = stage.content
        blob = pb.Blob(sha256=digest, size_bytes=len(stage.content))
        messages.append(pb.Stage(name=stage.name, blob=blob, is_text=stage.is_text))
    return messages, blobs


def check_artifact(message: pb.Artifact) -> None:
    """Checks that a client can use an artifact.

    Raises:
        MalformedMessageError: a key or digest is not 32 bytes, or no stage is the binary.
        InvalidGraphError: the grid has a division by a constant below 1.
    """
    where = f"artifact for {message.target}"
    _check_digest(message.key, f"{where}, key")
    for stage in message.stages:
        _check_digest(stage.blob.sha256, f"{where}, stage {stage.name}")
    names = [stage.name for stage in message.stages]
    if message.binary_stage not in names:
        raise MalformedMessageError(
            f"{where}: binary stage {message.binary_stage!r}; expected one of {', '.join(names)}"
        )
    launch_facts_from_proto(message.launch)
    guard_from_proto(message.guard)


def digests_of(message: pb.Artifact) -> list[bytes]:
    """The digests of all contents that an artifact names, in the order of its stages."""
    return [stage.blob.sha256 for stage in message.stages]


def binary_digest(message: pb.Artifact) -> bytes:
    """The digest of the loadable binary.

    Raises:
        MalformedMessageError: no stage has the name of the binary.
    """
    for stage in message.stages:
        if stage.name == message.binary_stage:
            return stage.blob.sha256
    raise MalformedMessageError(
        f"artifact for {message.target}: no stage is named {message.binary_stage!r}"
    )


def built_kernel_from_proto(message: pb.Artifact, blobs: Blobs) -> BuiltKernel:
    """The artifact with its contents.

    Raises:
        MalformedMessageError: the message is incomplete, or a content is missing or does not match
            its digest.
    """
    check_artifact(message)
    return BuiltKernel(
        binary_stage=message.binary_stage,
        stages=tuple(_stage_from_proto(stage, blobs) for stage in message.stages),
        launch=launch_facts_from_proto(message.launch),
        guard=guard_from_proto(message.guard),
        is_stub=message.is_stub,
        stub_reason=message.stub_reason,
        notes=tuple(message.notes),
    )


def _stage_from_proto(message: pb.Stage, blobs: Blobs) -> StageText:
    content = blobs.get(message.blob.sha256)
    if content is None or hashlib.sha256(content).digest() != message.blob.sha256:
        raise MalformedMessageError(
            f"stage {message.name}: content {message.blob.sha256.hex()} is"
            f" {'missing' if content is None else 'damaged'}"
        )
    return StageText(message.name, content, message.is_text)


def _check_digest(digest: bytes, where: str) -> None:
    if len(digest) != DIGEST_BYTES:
        raise MalformedMessageError(f"{where}: {len(digest)} bytes; expected {DIGEST_BYTES}")
