"""A program as the farm sends it, decoded: plan, artifacts and stages by digest."""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.errors import MalformedMessageError
from kernelfarm.ir.artifact import GuardAtom, LaunchFacts
from kernelfarm.ir.program_ir import Plan
from kernelfarm.signing import Manifest
from kernelfarm.v1 import artifact_pb2, compile_service_pb2
from kernelfarm.wire import (
    check_artifact,
    guard_from_proto,
    launch_facts_from_proto,
    plan_from_proto,
)

_OUTCOMES = {
    compile_service_pb2.CACHE_OUTCOME_HIT: "hit",
    compile_service_pb2.CACHE_OUTCOME_MISS: "miss",
    compile_service_pb2.CACHE_OUTCOME_MERGED: "merged",
}

_TIERS = {
    compile_service_pb2.CACHE_TIER_GATEWAY: "gateway",
    compile_service_pb2.CACHE_TIER_STORE: "store",
}


@dataclass(frozen=True, slots=True)
class StageContent:
    """The name, digest and size of one stage."""

    name: str
    sha256: bytes
    size_bytes: int
    is_text: bool


@dataclass(frozen=True, slots=True)
class CompiledArtifact:
    """One variant of one kernel; `binary` is the stage that loaders load."""

    key: bytes
    target: str
    binary: StageContent
    stages: tuple[StageContent, ...]
    launch: LaunchFacts
    guard: tuple[GuardAtom, ...]
    is_stub: bool
    stub_reason: str
    toolchain: str
    cost_ms: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledProgram:
    """A verified program; `kernels` has the variants of each of the plan's kernels, in order.

    `content` is the program as bytes; `manifest` is its publisher's signed statement about them.
    `tier` is the tier of the farm that had it; empty if it was compiled, or read from disk.
    """

    key: bytes
    target: str
    plan: Plan
    kernels: tuple[tuple[CompiledArtifact, ...], ...]
    stages: tuple[StageContent, ...]
    outcome: str
    tier: str
    codegen_jobs: int
    manifest: Manifest
    content: bytes


def decode_program(
    message: compile_service_pb2.ProgramResult, manifest: Manifest, content: bytes
) -> CompiledProgram:
    """The program of a message whose manifest and content were verified.

    Raises:
        MalformedMessageError: a kernel of the plan has no general artifact, or a field is missing.
    """
    plan = plan_from_proto(message.plan)
    artifacts = [_artifact(artifact) for artifact in message.artifacts]
    kernels = tuple(
        tuple(artifact for artifact in artifacts if artifact.key == key) for key in plan.kernel_keys
    )
    for name, variants in zip(plan.kernel_names, kernels, strict=True):
        if not variants or variants[-1].guard:
            raise MalformedMessageError(
                f"kernel {name} for {message.target} has no general artifact (one without a guard)"
            )
    return CompiledProgram(
        message.key,
        message.target,
        plan,
        kernels,
        tuple(_content(stage) for stage in message.stages),
        _OUTCOMES.get(message.outcome, "unknown"),
        _TIERS.get(message.tier, ""),
        message.codegen_jobs,
        manifest,
        content,
    )


def _artifact(message: artifact_pb2.Artifact) -> CompiledArtifact:
    check_artifact(message)
    stages = tuple(_content(stage) for stage in message.stages)
    return CompiledArtifact(
        message.key,
        message.target,
        next(stage for stage in stages if stage.name == message.binary_stage),
        stages,
        launch_facts_from_proto(message.launch),
        guard_from_proto(message.guard),
        message.is_stub,
        message.stub_reason,
        message.toolchain,
        message.cost_ms,
        tuple(message.notes),
    )


def _content(message: artifact_pb2.Stage) -> StageContent:
    return StageContent(message.name, message.blob.sha256, message.blob.size_bytes, message.is_text)
