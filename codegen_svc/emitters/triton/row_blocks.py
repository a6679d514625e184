"""Pointwise kernels whose programs should stay within a row, because its points share much work.

A program of consecutive points may have points of several rows, so it computes for each point what
depends on the row alone: indices, loads, arithmetic. A program within a row does so once.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.loop_ir import (
    Compute,
    Indirect,
    Kernel,
    Load,
    Store,
    operands_of,
    varying_values,
)

# The most lanes that rows may take, as a multiple of their points. On an H100, programs of 256
# points take twice as long as flat ones; on an H200, rows of 12,544 reach 102% of a copy by 2,048.
_MOST_IDLE = {2048: 1.15, 1024: 1.05, 512: 1.05}
_LEAST_WIDTH = 1024
# A scale of each row is no reason; the gradient of a class loss and a batch norm are, on an H100.
_MIN_LOADS = 2
_MIN_SHARED = 6
_ACCESS_BYTES = 16


def block_within_rows(kernel: Kernel) -> int | None:
    """The points of a row in one program's block; None if programs may as well cross rows.

    Rows are static, and each is aligned as memory is accessed: otherwise only a program of
    consecutive points can access 16 bytes at a time.
    """
    if len(kernel.outer) < 2 or kernel.reduction or not kernel.outer[-1].extent.is_constant:
        return None
    width = kernel.outer[-1].extent.as_int()
    if width < _LEAST_WIDTH or not _shares_work(kernel) or not _has_aligned_rows(kernel):
        return None
    fitting = (b for b, idle in _MOST_IDLE.items() if ceil(width / b) * b <= idle * width)
    return next(fitting, None)


def as_rows(kernel: Kernel) -> Kernel:
    """The kernel with its last outer axis as the second axis of blocks."""
    return replace(kernel, outer=kernel.outer[:-1], reduction=kernel.outer[-1:])


def _shares_work(kernel: Kernel) -> bool:
    """True if enough statements depend on the row, but not on the point in it."""
    varying = varying_values(as_rows(kernel))
    rows = {axis.name for axis in kernel.outer[:-1]}
    shared: set[int] = set()
    loads = 0
    for number, statement in enumerate(kernel.body):
        if number in varying:
            continue
        if isinstance(statement, Load) and not rows.isdisjoint(statement.index.symbols):
            shared.add(number)
            loads += 1
        elif isinstance(statement, Compute) and not shared.isdisjoint(operands_of(statement)):
            shared.add(number)
    return loads >= _MIN_LOADS and len(shared) >= _MIN_SHARED


def _has_aligned_rows(kernel: Kernel) -> bool:
    varying = varying_values(as_rows(kernel))
    for number, statement in enumerate(kernel.body):
        if isinstance(statement, Indirect):
            return False
        if not isinstance(statement, Load | Store) or number not in varying:
            continue
        parts = statement.index.linear_in(kernel.outer[-1].name)
        elems = max(1, _ACCESS_BYTES // kernel.param(statement.param).dtype.itemsize_bytes)
        if parts is None or parts[0] is not ONE or not _is_multiple(parts[1], elems):
            return False
    return True


def _is_multiple(expr: Expr, of: int) -> bool:
    """True if every coefficient is a multiple, so that the value is one for all points."""
    return all(number % of == 0 for number in (expr.constant, *(c for _, c in expr.terms)))
