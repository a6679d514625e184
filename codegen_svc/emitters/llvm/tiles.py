"""Which kernels are products of matrices in register tiles, and how a processor divides them.

A tile has a few rows of results, and a few vectors of each row. Its sums stay in registers while a
loop adds one product after the other: a row of the right factor, which a *panel* holds, times one
element of each row of the left factor. A unit has the columns of one tile and a block of rows. It
copies a slice of the right factor into the panel, adds the products of the slice to the sums of all
its rows, and takes the next slice.

Measured on an AMD EPYC 9004 (Zen 4), two threads, f32, against others of 4 to 12 rows: 6 x 64 with
AVX-512 and 6 x 16 with AVX2 are fastest. The sums, a row of the panel and an element of the left
factor need 29 of 32 registers, and 15 of 16.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.text import FLOAT
from kernelfarm.ir.algebra.expr import ONE, Expr, ceil_div
from kernelfarm.ir.contractions import WIDE_FACTORS, Contraction, find_contraction
from kernelfarm.ir.loop_ir import Axis, Kernel, Load

ROWS: Final = 6
"""Rows of a tile."""
_VECTORS: Final = {256: 2}
_MOST_VECTORS: Final = 4
"""Vectors of a row of a tile, by the bits of a vector: AVX2 has 16 registers, others have 32."""
_SLICE: Final = {256: 256}
_MOST_SLICE: Final = 384
"""Terms of a sum in one slice. The panel stays in the second-level cache (AVX-512: 96 KiB) or in the
first-level cache (AVX2: 16 KiB)."""
_BLOCK_ROWS: Final = 384
"""Rows of a unit: packing the panel then takes a few percent of its time. Their sums are on the
stack (AVX-512: 96 KiB)."""
_MOST_SUMS: Final = 2
ELEMENT_BYTES: Final = 4
_LEAST_BITS: Final = 128


@dataclass(frozen=True, slots=True)
class Factor:
    """A factor of a sum: its load, and the steps between its elements along two axes, in elements.

    `along` is the step to the next row or column, `inner` the step to the next term.
    """

    load: Load
    along: Expr
    inner: Expr


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A product in tiles: `lanes` of a vector, `vectors` of a tile's row, `slice_terms` of a panel.

    A unit has up to `block_rows` of the axis `rows`, and a tile's columns of the axis `columns`.
    `others` are the axes whose points have units of their own. `sums` are the numbers of the Reduce
    statements, each with its left and its right factor.
    """

    rows: Axis
    columns: Axis
    terms: Axis
    others: tuple[Axis, ...]
    sums: tuple[tuple[int, Factor, Factor], ...]
    lanes: int
    vectors: int
    slice_terms: int
    block_rows: int

    @property
    def vector(self) -> str:
        """LLVM's type of a vector."""
        return f"<{self.lanes} x {FLOAT}>"

    @property
    def vector_bytes(self) -> int:
        """The size and the alignment of a vector in panels and sums."""
        return self.lanes * ELEMENT_BYTES

    @property
    def width(self) -> int:
        """The columns of a tile."""
        return self.lanes * self.vectors

    @property
    def units(self) -> tuple[Axis, ...]:
        """The axes of the units, the fastest last.

        Threads take successive units, so each has blocks of rows of all sizes.
        """
        return (
            *self.others,
            Axis(f"{self.columns.name}_block", ceil_div(self.columns.extent, self.width)),
            Axis(f"{self.rows.name}_block", ceil_div(self.rows.extent, self.block_rows)),
        )


def tiled_product(kernel: Kernel, vector_bits: int) -> TiledProduct | None:
    """How a processor with vectors of so many bits computes a kernel in tiles; None: it does not.

    Factors are elements of matrices, not computed from them. Products of one row, and of fewer
    columns than half a tile has, are faster as rows to reduce.
    """
    found = find_contraction(kernel, WIDE_FACTORS)
    if found is None or vector_bits < _LEAST_BITS or not _fits(kernel, found):
        return None
    rows, columns, (terms,) = found.rows[-1], found.columns[-1], kernel.reduction
    sums = []
    for product_sum in found.sums:
        left = _factor(kernel, product_sum.left, rows, terms)
        right = _factor(kernel, product_sum.right, columns, terms)
        if left is None or right is None:
            return None
        sums.append((product_sum.number, left, right))
    lanes = vector_bits // (8 * ELEMENT_BYTES)
    vectors = _VECTORS.get(vector_bits, _MOST_VECTORS)
    if columns.extent.is_constant and 2 * columns.extent.constant < lanes * vectors:
        return None
    return TiledProduct(
        rows=rows,
        columns=columns,
        terms=terms,
        others=tuple(axis for axis in kernel.outer if axis not in (rows, columns)),
        sums=tuple(sums),
        lanes=lanes,
        vectors=vectors,
        slice_terms=_SLICE.get(vector_bits, _MOST_SLICE),
        block_rows=_block_rows(rows.extent, len(sums)),
    )


def _fits(kernel: Kernel, found: Contraction) -> bool:
    has_rows = bool(found.rows) and found.rows[-1].extent is not ONE
    return has_rows and len(kernel.reduction) == 1 and len(found.sums) <= _MOST_SUMS


def _factor(kernel: Kernel, number: int, axis: Axis, terms: Axis) -> Factor | None:
    """The factor, if it is an element of memory whose position is linear in both axes."""
    load = kernel.body[number]
    if not isinstance(load, Load) or load.mask is not None:
        return None
    along, inner = (load.index.coefficient_of(each.name) for each in (axis, terms))
    if along is None or inner is None or {axis.name, terms.name} & (along.symbols | inner.symbols):
        return None
    return Factor(load, along, inner)


def _block_rows(extent: Expr, sums: int) -> int:
    """Rows of a unit: equal blocks, of whole tiles if there are several."""
    most = _BLOCK_ROWS // sums
    if not extent.is_constant:
        return most
    count = max(extent.constant, 1)
    blocks = -(-count // most)
    rows = -(-count // blocks)
    return -(-rows // ROWS) * ROWS
