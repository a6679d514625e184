"""Applies the hints of fused kernels: other numbers of warps, pipelines of loops, and options.

The optimizer gave the kernel only hints that fit it and its chip. Whether a kernel has a loop is
decided with its tiling, so a hint may still be ignored here; a note says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from codegen_svc.backends.triton_options import given_options, pingpong_problem
from codegen_svc.emitters.triton.tiling import Tiling, holds_rows
from kernelfarm.ir.hints import FLAT_GROUP, PIPELINE_HINTS, KernelHint
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts

_OF_TILES = frozenset({"num_stages", "num_warps"})
"""Hints that change the tiling."""


def hinted_tiling(tiling: Tiling, kernel: Kernel) -> Tiling:
    """A tiling with the warps and pipelines that the kernel's hints ask for."""
    for hint in kernel.hints:
        if hint.name == "num_warps" and hint.value is not None:
            tiling = replace(tiling, num_warps=hint.value)
        if hint.name == "num_stages" and hint.value is not None and tiling.kblock:
            tiling = replace(tiling, num_stages=hint.value)
    stages = max((_stages(hint) for hint in kernel.hints), default=0)
    if not stages or not _has_loop(tiling, kernel):
        return tiling
    if tiling.kblock:  # Triton pipelines the loads of products by the option.
        return replace(tiling, num_stages=stages)
    return replace(tiling, num_stages=stages, loop_stages=stages)


def hinted_options(kernel: Kernel, tiling: Tiling, gpu: GpuFacts) -> dict[str, Any]:
    """Options of a compilation that hints state; those of pipelines are the tiling's."""
    stated = {
        hint.name: 1 if hint.value is None else hint.value
        for hint in kernel.hints
        if hint.name not in PIPELINE_HINTS and hint.name not in _OF_TILES
        if not _group_problem(hint, tiling, gpu)
    }
    return given_options(stated)


def hint_notes(
    kernel: Kernel, tiling: Tiling, gpu: GpuFacts, stages: Mapping[str, str | bytes]
) -> tuple[str, ...]:
    """What became of each hint of a kernel with this tiling and these stages of Triton."""
    notes = []
    for hint in kernel.hints:
        problem = _group_problem(hint, tiling, gpu) or _loop_problem(hint, kernel, tiling)
        if hint.name == "block_pingpong" and hint.value != 0:
            problem = pingpong_problem(str(stages["ttgir"]))
        notes.append(f"hint {hint}: {f'ignored: {problem}' if problem else 'applied'}")
    return tuple(notes)


def _loop_problem(hint: KernelHint, kernel: Kernel, tiling: Tiling) -> str:
    if _stages(hint) and not _has_loop(tiling, kernel):
        return "a program holds its rows whole, so it has no loop"
    return ""


def _group_problem(hint: KernelHint, tiling: Tiling, gpu: GpuFacts) -> str:
    threads = tiling.num_warps * gpu.warp_size
    if hint.name == FLAT_GROUP and hint.value is not None and hint.value < threads:
        return f"a program has {threads} work items"
    return ""


def _stages(hint: KernelHint) -> int:
    """The stages that a hint asks for, 0 if it is none of a pipeline."""
    if hint.name not in PIPELINE_HINTS:
        return 0
    return PIPELINE_HINTS[hint.name] if hint.value is None else hint.value


def _has_loop(tiling: Tiling, kernel: Kernel) -> bool:
    return bool(kernel.reduction) and not (holds_rows(tiling) or tiling.is_tile)
