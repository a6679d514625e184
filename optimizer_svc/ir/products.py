"""Which products of matrices of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product x @ w.T + bias, by the values of its operands; without a bias that is None.

    With `has_columns`, the weight's columns are contiguous in memory: its value is (k, n), not
    (n, k). The sums are computed in `slices`, which a second kernel adds in order.

    Shapes: x: (m, k), weight: (n, k) or (k, n), bias: (n)
    """

    x: int
    weight: int
    bias: int | None = None
    has_columns: bool = False
    slices: int = 1


@dataclass(frozen=True, slots=True)
class Products:
    """The products that kernels compute, by their results.

    What they multiply by weights is stored, as for the library: a sum would compute it again for
    each row of the weight. `are_tiled`: a product of several rows is one sum over all of them,
    whose results the code generator computes in tiles. `notes` are for the report, one fact a line.
    """

    by_result: Mapping[int, Product]
    are_tiled: bool = False
    notes: tuple[str, ...] = ()

    @property
    def stored(self) -> frozenset[int]:
        """The values that are multiplied by weights."""
        return frozenset(product.x for product in self.by_result.values())


NO_PRODUCTS = Products({})
