"""The facts of one compiled program that its page shows, from the farm's own message."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

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


@dataclass(frozen=True, slots=True)
class StageFacts:
    """Name, digest and size of one stage."""

    name: str
    sha256: bytes
    size_bytes: int
    is_text: bool


@dataclass(frozen=True, slots=True)
class VariantFacts:
    """One variant of one kernel: its stages, and what its toolchain reported."""

    key: bytes
    binary: str
    stages: tuple[StageFacts, ...]
    launch: LaunchFacts
    guard: tuple[GuardAtom, ...]
    stub_reason: str
    toolchain: str
    cost_ms: float
    notes: tuple[str, ...]
    sandbox: str


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """A program with its manifest; `kernels` has the variants of each kernel of the plan.

    `found` says where this program came from: `miss`, or `hit` with its tier. `checked` says which
    key signed, or why the signature was not checked.
    """

    key: bytes
    target: str
    plan: Plan
    kernels: tuple[tuple[VariantFacts, ...], ...]
    stages: tuple[StageFacts, ...]
    manifest: Manifest
    found: str
    checked: str


def program_facts(content: bytes, manifest: Manifest, found: str, checked: str) -> ProgramFacts:
    """The facts of a program's content.

    Raises:
        MalformedMessageError: the content is not a program, or one of its kernels has no artifact.
    """
    try:
        message = compile_service_pb2.ProgramResult.FromString(content)
    except DecodeError as error:
        raise MalformedMessageError(f"{len(content)} bytes that are not a program") from error
    plan = plan_from_proto(message.plan)
    variants = [_variant(artifact) for artifact in message.artifacts]
    by_key: dict[bytes, list[VariantFacts]] = {}
    for variant in variants:
        by_key.setdefault(variant.key, []).append(variant)
    missing = [name for name, key in _named(plan) if key not in by_key]
    if missing:
        raise MalformedMessageError(
            f"program {message.key.hex()[:16]} has no artifact of {', '.join(missing)[:200]}"
        )
    return ProgramFacts(
        message.key,
        message.target,
        plan,
        tuple(tuple(by_key[key]) for key in plan.kernel_keys),
        tuple(map(_stage, message.stages)),
        manifest,
        found,
        checked,
    )


def named_digests(facts: ProgramFacts) -> list[bytes]:
    """The digests of all stages that are text, each once."""
    stages = [*facts.stages]
    stages += [s for variants in facts.kernels for v in variants for s in v.stages]
    return list(dict.fromkeys(stage.sha256 for stage in stages if stage.is_text))


def _named(plan: Plan) -> list[tuple[str, bytes]]:
    return list(zip(plan.kernel_names, plan.kernel_keys, strict=True))


def _variant(message: artifact_pb2.Artifact) -> VariantFacts:
    check_artifact(message)
    return VariantFacts(
        key=message.key,
        binary=message.binary_stage,
        stages=tuple(map(_stage, message.stages)),
        launch=launch_facts_from_proto(message.launch),
        guard=guard_from_proto(message.guard),
        stub_reason=message.stub_reason if message.is_stub else "",
        toolchain=message.toolchain,
        cost_ms=message.cost_ms,
        notes=tuple(message.notes),
        sandbox=message.sandbox,
    )


def _stage(message: artifact_pb2.Stage) -> StageFacts:
    return StageFacts(message.name, message.blob.sha256, message.blob.size_bytes, message.is_text)
