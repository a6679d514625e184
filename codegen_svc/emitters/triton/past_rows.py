"""What statements hold in the lanes of a block that lie past the end of a row.

A reduction ignores these lanes. If they hold its neutral element, it need not select: 0 for a sum,
minus infinity for a maximum. Therefore loads fill such lanes with the number, 0 or minus infinity,
that saves more selections.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from codegen_svc.emitters.triton.float8 import FLOATS_8
from codegen_svc.emitters.triton.index import kernel_bounds, numel
from kernelfarm.ir.loop_ir import Compute, Kernel, Literal, Load, Reduce, varying_values

ZERO = 0.0
_FILLS = (ZERO, -math.inf)
_EXPONENTIALS = ("exp", "narrow_exp")
# What each reduction takes without a selection; `guided.py` has the last two.
_TAKES = {
    "sum": ZERO,
    "amax": -math.inf,
    "softmax_sum": -math.inf,
    "welford_m2": ZERO,
}


def row_fill(kernel: Kernel) -> float:
    """The number with which loads fill the lanes past the end of a row."""
    lowest, _ = kernel_bounds(kernel).interval(numel(kernel.reduction))
    if lowest is None or lowest < 1:  # In an empty row, all lanes would be past its end.
        return ZERO
    return max(_FILLS, key=lambda fill: _spared(kernel, past_values(kernel, fill)))


def past_values(kernel: Kernel, fill: float) -> tuple[float | None, ...]:
    """The value of each statement in such lanes; None if it is not known."""
    varying = varying_values(kernel)
    values: list[float | None] = []
    for number, statement in enumerate(kernel.body):
        value = None
        if isinstance(statement, Load) and number in varying and is_filled(kernel, statement):
            value = fill
        elif isinstance(statement, Load) and number in varying and statement.mask is not None:
            value = _masked_off(kernel, statement)
        elif isinstance(statement, Literal) and statement.dtype.is_float:
            value = float(statement.value)
        elif isinstance(statement, Compute) and statement.dtype.is_float:
            value = _computed(kernel, statement, values)
        values.append(value)
    return tuple(values)


def is_filled(kernel: Kernel, load: Load) -> bool:
    """True for loads of floats without a mask of their own."""
    dtype = kernel.param(load.param).dtype
    return load.mask is None and dtype.is_float and dtype not in FLOATS_8


def _masked_off(kernel: Kernel, load: Load) -> float | None:
    """What a load with a mask gives where it is off, there or past the end; None if not known."""
    dtype = kernel.param(load.param).dtype
    if not dtype.is_float or dtype in FLOATS_8:
        return None
    other = None if load.other is None else kernel.body[load.other]
    return float(other.value) if isinstance(other, Literal) else None


def _spared(kernel: Kernel, past: Sequence[float | None]) -> int:
    """The number of reductions that need no selection."""
    reduces = (s for s in kernel.body if isinstance(s, Reduce) and s.op in _TAKES)
    return sum(past[s.operand] == _TAKES[s.op] for s in reduces)


def _computed(kernel: Kernel, call: Compute, values: Sequence[float | None]) -> float | None:
    """Zero or an infinity, which no rounding changes, or None."""
    if call.op == "where":
        _, one, other = (values[operand] for operand in call.operands)
        return one if one is not None and one == other else None
    first, *others = (values[operand] for operand in call.operands)
    if call.op == "sub" and first == -math.inf and _is_below_top(kernel, call):
        return first
    if first is None or None in others or call.dtype in FLOATS_8:
        return None
    second = others[0] if others and others[0] is not None else ZERO
    match call.op:
        case "convert":
            result = first
        case "neg":
            result = -first
        case "mul":
            result = first * second
        case "add":
            result = first + second
        case "sub":
            result = first - second
        case op if op in _EXPONENTIALS and first == -math.inf:
            result = ZERO
        case _:
            return None
    return result if result == 0 or math.isinf(result) else None


def _is_below_top(kernel: Kernel, call: Compute) -> bool:
    """True for x - amax(x): if the maximum is minus infinity, the row holds NaN anyway."""
    x, top = call.operands
    guide = kernel.body[top]
    return isinstance(guide, Reduce) and guide.op == "amax" and guide.operand == x
