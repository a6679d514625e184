"""Applies the hints of fused kernels: other numbers of warps, pipelines of loops, and options.

The optimizer gave the kernel only hints that fit it and its chip. Whether a kernel has a loop is
decided with its tiling, so a hint may still be ignored here; a note says so.
"""

from __future__ import annotations

from dataclasses import replace

from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.hints import PIPELINE_HINTS, KernelHint
from kernelfarm.ir.loop_ir import Kernel

_OPTIONS = frozenset({"waves_per_eu"})
"""Hints that are options of Triton."""


def hinted_tiling(tiling: Tiling, kernel: Kernel) -> Tiling:
    """A tiling with the warps and pipelines that the kernel's hints ask for."""
    for hint in kernel.hints:
        if hint.name == "num_warps" and hint.value is not None:
            tiling = replace(tiling, num_warps=hint.value)
    stages = max((_stages(hint) for hint in kernel.hints), default=0)
    if not stages or not _has_loop(tiling, kernel):
        return tiling
    if tiling.kblock:  # Triton pipelines the loads of products by the option.
        return replace(tiling, num_stages=stages)
    return replace(tiling, num_stages=stages, loop_stages=stages)


def hinted_options(kernel: Kernel) -> dict[str, int]:
    """Options of Triton that hints state."""
    return {h.name: h.value for h in kernel.hints if h.name in _OPTIONS and h.value is not None}


def hint_notes(kernel: Kernel, tiling: Tiling) -> tuple[str, ...]:
    """What became of each hint of a kernel with this tiling."""
    problem = "ignored: a program holds its rows whole, so it has no loop"
    return tuple(
        f"hint {hint}: {problem if _stages(hint) and not _has_loop(tiling, kernel) else 'applied'}"
        for hint in kernel.hints
    )


def _stages(hint: KernelHint) -> int:
    """The stages that a hint asks for, 0 if it is none of a pipeline."""
    if hint.name not in PIPELINE_HINTS:
        return 0
    return PIPELINE_HINTS[hint.name] if hint.value is None else hint.value


def _has_loop(tiling: Tiling, kernel: Kernel) -> bool:
    return bool(kernel.reduction) and not (tiling.is_persistent or tiling.is_tile)
