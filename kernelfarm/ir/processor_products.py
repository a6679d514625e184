"""Which kernels are products of matrices that a processor computes in register tiles.

Factors are elements of matrices of f32, or of f16 and bf16, which are converted to f32 unless the
processor multiplies bf16 itself, or both are of i8, whose products some processors add by fours in
i32: nothing else is computed from them before the product. Of the
rows, the longest axis is tiled, of the columns the last one; other axes have a product for each of
their points. A kernel has one product: each has a panel and sums in the caches, and nothing is read
once less if two are computed together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, ZERO, Expr, product_of
from kernelfarm.ir.contractions import (
    ALL_FACTORS,
    BYTE_FACTORS,
    Contraction,
    element_type,
    find_contraction,
)
from kernelfarm.ir.loop_ir import Axis, Kernel, Load
from kernelfarm.ir.panel_order import PanelOrder, find_panel_order

LEAST_NARROW_ROWS = 16
"""A product of 16 bits with fewer rows reads its right factor without a panel: memory limits it."""
_ONE_ROW = Axis("row.alone", ONE)
"""The rows of a product without an axis of them. It is no identifier, so no axis has the name."""


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a sum: its load, its type, and the steps between its elements, in elements.

    `along` is the step to the next row or column, `inner` the step to the next term. A factor in
    panels has an `order`, and steps of 0.
    """

    load: Load
    dtype: DType
    along: Expr
    inner: Expr
    order: PanelOrder | None = None


@dataclass(frozen=True, slots=True)
class ProcessorProduct:
    """The number of a product's Reduce, its axes, and its factors.

    `others` are the axes that are not tiled, in the kernel's order.
    """

    number: int

    rows: Axis
    columns: Axis
    terms: Axis
    others: tuple[Axis, ...]
    left: Factor
    right: Factor


def find_processor_product(kernel: Kernel) -> ProcessorProduct | None:
    """The product that a kernel is; None if it is none, or has one row of floats."""
    found = single_product(kernel)
    if found is None or len(kernel.reduction) != 1:
        return None
    rows, columns, (terms,), (summed,) = (
        _rows(found),
        found.columns[-1],
        kernel.reduction,
        found.sums,
    )
    if rows is None and element_type(kernel, summed.left) in BYTE_FACTORS:
        rows = _ONE_ROW
    if rows is None or (rows.extent is ONE and rows is not _ONE_ROW):
        return None
    left = _factor(kernel, summed.left, rows, terms)
    right = _factor(kernel, summed.right, columns, terms)
    right = right or _factor_in_panels(kernel, summed.right, columns, terms)
    if left is None or right is None:
        return None
    others = tuple(axis for axis in kernel.outer if axis not in (rows, columns))
    return ProcessorProduct(summed.number, rows, columns, terms, others, left, right)


def single_product(kernel: Kernel) -> Contraction | None:
    """The one product that a kernel is, wherever its factors come from; None if it is none.

    Positions of factors are linear only when the axes of the kernel have their last form.
    """
    found = find_contraction(kernel, ALL_FACTORS, may_differ=True)
    if found is None:
        return _product_of_bytes(kernel)
    if len(found.sums) != 1:
        return None
    (summed,) = found.sums
    is_wide = all(
        element_type(kernel, number) is DType.F32 for number in (summed.left, summed.right)
    )
    return found if is_wide or _has_rows(found) else None


def _product_of_bytes(kernel: Kernel) -> Contraction | None:
    if not any(param.dtype in BYTE_FACTORS for param in kernel.params):
        return None
    found = find_contraction(kernel, BYTE_FACTORS)
    return found if found is not None and len(found.sums) == 1 else None


def _has_rows(found: Contraction) -> bool:
    """True if there are enough rows to convert the right factor once for them.

    Axes of rows that lie behind each other in memory become one before code is generated.
    """
    rows = product_of([axis.extent for axis in found.rows])
    return not rows.is_constant or rows.constant >= LEAST_NARROW_ROWS


def _rows(found: Contraction) -> Axis | None:
    """The axis of the rows with the most points; a varying number counts as most."""

    def points(axis: Axis) -> float:
        return axis.extent.constant if axis.extent.is_constant else math.inf

    return max(reversed(found.rows), key=points, default=None)


def _factor(kernel: Kernel, number: int, axis: Axis, terms: Axis) -> Factor | None:
    """The factor, if it is an element of memory whose position is linear in both axes."""
    load = kernel.body[number]
    if not isinstance(load, Load) or load.mask is not None:
        return None
    along, inner = (load.index.coefficient_of(each.name) for each in (axis, terms))
    if along is None or inner is None or {axis.name, terms.name} & (along.symbols | inner.symbols):
        return None
    return Factor(load, kernel.param(load.param).dtype, along, inner)


def _factor_in_panels(kernel: Kernel, number: int, columns: Axis, terms: Axis) -> Factor | None:
    """The factor, if it is an element of memory in panels of some width."""
    load = kernel.body[number]
    if not isinstance(load, Load) or load.mask is not None:
        return None
    dtype = kernel.param(load.param).dtype
    order = find_panel_order(load.index, columns, terms, dtype)
    return None if order is None else Factor(load, dtype, ZERO, ZERO, order)
