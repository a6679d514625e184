"""Which products of matrices of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import NARROW_FACTORS, WIDE_FACTORS, find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.processor_products import single_product


@dataclass(frozen=True, slots=True)
class Product:
    """A product x @ w.T + bias, by the values of its operands; without a bias that is None.

    With `has_columns`, the weight's columns are contiguous in memory: its value is (k, n), not
    (n, k). The sums are computed in `slices`, which a second kernel adds in order. If it
    `is_tiled`, one sum over all rows is computed in tiles by the code generator; else each row has
    a sum of its own.

    Shapes: x: (m, k), weight: (n, k) or (k, n), bias: (n)
    """

    x: int
    weight: int
    bias: int | None = None
    has_columns: bool = False
    slices: int = 1
    is_tiled: bool = False


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
