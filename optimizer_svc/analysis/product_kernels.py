"""Which products of matrices the kernels of a target can compute."""

from __future__ import annotations

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.ir.panel_order import panel_order
from kernelfarm.ir.processor_products import LEAST_NARROW_ROWS
from kernelfarm.ir.product_choice import ProductChoice
from kernelfarm.targets import TargetFacts
from optimizer_svc.analysis.extents import is_empty
from optimizer_svc.analysis.product_operands import MAX_FEW_ROWS, Product
from optimizer_svc.analysis.product_times import computed_weight, tile_times, times_of
from optimizer_svc.analysis.verdicts import Refused

MIN_TILED_COLUMNS = 64
"""The columns of a tile on a processor with AVX-512: of fewer, it computes some for nothing."""


def kernels_refuse(
    product: Product,
    rows: Expr,
    weight: TensorType,
    target: TargetFacts,
    choice: ProductChoice,
) -> Refused | None:
    """Why kernels of a target compute no such product; None if they do."""
    has_units = target.has_matrix_units
    has_code = target.gpu is not None or target.processor is not None
    if product.integers is not None and not has_code:
        return Refused("by a weight that the model computes")
    most = _most_rows(target, weight.dtype, product)
    if most is None:
        by = " by a weight of contiguous columns" if product.has_columns else ""
        by = f" {computed_weight(product)}" if product.integers is not None else by
        return Refused(f"of {weight.dtype.value}{by}, for which the target has no kernels")
    if not all(extent.is_constant for extent in (rows, *weight.shape)):
        return Refused("of varying sizes")
    if is_empty((rows, *weight.shape)):
        return Refused("without terms or results")
    is_asked_for = has_units and choice is ProductChoice.OWN
    is_timed = target.many_rows is not None and product.integers is None
    if rows.constant <= most or is_asked_for or is_timed:
        return None
    by = f" {computed_weight(product)}" if product.integers is not None else ""
    untimed = ", for which kernels were not timed" if has_units else ""
    return Refused(f"of more than {most} rows{by}{untimed}")


def tiles_refuse(
    product: Product, rows: Expr, weight: TensorType, target: TargetFacts
) -> Refused | None:
    """Why a processor computes no such product in tiles; None if it does."""
    if target.processor is None:
        return Refused("for which the target has no kernels")
    if not all(extent.is_constant for extent in weight.shape):
        return Refused("by weights of varying sizes")
    if rows is ONE or is_empty((rows, *weight.shape)):
        return Refused("without two rows, terms or results")
    columns = weight.shape[1 if product.has_columns else 0].constant
    if columns < MIN_TILED_COLUMNS:
        return Refused(f"of fewer than {MIN_TILED_COLUMNS} columns")
    return None if weight.dtype is DType.F32 else _narrow_tiles_refuse(rows, weight.dtype, target)


def bytes_refuse(
    product: Product, rows: Expr, weight: TensorType, target: TargetFacts
) -> Refused | None:
    """Why a target computes no such product of 8-bit integers; None if it does, in tiles.

    One row is a tile, too.
    """
    if product.integers is not None or product.order is not None:
        return Refused("of 8-bit integers by a weight that the model computes")
    if target.llvm is None or target.llvm.byte_dots is None:
        return Refused("of 8-bit integers, for which the target has no kernels")
    if not all(extent.is_constant for extent in weight.shape):
        return Refused("by weights of varying sizes")
    if is_empty((rows, *weight.shape)):
        return Refused("without terms or results")
    columns = weight.shape[1 if product.has_columns else 0].constant
    if columns < MIN_TILED_COLUMNS:
        return Refused(f"of fewer than {MIN_TILED_COLUMNS} columns")
    return None


def panels_refuse(
    product: Product, rows: Expr, weight: TensorType, target: TargetFacts
) -> Refused | None:
    """Why a processor reads no such panels in tiles; None if it does."""
    refused = tiles_refuse(product, rows, weight, target)
    if refused is not None or target.processor is None or target.llvm is None:
        return refused
    columns = weight.shape[1 if product.has_columns else 0]
    if product.order != panel_order(columns, weight.dtype, 8 * target.processor.vector_bytes):
        return Refused("by panels of another width than the target's")
    if weight.dtype is DType.BF16 and target.llvm.bf16_dots is None:
        return Refused("by panels of pairs, which the target does not multiply")
    return None


def _narrow_tiles_refuse(rows: Expr, dtype: DType, target: TargetFacts) -> Refused | None:
    """Why a processor computes no product of so many rows of 16 bits in tiles; None if it does."""
    if tile_times(dtype, target) is None:
        return Refused(f"of {dtype.value}, which the library computes faster")
    if rows.is_constant and rows.constant < LEAST_NARROW_ROWS:
        return Refused(f"of fewer than {LEAST_NARROW_ROWS} rows")
    return None


def _most_rows(target: TargetFacts, dtype: DType, product: Product) -> int | None:
    """The most rows of such products by kernels; None if the target has none."""
    if target.has_matrix_units:
        return MAX_FEW_ROWS if target.multiplies(dtype.value) else None
    times = None if target.few_rows is None else times_of(dtype, target.few_rows, product)
    return max((int(m) for m, _ in times.kernel), default=None) if times else None
