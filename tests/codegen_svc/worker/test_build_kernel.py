"""Results of backends are checked before they are published; jobs are sent as bytes."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace

import pytest

from codegen_svc.backends.ascend.elf_stub import write_elf
from codegen_svc.backends.contract import ToolStatus
from codegen_svc.worker.build_kernel import BuildResult, build_kernel, toolchain_of
from kernelfarm.errors import InternalError, MalformedMessageError, VerificationError
from kernelfarm.ir.artifact import (
    BuiltKernel,
    GuardAtom,
    GuardOp,
    GuardSubject,
    LaunchFacts,
    StageText,
)
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.signing.tags import toolchain_tag
from kernelfarm.targets import TargetFacts, target_facts
from kernelfarm.v1 import artifact_pb2
from kernelfarm.wire import kernel_from_proto
from kernelfarm.wire.job import job_from_bytes, job_to_bytes
from tests.support.fresh_kernels import fresh_kernel

KEY = hashlib.sha256(b"key").digest()
TARGET = "cpu:x86-64-v3"
GUARD = (GuardAtom(GuardSubject.PARAM_ADDRESS, 0, GuardOp.DIVISIBLE, 16),)


@dataclass(frozen=True)
class FixedBackend:
    """A backend that returns the same variants for every kernel."""

    variants: tuple[BuiltKernel, ...]
    vendor: str = "cpu"

    def tools(self) -> tuple[ToolStatus, ...]:
        return ()

    def fingerprint(self) -> str:
        return "f00d"

    def makes_runnable_binaries(self) -> bool:
        return False

    def build(self, kernel: Kernel, target: TargetFacts) -> tuple[BuiltKernel, ...]:
        return self.variants


LIBRARY = write_elf("fixed", ((".text", b"code"),))


def built(guard: tuple[GuardAtom, ...] = (), binary_stage: str = "so") -> BuiltKernel:
    stages = (StageText("llir", b"define", True), StageText("so", LIBRARY, False))
    return BuiltKernel(binary_stage, stages, LaunchFacts("f"), guard)


def result_of(backend: FixedBackend, cost_s: float = 0.25) -> BuildResult:
    kernel = kernel_from_proto(fresh_kernel("fixed"))
    ticks = iter((10.0, 10.0 + cost_s))
    return build_kernel(backend, kernel, target_facts(TARGET), KEY, lambda: next(ticks))


def run(*variants: BuiltKernel) -> list[artifact_pb2.Artifact]:
    backend = FixedBackend(variants)
    result = result_of(backend)
    assert set(result.blobs.values()) == {b"define", LIBRARY}
    for variant in result.variants:
        assert {blob.sha256 for blob in variant.blobs} == set(result.blobs)
        assert {toolchain_tag(toolchain_of(backend)), "driver:cpu"} < set(variant.tags)
    return [artifact_pb2.Artifact.FromString(variant.content) for variant in result.variants]


def test_artifacts_state_key_target_toolchain_and_cost() -> None:
    special, general = run(built(GUARD), built())
    assert (general.key, general.target) == (KEY, TARGET)
    assert re.fullmatch(r"cpu@[0-9a-f]{64}", general.toolchain)
    assert general.cost_ms == 250.0
    assert len(special.guard.atoms) == 1 and not general.guard.atoms


def test_equal_builds_are_equal_bytes() -> None:
    assert run(built())[0].SerializeToString() == run(built())[0].SerializeToString()


def test_the_cost_of_a_build_is_in_no_blob_tag_or_guard() -> None:
    backend = FixedBackend((built(GUARD), built()))
    quick, slow = result_of(backend, 0.25), result_of(backend, 8.0)
    assert [variant.cost_ms for variant in slow.variants] == [8000.0, 8000.0]
    assert quick.blobs == slow.blobs
    for one, other in zip(quick.variants, slow.variants, strict=True):
        assert (one.blobs, one.tags, one.guard) == (other.blobs, other.tags, other.guard)


@pytest.mark.parametrize(
    ("variants", "fault"),
    [
        ((), "returned no variant"),
        ((built(), built(GUARD)), "last variant has a guard"),
        ((built(binary_stage="cubin"),), "0 stages are named 'cubin'"),
        ((built(binary_stage="llir"),), "no ELF file"),
    ],
)
def test_a_backend_that_breaks_its_contract_is_our_bug(
    variants: tuple[BuiltKernel, ...], fault: str
) -> None:
    with pytest.raises(InternalError, match=fault):
        run(*variants)


def test_a_cached_kernel_is_verified_before_a_toolchain_reads_it() -> None:
    kernel = replace(kernel_from_proto(fresh_kernel("fixed")), name="f(): import os #")
    with pytest.raises(VerificationError, match="expected an identifier"):
        build_kernel(FixedBackend((built(),)), kernel, target_facts(TARGET), KEY, lambda: 0.0)


def test_a_job_decodes_to_its_kernel_and_target() -> None:
    message = fresh_kernel("travelling")
    assert job_from_bytes(job_to_bytes(message, TARGET)) == (kernel_from_proto(message), TARGET)


@pytest.mark.parametrize("cut", [1, 5])
def test_a_damaged_job_is_malformed(cut: int) -> None:
    with pytest.raises(MalformedMessageError, match="no kernel job"):
        job_from_bytes(job_to_bytes(fresh_kernel("cut"), TARGET)[:-cut])


def test_a_job_without_a_kernel_is_malformed() -> None:
    with pytest.raises(MalformedMessageError, match="expected 1"):
        job_from_bytes(b"")
