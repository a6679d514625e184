"""Pointwise kernels whose programs should not have consecutive points, because others share work.

A program of consecutive points may have points of several rows, so it computes for each point what
depends on the row alone: indices, loads, arithmetic. A program within a row does so once. If rows
are short, such as the 49 pixels of a channel, a program has the same points of several images
instead, and does so once for these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil

from codegen_svc.emitters.triton.index import numel
from kernelfarm.ir.algebra.expr import ONE, Expr, symbol
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    Indirect,
    Kernel,
    Load,
    Store,
    operands_of,
    varying_values,
)

EVEN_SIZE = 16
"""Of this number are those sizes multiples that a variant assumes to be even."""
# The most lanes that rows may take, as a multiple of their points. On an H100, programs of 256
# points take twice as long as flat ones; on an H200, rows of 12,544 reach 102% of a copy by 2,048.
_MOST_IDLE = {2048: 1.15, 1024: 1.05, 512: 1.05}
_LEAST_WIDTH = 1024
# A scale of each row is no reason; the gradient of a class loss and a batch norm are, on an H100.
_MIN_LOADS = 2
_MIN_SHARED = 6
_ACCESS_BYTES = 16
# On an H200, batch norm and ReLU over 32 x 2048 x 7 x 7 bf16 elements reach 93% of a copy by eight
# rows of 256 points, 81 by 2,048 consecutive points, where a thread loads four numbers for each
# point; over 32 x 320 and 8 x 2048 such channels 103 and 102 instead of 89 and 76. If a channel has
# a multiple of four points, neighbours share these loads: consecutive points reach 105 to 107.
_MOST_ROWS, _LEAST_ROWS = 8, 4
_BLOCK_OF_ROWS = 2048
_SHARED_POINTS = 4
_MOST_IDLE_OF_ROWS = 1.05


@dataclass(frozen=True, slots=True)
class RowsOfColumns:
    """A block of `rows` rows and `columns` points of the `axes` innermost axes."""

    rows: int
    columns: int
    axes: int


def block_within_rows(kernel: Kernel) -> int | None:
    """The points of a row in one program's block; None if programs may as well cross rows.

    Rows are static, and each is aligned as memory is accessed: otherwise only a program of
    consecutive points can access 16 bytes at a time.
    """
    if len(kernel.outer) < 2 or kernel.reduction or not kernel.outer[-1].extent.is_constant:
        return None
    width = kernel.outer[-1].extent.as_int()
    if width < _LEAST_WIDTH or not _shares_work(as_rows(kernel)) or not _has_aligned_rows(kernel):
        return None
    fitting = (b for b, most in _MOST_IDLE.items() if _leaves_few_idle(b, width, most))
    return next(fitting, None)


def block_over_rows(kernel: Kernel) -> RowsOfColumns | None:
    """Several rows of one program's block, whose points share work; None if nothing is gained.

    A row has all axes but the first ones. What its points share with those of other rows depends
    on neither the first axes nor the last one, so that each point loads it alone.
    """
    if not kernel.outer or kernel.reduction or not all(a.extent.is_constant for a in kernel.outer):
        return None
    last = kernel.outer[-1]
    if last.extent.as_int() % _SHARED_POINTS == 0 or last.extent.as_int() >= _LEAST_WIDTH:
        return None
    for axes in range(2, len(kernel.outer)):
        found = numel(kernel.outer[:-axes]).as_int()
        rows = _MOST_ROWS if found >= _MOST_ROWS else _LEAST_ROWS
        block, columns = _BLOCK_OF_ROWS // rows, numel(kernel.outer[-axes:]).as_int()
        if found < rows or not _leaves_few_idle(block, columns, _MOST_IDLE_OF_ROWS):
            continue
        if shares_columns(kernel, axes):
            return RowsOfColumns(rows, block, axes)
    return None


def shares_columns(kernel: Kernel, axes: int) -> bool:
    """True if rows of the last `axes` axes are aligned, and share work point by point.

    What they share depends on no other axis, and its loads not on the last one.
    """
    shared = _shares_work(_as_columns(kernel, axes), kernel.outer[-1].name)
    return shared and _has_aligned_rows(kernel, axes)


def as_rows(kernel: Kernel, axes: int = 1) -> Kernel:
    """The kernel with its last outer axes as the second axis of blocks."""
    return replace(kernel, outer=kernel.outer[:-axes], reduction=kernel.outer[-axes:])


def _as_columns(kernel: Kernel, axes: int) -> Kernel:
    """The kernel with its other outer axes as the second axis of blocks."""
    return replace(kernel, outer=kernel.outer[-axes:], reduction=kernel.outer[:-axes])


def _leaves_few_idle(block: int, width: int, most: float) -> bool:
    """True if few lanes of the blocks of a row are behind its end."""
    return ceil(width / block) * block <= most * width


def _shares_work(kernel: Kernel, unless: str = "") -> bool:
    """True if enough statements depend on outer axes alone; loads by the axis `unless` do not."""
    varying = varying_values(kernel)
    outer = {axis.name for axis in kernel.outer}
    shared: set[int] = set()
    loads = 0
    for number, statement in enumerate(kernel.body):
        if number in varying:
            continue
        if isinstance(statement, Load):
            symbols = statement.index.symbols
            if not outer.isdisjoint(symbols) and unless not in symbols:
                shared.add(number)
                loads += 1
        elif isinstance(statement, Compute) and not shared.isdisjoint(operands_of(statement)):
            shared.add(number)
    return loads >= _MIN_LOADS and len(shared) >= _MIN_SHARED


def _has_aligned_rows(kernel: Kernel, axes: int = 1) -> bool:
    """True if each access by the last axis reads neighbouring points of the last axes, aligned."""
    for statement in kernel.body:
        if isinstance(statement, Indirect):
            return False
        if not isinstance(statement, Load | Store):
            continue
        if isinstance(statement, Load) and kernel.outer[-1].name not in statement.index.symbols:
            continue
        elems = max(1, _ACCESS_BYTES // kernel.param(statement.param).dtype.itemsize_bytes)
        rest = _behind_flat(statement.index, kernel.outer[-axes:])
        if rest is None or not is_multiple(rest, elems):
            return False
    return True


def _behind_flat(index: Expr, axes: tuple[Axis, ...]) -> Expr | None:
    """What an index adds to the position in a row of these axes; None if it has other strides."""
    stride = ONE
    for axis in reversed(axes):
        parts = index.linear_in(axis.name)
        if parts is None or parts[0] != stride:
            return None
        index, stride = parts[1], stride * axis.extent
    return index


def is_multiple(expr: Expr, of: int, even_sizes: frozenset[str] = frozenset()) -> bool:
    """True if every coefficient is a multiple, so that the value is one for all points.

    `even_sizes` are known to be multiples of `EVEN_SIZE`.
    """
    expr = expr.substitute({name: symbol(name) * EVEN_SIZE for name in even_sizes})
    return all(number % of == 0 for number in (expr.constant, *(c for _, c in expr.terms)))
