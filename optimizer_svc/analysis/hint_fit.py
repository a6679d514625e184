"""Whether a hint of a user fits a kernel and a chip."""

from __future__ import annotations

from collections.abc import Sequence

from kernelfarm.ir.contractions import find_contraction
from kernelfarm.ir.hints import (
    DOT_PAD_ONLY_K,
    FLAT_GROUP,
    K_PACKS,
    MATRIX_SIDE,
    MULTIBUFFER,
    PIPELINE_HINTS,
    PIPELINE_STAGES,
    PRODUCT_HINTS,
    STAGES_OF_PRODUCTS,
    SWITCHES,
    KernelHint,
    block_copies,
)
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import GpuFacts, LocalBufferFacts, TargetFacts
from optimizer_svc.analysis.factor_types import factor_types

_MAX_WARPS = 32
"""The most warps of a program that Triton compiles."""
_MAX_LISTED = 32
"""More values than these are a range in messages."""


def hint_misfit(hint: KernelHint, kernel: Kernel, target: TargetFacts) -> str:
    """Why a kernel cannot follow a hint; empty if it can."""
    if hint.name not in target.hints:
        return _unknown(hint.name, target)
    if hint.name in PIPELINE_HINTS:
        return _pipeline_misfit(hint, kernel)
    of_products = hint.name in PRODUCT_HINTS or hint.name == DOT_PAD_ONLY_K
    if of_products and find_contraction(kernel, factor_types(target)) is None:
        return "the kernel computes no product of matrices in tiles"
    if hint.name == DOT_PAD_ONLY_K:
        return "" if hint.value is None else "expected no number"
    is_copies = hint.name == MULTIBUFFER
    stated = block_copies(hint.value) if is_copies else hint.value
    if hint.name in SWITCHES and stated is None:
        return ""
    allowed = _copies(target) if is_copies else _numbers(hint.name, target.section(GpuFacts))
    return "" if stated in allowed else f"expected {_listed(allowed)}"


def _unknown(name: str, target: TargetFacts) -> str:
    """That a chip has no such hint, or why its toolchain has the option and does not follow it."""
    if target.gpu is not None and name in (reasons := dict(target.gpu.hints_without_effect)):
        return reasons[name]
    expected = f"expected one of {', '.join(target.hints)}" if target.hints else "it has none"
    return f"{target.name} has no such hint; {expected}"


def _listed(allowed: Sequence[int]) -> str:
    if len(allowed) > _MAX_LISTED:
        return f"{allowed[0]} to {allowed[-1]}"
    return f"one of {', '.join(map(str, allowed))}"


def _pipeline_misfit(hint: KernelHint, kernel: Kernel) -> str:
    if hint.value is not None and hint.value not in PIPELINE_STAGES:
        return f"expected {PIPELINE_STAGES.start} to {PIPELINE_STAGES.stop - 1} stages"
    if not kernel.reduction:
        return "the kernel reduces nothing, so it has no loop over loads"
    return ""


def _copies(target: TargetFacts) -> tuple[int, ...]:
    return tuple(range(1, target.section(LocalBufferFacts).max_block_copies + 1))


def _numbers(name: str, gpu: GpuFacts) -> Sequence[int]:
    """The values that a hint may state."""
    if name in SWITCHES:
        return (0, 1)
    if name == MATRIX_SIDE:
        return sorted({form.m for form in gpu.matrix_instructions if form.m == form.n})
    if name == FLAT_GROUP:
        return range(gpu.warp_size, gpu.max_threads_per_block + 1)
    numbers = {"kpack": K_PACKS, "num_stages": STAGES_OF_PRODUCTS}.get(name)
    if numbers is not None:
        return numbers
    if name == "waves_per_eu":
        return tuple(range(1, gpu.max_waves_per_unit + 1))
    most = min(_MAX_WARPS, gpu.max_threads_per_block // gpu.warp_size)
    return tuple(1 << bits for bits in range(most.bit_length()))
