"""The tiling of a loop kernel with the number of buffers that its hints ask for."""

from __future__ import annotations

from codegen_svc.emitters.triton.local_tiling import local_tiling
from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.ir.hints import MULTIBUFFER, block_copies
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.targets import TargetFacts


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
