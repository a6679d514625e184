"""Loads of rows at the border of an image, whose masks are the same for all lanes.

A branch at each masked load makes so many ways through the loop that LLVM computes one lane at a
time. Instead, lanes without an element read another element of the buffer, and what they read is
replaced. A maximum over 5 x 5 of 10 x 10 pixels with 128 channels took 16 times as long with
branches (AMD EPYC, Zen 5, one thread).
"""

from __future__ import annotations

from collections.abc import Mapping

from codegen_svc.emitters.llvm.text import Value
from kernelfarm.ir.algebra.expr import Expr, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, IndexValue, Kernel, Literal, Load


def offset_in_row(
    kernel: Kernel, load: Load, lane: Axis | None, values: Mapping[int, Value]
) -> Expr | None:
    """The offset of a lane's element from that of the first lane, if a row may begin anywhere.

    It is then in the buffer also as an index. None if the mask may differ between lanes, or the
    buffer is shorter than a row, or the kernel writes to it. `values` are the known values.
    """
    if lane is None or load.mask is None or not lane.extent.is_constant:
        return None
    step, param = load.index.coefficient_of(lane.name), kernel.param(load.param)
    if step is None or not (step.is_constant and param.size_elems.is_constant):
        return None
    last = step.constant * (lane.extent.constant - 1)
    is_inside = step.constant >= 0 and last < param.size_elems.constant
    if param.access is not Access.READ or not is_inside:
        return None
    is_for_all = is_same_for_all(kernel, load.mask, lane, values)
    return symbol(lane.name) * step if is_for_all else None


def is_same_for_all(kernel: Kernel, number: int, lane: Axis, values: Mapping[int, Value]) -> bool:
    """True if a value is the same for all lanes, as far as its operations show it."""
    pending, seen = [number], set[int]()
    while pending:
        current = pending.pop()
        if current in seen or _is_constant(values.get(current)):
            continue
        seen.add(current)
        match kernel.body[current]:
            case Literal():
                pass
            case IndexValue(expr=expr) if lane.name not in expr.symbols:
                pass
            case Compute(operands=operands):
                pending += operands
            case _:
                return False
    return True


def _is_constant(value: Value | None) -> bool:
    return value is not None and not value.text.startswith("%")
