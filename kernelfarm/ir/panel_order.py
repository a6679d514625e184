"""The order of a product's right factor in which a processor multiplies it in register tiles.

A panel has the columns of one tile. The elements of a term, or of two successive terms, are
adjacent for all its columns, so a tile reads a panel from the first to the last byte:

    matrix (k, n)  ->  (n / width, k / lane_terms, width, lane_terms), row-major

Kernels copy matrices of other orders into panels in each call. A client orders frozen weights once.
Terms past the end of the matrix are 0 there; columns past the end may be anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div, floor_div, mod, symbol
from kernelfarm.ir.loop_ir import Axis

LANE_BYTES: Final = 4
"""A lane of a panel has one f32, or two bf16."""
PANEL_RANK: Final = 4
"""The axes of a matrix in panels."""
_WIDTHS: Final = (64, 48, 32, 16, 24, 12, 8, 4)
"""The columns of tiles: up to 4 vectors of 4, 8 or 16 lanes."""
_MOST_VECTORS: Final = 4
_LEAST_ROWS: Final = 6
_SUMS: Final = {256: 12}
_MOST_SUMS: Final = 24
"""Vectors of sums of a tile, by the bits of a vector: AVX2 has 16 registers, others have 32."""
_RATES: Final = {1: 0.88, 2: 0.95, 3: 0.93, 4: 1.0}
"""Multiply-adds in a second by vectors of a row, as a share of those of the widest tiles. Measured
on an AMD EPYC with AVX-512, f32, one thread, 49 to 3,136 rows, 16 to 1,024 columns."""


@dataclass(frozen=True, slots=True)
class PanelOrder:
    """The columns of a panel, and the successive terms of a column that are adjacent.

    Example:
        >>> order, columns = PanelOrder(64, 2), Axis("n", as_expr(768))
        >>> str(order.index(columns, Axis("k", as_expr(10))))
        '2*(n%64) + 640*(n//64) + (k%2) + 128*(k//2)'
    """

    width: int
    lane_terms: int = 1

    def shape(self, columns: int, terms: int) -> tuple[int, int, int, int]:
        """The extents of a matrix in panels."""
        panels, lanes = -(-columns // self.width), -(-terms // self.lane_terms)
        return (panels, lanes, self.width, self.lane_terms)

    def index(self, columns: Axis, terms: Axis) -> Expr:
        """The position of the element at a point of both axes."""
        column, term = symbol(columns.name), symbol(terms.name)
        width, lane_terms = as_expr(self.width), as_expr(self.lane_terms)
        lanes = ceil_div(terms.extent, lane_terms)
        panel, within = floor_div(column, width), mod(column, width)
        if columns.extent.is_constant and columns.extent.constant <= self.width:
            panel, within = as_expr(0), column
        lane, below = floor_div(term, lane_terms), mod(term, lane_terms)
        return ((panel * lanes + lane) * width + within) * lane_terms + below


def find_panel_order(position: Expr, columns: Axis, terms: Axis, dtype: DType) -> PanelOrder | None:
    """The order in which an element of a factor is at a position; None if it is none of panels.

    The position of the first element may vary with other axes.
    """
    if dtype.itemsize_bytes > LANE_BYTES:
        return None
    for width in _WIDTHS:
        order = PanelOrder(width, LANE_BYTES // dtype.itemsize_bytes)
        start = position - order.index(columns, terms)
        if start.symbols.isdisjoint((columns.name, terms.name)):
            return order
    return None


def panel_order(columns: Expr, dtype: DType, vector_bits: int) -> PanelOrder:
    """The order in which tiles multiply a factor of so many columns; bf16 is multiplied in pairs.

    `vector_bits` is the size of a vector register.
    """
    lanes = vector_bits // (8 * LANE_BYTES)
    lane_terms = LANE_BYTES // dtype.itemsize_bytes
    return PanelOrder(lanes * tile_vectors(columns, vector_bits), lane_terms)


def tile_vectors(columns: Expr, vector_bits: int) -> int:
    """The vectors of a row of a tile that take the least time, also for columns past the end."""
    most = min(_MOST_VECTORS, tile_sums(vector_bits) // _LEAST_ROWS)
    if not columns.is_constant:
        return most
    whole = ceil_div(columns, vector_bits // (8 * LANE_BYTES)).constant

    def time(vectors: int) -> float:
        return -(-whole // vectors) * vectors / _RATES[vectors]

    return min(range(most, 0, -1), key=time)


def tile_sums(vector_bits: int) -> int:
    """The vectors of sums of a tile, which stay in registers."""
    return _SUMS.get(vector_bits, _MOST_SUMS)
