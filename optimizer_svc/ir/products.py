"""Which products of matrices of a graph kernels compute instead of the framework's library."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Products:
    """The weight (n, k) of each product that kernels compute, by the product's result.

    `operands` are the values that these products multiply by their weights. They are stored, as for
    the library: a sum would compute them again for each row of the weight. `are_tiled`: a product
    of several rows is one sum over all of them, whose results the code generator computes in tiles.
    `notes` are for the report, one fact a line.
    """

    weights: Mapping[int, int]
    operands: frozenset[int] = frozenset()
    are_tiled: bool = False
    notes: tuple[str, ...] = ()


NO_PRODUCTS = Products({})
