"""Whether a hint of a user fits a kernel and a chip."""

from __future__ import annotations

from kernelfarm.ir.hints import (
    DOT_PAD_ONLY_K,
    MULTIBUFFER,
    PIPELINE_HINTS,
    PIPELINE_STAGES,
    KernelHint,
    block_copies,
)
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, LocalBufferFacts, TargetFacts

_MAX_WARPS = 32
"""The most warps of a program that Triton compiles."""


def hint_misfit(hint: KernelHint, kernel: Kernel, target: TargetFacts) -> str:
    """Why a kernel cannot follow a hint; empty if it can."""
    if hint.name not in target.hints:
        known = target.hints
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        return f"{target.name} has no such hint; {expected}"
    if hint.name in PIPELINE_HINTS:
        return _pipeline_misfit(hint, kernel)
    if hint.name == DOT_PAD_ONLY_K:
        return "the framework computes the chip's products of matrices"
    is_copies = hint.name == MULTIBUFFER
    stated = block_copies(hint.value) if is_copies else hint.value
    allowed = _copies(target) if is_copies else _numbers(hint.name, target.section(GpuFacts))
    return "" if stated in allowed else f"expected one of {', '.join(map(str, allowed))}"


def _pipeline_misfit(hint: KernelHint, kernel: Kernel) -> str:
    if hint.value is not None and hint.value not in PIPELINE_STAGES:
        return f"expected {PIPELINE_STAGES.start} to {PIPELINE_STAGES.stop - 1} stages"
    if not kernel.reduction:
        return "the kernel reduces nothing, so it has no loop over loads"
    return ""


def _copies(target: TargetFacts) -> tuple[int, ...]:
    return tuple(range(1, target.section(LocalBufferFacts).max_block_copies + 1))


def _numbers(name: str, gpu: GpuFacts) -> tuple[int, ...]:
    """The values that a hint may state."""
    if name == "waves_per_eu":
        return tuple(range(1, gpu.max_waves_per_unit + 1))
    most = min(_MAX_WARPS, gpu.max_threads_per_block // gpu.warp_size)
    return tuple(1 << bits for bits in range(most.bit_length()))
