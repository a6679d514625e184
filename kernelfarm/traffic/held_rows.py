"""Rows that a program can keep in registers while several loops read them."""

from __future__ import annotations

from kernelfarm.ir.loop_ir import Kernel, Load

_WORD_BYTES = (2, 4)
"""Types of which registers hold one element, or two side by side."""


def row_loads(kernel: Kernel) -> tuple[int, ...]:
    """The numbers of the loads that read another row for each outer point, element by element."""
    outer = {axis.name for axis in kernel.outer}
    reduced = {axis.name for axis in kernel.reduction}
    known = outer | reduced | {size.name for size in kernel.sizes}
    return tuple(
        number
        for number, load in enumerate(kernel.body)
        if isinstance(load, Load)
        and load.mask is None
        and kernel.param(load.param).dtype.itemsize_bytes in _WORD_BYTES
        and not outer.isdisjoint(load.index.symbols)
        and not reduced.isdisjoint(load.index.symbols)
        and load.index.symbols <= known
    )


def held_row_bytes(kernel: Kernel, points: int) -> int:
    """The bytes of a row of so many points of all loads that read rows; 0 if none does."""
    dtypes = (kernel.body[number] for number in row_loads(kernel))
    return points * sum(
        kernel.param(load.param).dtype.itemsize_bytes for load in dtypes if isinstance(load, Load)
    )
