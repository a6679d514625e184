"""Which products of matrices of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernelfarm.dtypes import DType
from kernelfarm.ir.contractions import NARROW_FACTORS, WIDE_FACTORS, find_contraction
from kernelfarm.ir.loop_ir import Kernel
from kernelfarm.ir.processor_products import single_product
from kernelfarm.ir.window_sums import sums_windows
from optimizer_svc.analysis.product_operands import Product


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
        """The values that are multiplied by weights in loops; template kernels read any views."""
        made = (product for product in self.by_result.values() if product.nibbles is None)
        return frozenset(product.x for product in made)

    @property
    def ordered(self) -> frozenset[int]:
        """The values that have x in the order of the parts of a weight of integers."""
        found = (product.ordered_x for product in self.by_result.values())
        return frozenset(value for value in found if value is not None)

    @property
    def reordered(self) -> frozenset[int]:
        """Those of `ordered` that processors read: neighbours lie far apart in x."""
        made = (product for product in self.by_integers.values() if product.has_wide_x)
        found = (p.ordered_x for p in made if p.integers is not None and p.integers.order.step > 1)
        return frozenset(value for value in found if value is not None)

    @property
    def by_integers(self) -> Mapping[int, Product]:
        """The products whose weights are computed by their kernels, by results, in order."""
        return {result: product for result, product in self.by_result.items() if product.integers}

    @property
    def are_of_processor(self) -> bool:
        """True if a processor computes them: it multiplies f32 in tiles."""
        return self.factors == WIDE_FACTORS

    def are_in_tiles(self, kernel: Kernel) -> bool:
        """True if the code generator computes a kernel's sums in tiles."""
        if self.are_of_processor:
            return single_product(kernel) is not None or sums_windows(kernel)
        return find_contraction(kernel, self.factors) is not None

    @property
    def strided(self) -> frozenset[int]:
        """The values that a processor multiplies in tiles: views of memory with steps."""
        if not self.are_of_processor:
            return frozenset()
        return frozenset(product.x for product in self.by_result.values() if product.is_tiled)

    @property
    def adjacent(self) -> frozenset[int]:
        """The values that are multiplied several terms at once: these are adjacent in memory."""
        made = self.by_result.values()
        return frozenset(product.x for product in made if product.order or product.has_bytes)


NO_PRODUCTS = Products({})
