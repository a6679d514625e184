"""The tiling of a loop kernel with the number of buffers that its hints ask for.

A product of matrices has a tiling for cube cores, other kernels have one for vector cores alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen_svc.emitters.triton.cube_tiling import CubeTiling, cube_tiling
from codegen_svc.emitters.triton.local_tiling import local_tiling
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.hints import MULTIBUFFER, block_copies
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts

_COPIES = (2, 1)
"""The panels of a factor, best first."""


def hinted_cube_tiling(
    kernel: Kernel, target: TargetFacts, index_bits: int
) -> tuple[CubeTiling | None, tuple[str, ...]]:
    """The tiling of a product, None for other kernels and if nothing fits; and the hint's fate."""
    hint = next((hint for hint in kernel.hints if hint.name == MULTIBUFFER), None)
    usual = _most_copies(kernel, target, index_bits, _COPIES)
    if hint is None or usual is None:
        return usual, ()
    copies = block_copies(hint.value)
    stated = _most_copies(kernel, target, index_bits, (copies,))
    if stated is None:
        problem = f"{copies} panels of each factor do not fit the chip at any tiling"
        return usual, (f"hint {hint}: ignored: {problem}",)
    if stated.tiling.load_buffers < copies:
        problem = "a core computes its tile in one step, so it fetches no next panel"
        return stated, (f"hint {hint}: ignored: {problem}",)
    return stated, (f"hint {hint}: applied",)


def _most_copies(
    kernel: Kernel, target: TargetFacts, index_bits: int, copies: Sequence[int]
) -> CubeTiling | None:
    """The tiling with the first of these numbers of panels that fits."""
    tilings = (cube_tiling(kernel, target, index_bits, number) for number in copies)
    return next((tiling for tiling in tilings if tiling is not None), None)


def hinted_local_tiling(
    kernel: Kernel, target: TargetFacts, index_bits: int
) -> tuple[Tiling | None, tuple[str, ...]]:
    """The tiling, None if nothing fits the chip; and what became of each hint."""
    hint = next((hint for hint in kernel.hints if hint.name == MULTIBUFFER), None)
    if hint is None:
        return local_tiling(kernel, target, index_bits), ()
    copies = block_copies(hint.value)
    tiling = local_tiling(kernel, target, index_bits, (copies,))
    if tiling is None:
        problem = f"{copies} buffers of each block do not fit the chip at any tiling"
        return local_tiling(kernel, target, index_bits), (f"hint {hint}: ignored: {problem}",)
    if tiling.load_buffers < copies:
        problem = "a core computes its rows in one step, so it fetches no next block"
        return tiling, (f"hint {hint}: ignored: {problem}",)
    return tiling, (f"hint {hint}: applied",)
