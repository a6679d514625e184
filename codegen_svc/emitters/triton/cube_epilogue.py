"""Bytes of a vector core's buffer for what a product computes beside its sums.

A factor that is only loaded, without a mask, goes from memory to the cube core, and takes nothing
of the vector core's buffer. What is computed for factors lives with their blocks until the product,
what is computed from the sums with the tile of results. All sums reach the buffer together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from codegen_svc.emitters.triton.tiling import Tiling
from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import Contraction
from kernelfarm.ir.loop_ir import Kernel, Load, Store, needed_statements, operands_of
from kernelfarm.targets import LocalBufferFacts

_INDEX_BYTES = 8


@dataclass(frozen=True, slots=True)
class VectorValue:
    """A value in a vector core's buffer, from its first to its last position in time.

    Its block extends over the rows, the columns and the points of the sums that it varies over.
    There are `copies` of it. `is_before`: it is computed for the factors, whose blocks may have
    either of their two axes first.
    """

    first: int
    last: int
    has_rows: bool
    has_columns: bool
    has_points: bool
    itemsize_bytes: int
    copies: int
    is_before: bool


def vector_values(kernel: Kernel, found: Contraction) -> tuple[VectorValue, ...]:
    """What the vector cores hold while a product is computed."""
    before, after = _order(kernel, found)
    product = len(before)
    position = {number: at for at, number in enumerate(before)}
    position |= {s.number: product + 1 for s in found.sums}
    position |= {number: product + 2 + at for at, number in enumerate(after)}
    last = dict(position)
    for number in (*before, *after):
        for operand in operands_of(kernel.body[number]):
            if operand in last:
                last[operand] = max(last[operand], position[number])
    factors = _factors(found)
    for factor in factors & last.keys():
        last[factor] = max(last[factor], product)
    return tuple(
        _value(kernel, found, number, (position[number], last[number]), position[number] < product)
        for number in position
        if not isinstance(kernel.body[number], Store)
    )


def vector_bytes(values: Sequence[VectorValue], tiling: Tiling, chip: LocalBufferFacts) -> int:
    """The most bytes that live together; each row of a block begins at the buffer's alignment."""
    changes = [0] * (max((value.last for value in values), default=0) + 2)
    for value in values:
        size = value.copies * _block_bytes(value, tiling, chip)
        changes[value.first] += size
        changes[value.last + 1] -= size
    return max(accumulate(changes))


def _factors(found: Contraction) -> set[int]:
    return {number for s in found.sums for number in (s.left, s.right)}


def _order(kernel: Kernel, found: Contraction) -> tuple[list[int], list[int]]:
    """The statements before the sums that vector cores compute, and those after the sums."""
    factors, body = _factors(found), kernel.body
    needed = set(needed_statements(kernel, factors))
    read = {operand for number in needed for operand in operands_of(body[number])}
    to_cube = {n for n in factors - read if isinstance(s := body[n], Load) and s.mask is None}
    reduced = {axis.name for axis in kernel.reduction}
    sums = {s.number for s in found.sums}
    late = (
        n
        for n in range(len(body))
        if n not in needed and n not in sums and not found.axes_of[n] & reduced
    )
    return sorted(needed - to_cube), list(late)


def _value(
    kernel: Kernel, found: Contraction, number: int, span: tuple[int, int], is_before: bool
) -> VectorValue:
    rows, columns, points = (
        not found.axes_of[number].isdisjoint(axis.name for axis in axes)
        for axes in (found.rows, found.columns, kernel.reduction)
    )
    # The sums of a lone row are one of the rows of a tile, which is masked and added up. A factor
    # has a copy with zeros past its end.
    is_lone_row = not found.rows and number in {s.number for s in found.sums}
    return VectorValue(
        *span,
        has_rows=rows or is_lone_row,
        has_columns=columns,
        has_points=points,
        itemsize_bytes=itemsize_bytes(kernel, number),
        copies=2 if is_lone_row or number in _factors(found) else 1,
        is_before=is_before,
    )


def itemsize_bytes(kernel: Kernel, number: int) -> int:
    """The bytes of an element that a statement loads, stores or computes."""
    statement = kernel.body[number]
    if isinstance(statement, Load | Store):
        return kernel.param(statement.param).dtype.itemsize_bytes
    dtype: DType | None = getattr(statement, "dtype", None)
    return _INDEX_BYTES if dtype is None else dtype.itemsize_bytes


def _block_bytes(value: VectorValue, tiling: Tiling, chip: LocalBufferFacts) -> int:
    """The bytes of a block; of a factor's block the shorter axis may be the last one."""
    rows = tiling.xblock if value.has_rows else 1
    columns = tiling.rblock if value.has_columns else 1
    points = tiling.kblock if value.has_points else 1
    elems = rows * columns * points
    inner = min(elems // points, points) if value.is_before else columns
    row_bytes = -(-inner * value.itemsize_bytes // chip.alignment_bytes) * chip.alignment_bytes
    return elems // inner * row_bytes
