"""Vectors multiplied by rows of bytes: weights of 8 or 4 bits.

Each byte is converted and multiplied, so instructions limit such a kernel as much as memory does. A
program goes along a row in small steps, whose registers leave room for many programs.
"""

from __future__ import annotations

from codegen_svc.emitters.triton.phases import plan_phases
from codegen_svc.emitters.triton.word_loads import WORD_BYTES, bytes_of_words
from kernelfarm.ir.loop_ir import Kernel, Load, Reduce

_STEP_BYTES = 1024
"""On an H200, of 15 forms for weights of 4 bits and 10 of 8 bits, in 3 and 2 sizes, steps of 1,024
bytes by two warps are within 4% of the best; rows that a program holds take up to 1.4 times as
long."""
WARPS = 2


def points_of_step(kernel: Kernel) -> int | None:
    """The reduction points of a step, which has so many bytes; None for other kernels."""
    looping = [phase for phase in plan_phases(kernel) if phase.within or phase.reduces]
    reduces = [s for s in kernel.body if isinstance(s, Reduce)]
    if len(looping) != 1 or not reduces or any(s.op != "sum" for s in reduces):
        return None
    outer = {axis.name for axis in kernel.outer}
    reduced = {axis.name for axis in kernel.reduction}
    loads = [s for s in kernel.body if isinstance(s, Load) and s.index.symbols & reduced]
    vectors = [load for load in loads if not load.index.symbols & outer]
    rows = [load for load in loads if load.index.symbols & outer]
    if not vectors or not any(kernel.param(r.param).dtype.itemsize_bytes == 1 for r in rows):
        return None
    return _STEP_BYTES // (WORD_BYTES if bytes_of_words(kernel) else 1)
