"""The costly values that depend on the lane alone, which a range of units computes once.

A batch norm over channels last divides by a root for each channel. In the loop over pixels and
channels, every point would compute that again.
"""

from __future__ import annotations

from typing import Final

from codegen_svc.emitters.llvm.math_functions.narrow import FUNCTIONS
from kernelfarm.ir.algebra.expr import product_of
from kernelfarm.ir.loop_ir import (
    Access,
    Axis,
    Compute,
    IndexValue,
    Kernel,
    Literal,
    Load,
    Statement,
    index_of,
    operands_of,
)

# With fewer points of the other axes, computing a value first for all lanes saves little.
MIN_ROWS: Final = 64
# Bytes of stack for all values: half of the smallest L1 data cache.
MAX_BYTES: Final = 16 * 1024
# Beside the mathematical functions: operations that take ten cycles and more.
_SLOW_WORDS: Final = "div fmod floor_div mod_floor reciprocal rsqrt sqrt trunc_div"
_SLOW: Final = frozenset(_SLOW_WORDS.split())


def lane_constants(kernel: Kernel, lane: Axis | None) -> tuple[int, ...]:
    """The statements whose values are kept in an array with an element for each lane."""
    if lane is None or kernel.reduction or not lane.extent.is_constant:
        return ()
    rows = product_of([axis.extent for axis in kernel.outer if axis is not lane])
    if rows.is_constant and rows.constant < MIN_ROWS:
        return ()
    fixed = _of_lane_alone(kernel, lane)
    costly = _costly(kernel, fixed)
    read = {v for n, s in enumerate(kernel.body) if n not in fixed for v in operands_of(s)}
    chosen: list[int] = []
    free_bytes = MAX_BYTES
    for number in sorted(costly & read):
        statement = kernel.body[number]
        assert isinstance(statement, Compute)  # loads and literals are not costly
        size = lane.extent.constant * max(statement.dtype.itemsize_bytes, 1)
        if size <= free_bytes:
            chosen.append(number)
            free_bytes -= size
    return tuple(chosen)


def _of_lane_alone(kernel: Kernel, lane: Axis) -> set[int]:
    """The statements whose values depend on the lane and the sizes, and on no other axis."""
    known = {lane.name, *(size.name for size in kernel.sizes)}
    found: set[int] = set()
    for number, statement in enumerate(kernel.body):
        index = index_of(statement)
        is_free = index is None or index.symbols <= known
        if is_free and _is_pure(kernel, statement) and found.issuperset(operands_of(statement)):
            found.add(number)
    return found


def _is_pure(kernel: Kernel, statement: Statement) -> bool:
    """True if the value is the same before the first store, and needs no check of an index."""
    if isinstance(statement, Load):
        is_unchanged = kernel.param(statement.param).access is Access.READ
        return is_unchanged and statement.mask is None
    return isinstance(statement, Compute | IndexValue | Literal)


def _costly(kernel: Kernel, fixed: set[int]) -> set[int]:
    """Those of `fixed` that need a slow operation."""
    found: set[int] = set()
    for number in sorted(fixed):
        statement = kernel.body[number]
        is_slow = isinstance(statement, Compute) and (
            statement.op in FUNCTIONS or statement.op in _SLOW
        )
        if is_slow or not found.isdisjoint(operands_of(statement)):
            found.add(number)
    return found
