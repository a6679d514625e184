"""Whether a hint of a user fits a kernel and a chip."""

from __future__ import annotations

from kernelfarm.ir.hints import PIPELINE_HINTS, PIPELINE_STAGES, KernelHint
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, TargetFacts

_MAX_WARPS = 32
"""The most warps of a program that Triton compiles."""


def hint_misfit(hint: KernelHint, kernel: Kernel, target: TargetFacts) -> str:
    """Why a kernel cannot follow a hint; empty if it can."""
    gpu = target.gpu
    known = gpu.hints if gpu is not None else ()
    if gpu is None or hint.name not in known:
        expected = f"expected one of {', '.join(known)}" if known else "it has none"
        return f"{target.name} has no such hint; {expected}"
    if hint.name in PIPELINE_HINTS:
        return _pipeline_misfit(hint, kernel)
    allowed = _numbers(hint.name, gpu)
    if hint.value not in allowed:
        return f"expected one of {', '.join(map(str, allowed))}"
    return ""


def _pipeline_misfit(hint: KernelHint, kernel: Kernel) -> str:
    if hint.value is not None and hint.value not in PIPELINE_STAGES:
        return f"expected {PIPELINE_STAGES.start} to {PIPELINE_STAGES.stop - 1} stages"
    if not kernel.reduction:
        return "the kernel reduces nothing, so it has no loop over loads"
    return ""


def _numbers(name: str, gpu: GpuFacts) -> tuple[int, ...]:
    """The values that a hint may state."""
    if name == "waves_per_eu":
        return tuple(range(1, gpu.max_waves_per_unit + 1))
    most = min(_MAX_WARPS, gpu.max_threads_per_block // gpu.warp_size)
    return tuple(1 << bits for bits in range(most.bit_length()))
