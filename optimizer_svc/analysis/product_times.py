"""How long products of matrices take by kernels and by the framework's library: measured times.

Between the numbers of rows of a table, a kernel is expected to take as long as for the next larger
number, the library as long as for the next smaller one.
"""

from __future__ import annotations

from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, product_of
from kernelfarm.ir.graph_ir import TensorType
from kernelfarm.targets import FewRowFacts, ManyRowFacts, ProductTimes, TargetFacts, TileTimes
from optimizer_svc.analysis.integer_weights import IntegerWeight
from optimizer_svc.analysis.product_operands import Product
from optimizer_svc.analysis.verdicts import Refused

_NARROW = (DType.F16, DType.BF16)
_VARYING_MAY_LOSE = 0.02
"""The share of a kernel's time that it may lose with the worst number of rows, if that varies: what
follows a product is fused with it. Intel with AVX-512, whose worst number loses 0.05: BERT-base
with varying tokens took 1.2 times as long as in eager, GPT-2 and a Llama 0.97 and 1.01 times."""


@dataclass(frozen=True, slots=True)
class ExpectedTimes:
    """Expected times of a product, as multiples of one time, which `unit` names after them.

    `after` is the time of the kernel after the library that a kernel of our own makes unnecessary.
    A kernel is taken even if it loses up to the share `may_lose` of its time.
    """

    kernel: float
    library: float
    after: float = 0.0
    unit: str = "in its times for one row"
    may_lose: float = 0.0

    @property
    def is_kernel_faster(self) -> bool:
        """True if a kernel is expected to take less time, with what it saves."""
        return self.kernel * (1 - self.may_lose) < self.library + self.after


def expected_of_few_rows(
    rows: int, weight: TensorType, product: Product, target: TargetFacts
) -> ExpectedTimes | Refused:
    """The times of a product without other kernels."""
    times = None if target.few_rows is None else times_of(weight.dtype, target.few_rows, product)
    if times is None:
        return Refused(f"{computed_weight(product) or 'of a kind'} that was not measured")
    units, itemsize_bytes = target.products, weight.dtype.itemsize_bytes
    if units is not None and weight.shape[-1].constant * itemsize_bytes % units.row_bytes:
        return Refused(f"by weights with rows of no multiple of {units.row_bytes} bytes")
    if product_of(list(weight.shape)).constant * itemsize_bytes < times.min_weight_bytes:
        return Refused(f"by weights of less than {times.min_weight_bytes} bytes")
    if rows > 1 and weight.shape[-1].constant % times.row_terms:
        return Refused(f"by weights whose rows are no multiple of {times.row_terms} terms")
    kernel = [(int(m), time) for m, time in times.kernel if int(m) >= rows]
    library = [(int(m), time) for m, time in times.library if int(m) <= rows]
    if not kernel or not library:
        return Refused("of a number of rows that was not measured")
    return ExpectedTimes(min(kernel)[1], max(library)[1])


def expected_in_tiles(
    rows: Expr, weight: TensorType, product: Product, target: TargetFacts
) -> ExpectedTimes | Refused:
    """The times of a product in tiles on a processor."""
    tiles = tile_times(weight.dtype, target)
    if tiles is None:
        return Refused("of a kind that was not measured")
    refused = _weight_refuses(rows, weight, product, tiles)
    if refused is not None:
        return refused
    times = tiles.library_columns if product.has_columns else tiles.library
    unit = "as multiples of a kernel's"
    if not rows.is_constant:
        if not times:
            return Refused("of a varying number of rows, for which kernels were not timed")
        least = min(time for _, time in times)
        unit = f"{unit}, for the number of rows with the least"
        return ExpectedTimes(1.0, least, unit=unit, may_lose=_VARYING_MAY_LOSE)
    library = [(int(m), time) for m, time in times if int(m) <= rows.constant]
    if not library:
        return Refused("of a number of rows that was not measured")
    return ExpectedTimes(1.0, max(library)[1], unit=unit)


def _weight_refuses(
    rows: Expr, weight: TensorType, product: Product, tiles: TileTimes
) -> Refused | None:
    """Why a weight's extents are none of those with which kernels are fast; None if they are."""
    size_bytes = product_of(list(weight.shape)).constant * weight.dtype.itemsize_bytes
    if size_bytes < tiles.min_weight_bytes:
        return Refused(f"by weights of less than {tiles.min_weight_bytes} bytes")
    ends = weight.shape[-1].constant
    if product.has_columns and ends % tiles.whole_columns:
        return Refused(f"by weights (k, n) of no multiple of {tiles.whole_columns} columns")
    if rows is ONE and not product.has_columns and ends % tiles.row_terms:
        return Refused(f"of one row of no multiple of {tiles.row_terms} terms")
    return None


def many_rows_refuse(
    x: TensorType, weight: TensorType, result: TensorType, known: ManyRowFacts
) -> Refused | None:
    """Why nothing is known about a product of many rows; None if its time can be estimated."""
    if weight.dtype.value not in known.types:
        return Refused(f"of {weight.dtype.value}, for which kernels were not timed")
    ends = (x.shape[-1].constant, weight.shape[-1].constant)
    if any(end * weight.dtype.itemsize_bytes % known.row_bytes for end in ends):
        return Refused(f"by factors with rows of no multiple of {known.row_bytes} bytes")
    if x.shape[1].constant < known.least_terms or result.shape[1].constant < known.least_columns:
        return Refused(f"of less than {known.least_terms} terms or {known.least_columns} columns")
    is_few = product_of(list(result.shape)).constant < known.filling_results
    if is_few and x.shape[1].constant > known.most_terms_of_few:
        return Refused("of many terms with too few results to fill the chip")
    return None


def tile_times(dtype: DType, target: TargetFacts) -> TileTimes | None:
    """The times of products in tiles on a processor by elements of a type; None: not measured."""
    if target.tiles is None:
        return None
    known = target.tiles
    by_type = {
        DType.F32: known.f32,
        DType.BF16: known.bf16,
        DType.F16: known.f16,
        DType.I8: known.i8,
    }
    return by_type.get(dtype)


def times_of(dtype: DType, known: FewRowFacts, product: Product) -> ProductTimes | None:
    """The times of products with few rows of a product's kind; None: not measured."""
    if product.nibbles is not None:
        return known.grouped_nibbles
    if product.integers is not None and dtype in (*_NARROW, DType.F32):
        return _times_of_integers(known, product.integers)
    if dtype is DType.F32:
        return known.wide_columns if product.has_columns else known.wide
    if dtype not in _NARROW:
        return None
    if product.has_columns:
        return known.narrow_columns
    return known.paired if dtype is DType.BF16 and known.paired is not None else known.narrow


def _times_of_integers(known: FewRowFacts, integers: IntegerWeight) -> ProductTimes | None:
    """The times of products by weights that a model computes."""
    if integers.dtype.is_float:
        return known.float8 if integers.order.count == 1 and integers.has_rows else None
    if integers.order.count == 1:
        return known.integers if integers.has_rows else None
    return known.shared_integers if integers.has_rows else known.shared_integer_columns


def computed_weight(product: Product) -> str:
    """The weight of a product as a part of a sentence, if a model computes it; else empty."""
    return "" if product.integers is None else f"by a weight of {product.integers.dtype.value}"


def times_text(expected: ExpectedTimes) -> str:
    """The expected times as a part of a sentence."""
    after = f" and {expected.after:.2f} for a kernel after it" if expected.after else ""
    return (
        f"expected times are {expected.kernel:.3g} for a kernel, {expected.library:.3g} for the"
        f" framework{after}, {expected.unit}"
    )
