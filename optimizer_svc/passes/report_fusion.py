"""Tells what was fused and what was not, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from kernelfarm.ir.program_ir import ExternCall, Launch, Program
from optimizer_svc.passes.fuse_nests import Fusion


def report_fusion(fusion: Fusion, program: Program) -> str:
    """The report, one fact a line."""
    return "\n".join((*_counts(fusion, program), *_launches(program), *_refusals(fusion)))


def _counts(fusion: Fusion, program: Program) -> Iterator[str]:
    steps = program.plan.steps
    launches = sum(isinstance(step, Launch) for step in steps)
    yield f"loop nests: {fusion.nests}"
    yield f"launches: {launches} of {len(program.kernels)} distinct kernels"
    yield f"arena: {program.plan.arena_bytes} bytes"
    externs = Counter(step.op for step in steps if isinstance(step, ExternCall))
    for op, count in sorted(externs.items()):
        yield f"extern {op}: {count}"


def _launches(program: Program) -> Iterator[str]:
    counts = Counter(step.kernel for step in program.plan.steps if isinstance(step, Launch))
    for number, kernel in enumerate(program.kernels):
        yield f"kernel {kernel.name}: {counts[number]} launches, {len(kernel.body)} statements"


def _refusals(fusion: Fusion) -> Iterator[str]:
    for refusal in fusion.refusals:
        yield f"not fused: kernels of values {refusal.first} and {refusal.second}: {refusal.reason}"
