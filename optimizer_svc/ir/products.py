"""Which products of matrices of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import NARROW_FACTORS, WIDE_FACTORS, find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.processor_products import single_product


@dataclass(frozen=True, slots=True)
class PartOrder:
    """How the terms of a sum over k are divided into parts of equally many terms.

    The sum has `spans` of neighbours, in which every `step`-th term is of the same part. So a part
    is a span and a remainder, and its term t is element t * step + remainder of the span.
    """

    spans: int
    step: int

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.spans * self.step

    def start_and_step(self, part: int, k: int) -> tuple[int, int]:
        """The first element of a part, and the distance to the next one."""
        span, remainder = divmod(part, self.step)
        return span * (k // self.spans) + remainder, self.step


@dataclass(frozen=True, slots=True)
class WeightScale:
    """A factor of a weight: `views` of factor * rest, in f32, the last one first, are the weight.

    The factor is one for the terms of all parts, and, if it `is_of_row`, for all terms of a row.
    """

    factor: int
    rest: int
    views: tuple[int, ...]
    is_of_row: bool


@dataclass(frozen=True, slots=True)
class IntegerWeight:
    """A weight that is computed from `stored_bytes` in memory; sums by it are made of parts.

    If it `has_rows`, terms of a part are neighbours in memory; else results are.
    """

    order: PartOrder
    has_rows: bool
    stored_bytes: int
    scale: WeightScale | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """A product x @ w.T + bias, by the values of its operands; without a bias that is None.

    With `has_columns`, the weight's columns are contiguous in memory: its value is (k, n), not
    (n, k). The sums are computed in `slices`, which a second kernel adds in order. If it
    `is_tiled`, one sum over all rows is computed in tiles by the code generator; else each row has
    a sum of its own. A kernel computes a weight of `integers`. If parts have steps, they
    read x in their order, which is the value `ordered_x`, of shape (spans, step, m, k / parts).

    Shapes: x: (m, k), weight: (n, k) or (k, n), bias: (n)
    """

    x: int
    weight: int
    bias: int | None = None
    has_columns: bool = False
    slices: int = 1
    is_tiled: bool = False
    integers: IntegerWeight | None = None
    ordered_x: int | None = None


@dataclass(frozen=True, slots=True)
class Products:
    """The products that kernels compute, by their results.

    What they multiply by weights is stored, as for the library: a sum would compute it again for
    each row of the weight. `factors` are the element types that the target multiplies in tiles:
    f32 alone on a processor, which needs strided matrices in memory. `notes` are for the report,
    one fact a line.
    """

    by_result: Mapping[int, Product]
    factors: tuple[DType, ...] = NARROW_FACTORS
    notes: tuple[str, ...] = ()

    @property
    def stored(self) -> frozenset[int]:
        """The values that are multiplied by weights."""
        return frozenset(product.x for product in self.by_result.values())

    @property
    def ordered(self) -> frozenset[int]:
        """The values that have x in the order of the parts of a weight of integers."""
        found = (product.ordered_x for product in self.by_result.values())
        return frozenset(value for value in found if value is not None)

    @property
    def by_integers(self) -> Mapping[int, Product]:
        """The products whose weights are computed by their kernels, by results, in order."""
        return {result: product for result, product in self.by_result.items() if product.integers}

    def are_in_tiles(self, kernel: Kernel) -> bool:
        """True if the code generator computes a kernel's sums in tiles."""
        if self.factors == WIDE_FACTORS:
            return single_product(kernel) is not None
        return find_contraction(kernel, self.factors) is not None

    @property
    def strided(self) -> frozenset[int]:
        """The values that a processor multiplies in tiles: views of memory with steps."""
        if self.factors != WIDE_FACTORS:
            return frozenset()
        return frozenset(product.x for product in self.by_result.values() if product.is_tiled)


NO_PRODUCTS = Products({})
