"""Which kernels are products of matrices that a processor computes in register tiles.

Factors are elements of f32 matrices: nothing is computed from them before the product. One axis of
the rows and one of the columns are tiled, the last ones; other axes have a product for each of
their points. A kernel has one product: each has a panel and sums in the caches, and nothing is read
once less if two are computed together.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.contractions import WIDE_FACTORS, Contraction, find_contraction
from kernelfarm.ir.loop_ir import Axis, Kernel, Load


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a sum: its load, and the steps between its elements, in elements.

    `along` is the step to the next row or column, `inner` the step to the next term.
    """

    load: Load
    along: Expr
    inner: Expr


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
    """The product that a kernel is; None if it is none, or has one row."""
    found = single_product(kernel)
    if found is None or len(kernel.reduction) != 1:
        return None
    if not found.rows or found.rows[-1].extent is ONE:
        return None
    rows, columns, (terms,), (summed,) = (
        found.rows[-1],
        found.columns[-1],
        kernel.reduction,
        found.sums,
    )
    left = _factor(kernel, summed.left, rows, terms)
    right = _factor(kernel, summed.right, columns, terms)
    if left is None or right is None:
        return None
    others = tuple(axis for axis in kernel.outer if axis not in (rows, columns))
    return ProcessorProduct(summed.number, rows, columns, terms, others, left, right)


def single_product(kernel: Kernel) -> Contraction | None:
    """The one product of f32 that a kernel is, wherever its factors come from; None if it is none.

    Positions of factors are linear only when the axes of the kernel have their last form.
    """
    found = find_contraction(kernel, WIDE_FACTORS)
    return found if found is not None and len(found.sums) == 1 else None


def _factor(kernel: Kernel, number: int, axis: Axis, terms: Axis) -> Factor | None:
    """The factor, if it is an element of memory whose position is linear in both axes."""
    load = kernel.body[number]
    if not isinstance(load, Load) or load.mask is not None:
        return None
    along, inner = (load.index.coefficient_of(each.name) for each in (axis, terms))
    if along is None or inner is None or {axis.name, terms.name} & (along.symbols | inner.symbols):
        return None
    return Factor(load, along, inner)
