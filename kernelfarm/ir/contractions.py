"""Which kernels are products of matrices, and which of their axes are rows and columns.

    sum over k of left[b, m, k] * right[b, k, n], for all b, m and n

Of the outer axes, rows are those over which one factor varies, columns those over which the other
one does, and batch axes those over which both do. So a tile of results needs a few rows of one
matrix and a few columns of the other, and a chip's instructions for matrices compute it. Slices of
a sum that is split are batches, too. Several sums of one kernel may share a factor. What is
computed before a sum belongs to a factor, what is computed after it to the tile of results.

A vector by a matrix has no rows. It is a contraction if the matrix has contiguous columns; a row of
a matrix with contiguous rows is a row to reduce like any other.

Which elements factors may have depends on the chip: a GPU's instructions for matrices multiply 16
bits, the vector instructions of a processor f32, the cube cores of an Ascend chip both. Products of
8-bit integers are summed in i32, all others in f32.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.loop_ir import (
    Axis,
    Compute,
    Indirect,
    Kernel,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
    index_of,
    needed_statements,
    operands_of,
)

NARROW_FACTORS = (DType.F16, DType.BF16)
"""Element types of factors: their products are exact in f32."""
WIDE_FACTORS = (DType.F32,)
"""Element types of factors that a processor multiplies in vectors."""
ALL_FACTORS = (*NARROW_FACTORS, *WIDE_FACTORS)
BYTE_FACTORS = (DType.I8,)
"""Element types of factors whose products some processors add by fours, exactly."""


@dataclass(frozen=True, slots=True)
class ProductSum:
    """One sum: the number of its Reduce, and of its factors before they have its type."""

    number: int
    left: int
    right: int


@dataclass(frozen=True, slots=True)
class Contraction:
    """A kernel whose reductions all are sums of products over rows and columns.

    Left factors vary over `rows`, right ones over `columns`, both over `batches`, each in the
    kernel's order. The extents of batches are constant. `axes_of` has the axes over which each
    statement varies. `has_columns`: elements of right factors are adjacent along the last column;
    `has_rows`: those of left factors along the last row.
    """

    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    sums: tuple[ProductSum, ...]
    axes_of: tuple[frozenset[str], ...]
    batches: tuple[Axis, ...] = ()
    has_columns: bool = False
    has_rows: bool = False


def find_contraction(
    kernel: Kernel, elements: tuple[DType, ...] = NARROW_FACTORS, *, may_differ: bool = False
) -> Contraction | None:
    """The kernel's rows, columns and sums; None if it is no product of matrices of `elements`.

    Factors of one product have one type, or `may_differ`. A product of 8-bit integers may have no
    rows: a processor multiplies one row by the same instructions.
    """
    wide = _sum_type(elements)
    are_usual = all(_is_usual(statement, wide) for statement in kernel.body)
    if not kernel.reduction or not kernel.outer or not are_usual:
        return None
    axes_of = statement_axes(kernel)
    reduced = frozenset(axis.name for axis in kernel.reduction)
    stores = (n for n, s in enumerate(kernel.body) if isinstance(s, Store))
    sums = _sums(kernel, axes_of, elements, may_differ)
    if not sums or any(axes_of[number] & reduced for number in stores):
        return None
    left, right = axes_of[sums[0].left] - reduced, axes_of[sums[0].right] - reduced
    rows, columns, batches = left - right, right - left, left & right
    has_columns = all(_is_adjacent_along(kernel, columns, found.right) for found in sums)
    has_rows = rows or has_columns or wide is DType.I32
    if not columns or not has_rows or len(left | right) < len(kernel.outer):
        return None
    for found in sums:
        if axes_of[found.left] != left | reduced or axes_of[found.right] != right | reduced:
            return None
    if not all(axis.extent.is_constant for axis in kernel.outer if axis.name in batches):
        return None
    return Contraction(
        rows=_axes(kernel, rows),
        columns=_axes(kernel, columns),
        sums=sums,
        axes_of=axes_of,
        batches=_axes(kernel, batches),
        has_columns=has_columns,
        has_rows=bool(rows) and all(_is_adjacent_along(kernel, rows, s.left) for s in sums),
    )


def _axes(kernel: Kernel, names: frozenset[str]) -> tuple[Axis, ...]:
    return tuple(axis for axis in kernel.outer if axis.name in names)


def _is_adjacent_along(kernel: Kernel, axes: frozenset[str], factor: int) -> bool:
    """True if a factor's elements are adjacent along the last of some axes, not along the sums.

    A scale of each column or row does not matter: it is no matrix.
    """
    reduced = {axis.name for axis in kernel.reduction}
    last = next((axis.name for axis in reversed(kernel.outer) if axis.name in axes), "")
    needed = needed_statements(kernel, (factor,))
    loads = (s for n in needed if isinstance(s := kernel.body[n], Load))
    matrices = [load for load in loads if not reduced.isdisjoint(load.index.symbols)]
    return all(load.index.coefficient_of(last) is ONE for load in matrices)


def _sums(
    kernel: Kernel,
    axes_of: tuple[frozenset[str], ...],
    elements: tuple[DType, ...],
    may_differ: bool,
) -> tuple[ProductSum, ...]:
    """The sums of products; the right factor varies over the last axis that is no batch's.

    Empty if one is no such sum.
    """
    found = []
    for number, statement in enumerate(kernel.body):
        if not isinstance(statement, Reduce):
            continue
        factors = _factors(kernel, statement, elements)
        if factors is None or not (may_differ or _are_alike(kernel, factors)):
            return ()
        alone = axes_of[factors[0]] ^ axes_of[factors[1]]
        last = [axis.name for axis in kernel.outer if axis.name in alone][-1:]
        left, right = sorted(factors, key=lambda n: not axes_of[n].isdisjoint(last))
        found.append(ProductSum(number, left, right))
    return tuple(found)


def statement_axes(kernel: Kernel) -> tuple[frozenset[str], ...]:
    """The axes over which each statement of a kernel varies, indirect indices followed."""
    outer = frozenset(axis.name for axis in kernel.outer)
    known = {axis.name: frozenset((axis.name,)) for axis in (*kernel.outer, *kernel.reduction)}
    found: list[frozenset[str]] = []
    for statement in kernel.body:
        index = index_of(statement)
        axes: frozenset[str] = frozenset()
        for name in index.symbols if index is not None else ():
            axes |= known.get(name, frozenset())
        for operand in operands_of(statement):
            axes |= found[operand]
        found.append(axes & outer if isinstance(statement, Reduce) else axes)
        if isinstance(statement, Indirect):
            known[statement.symbol] = axes
    return tuple(found)


def _sum_type(elements: tuple[DType, ...]) -> DType:
    """The type of sums of products of some elements."""
    return DType.I32 if elements == BYTE_FACTORS else DType.F32


def _is_usual(statement: Statement, wide: DType) -> bool:
    """True for what factors and tiles of results may hold, and for sums in a wide type."""
    if isinstance(statement, Reduce):
        return statement.op == "sum" and statement.dtype is wide
    if isinstance(statement, Store):
        return statement.mode is StoreMode.SET
    return not isinstance(statement, Scan | Sort | Indirect)


def _factors(kernel: Kernel, reduce: Reduce, elements: tuple[DType, ...]) -> tuple[int, int] | None:
    """The factors of a sum's terms before a conversion; None if they are no `elements`."""
    term, wide = kernel.body[reduce.operand], _sum_type(elements)
    if not isinstance(term, Compute) or term.op != "mul" or term.dtype is not wide:
        return None
    first, second = (_factor(kernel, operand, elements) for operand in term.operands)
    return None if first is None or second is None or first == second else (first, second)


def _are_alike(kernel: Kernel, factors: tuple[int, int]) -> bool:
    first, second = factors
    return element_type(kernel, first) is element_type(kernel, second)


def _factor(kernel: Kernel, number: int, elements: tuple[DType, ...]) -> int | None:
    """The value of `elements` that a value is converted from, or that it is; None if neither."""
    wide, total = kernel.body[number], _sum_type(elements)
    if isinstance(wide, Compute) and wide.op == "convert" and wide.dtype is total:
        (operand,) = wide.operands
        if element_type(kernel, operand) in elements:
            return operand
    return number if element_type(kernel, number) in elements else None


def element_type(kernel: Kernel, number: int) -> DType | None:
    """The type of a value that is loaded or computed; None for others."""
    statement = kernel.body[number]
    if isinstance(statement, Load):
        return kernel.param(statement.param).dtype
    return statement.dtype if isinstance(statement, Compute) else None
