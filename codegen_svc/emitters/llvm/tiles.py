"""Which kernels are products of matrices in register tiles, and how a processor divides them.

A tile has a few rows of results, and a few vectors of each row. Its sums stay in registers while a
loop adds one product after the other: a row of the right factor, which a *panel* holds, times one
element of each row of the left factor.

A unit has the columns of one tile and a group of rows. A thread computes successive groups of one
column of tiles together, as a block: it copies a slice of the right factor into the panel, adds the
products of the slice to the sums of all rows of the block, and takes the next slice. So few threads
pack each panel rarely, and many threads all have work. Every sum is computed in the same order.

Measured on an AMD EPYC 9004 (Zen 4), two threads, f32, against others of 4 to 12 rows: 6 x 64 with
AVX-512 and 6 x 16 with AVX2 are fastest. The sums, a row of the panel and an element of the left
factor need 29 of 32 registers, and 15 of 16. A matrix whose columns fill no tile of that width has
narrower tiles of more rows, with as many sums.

Processors with dot products of bf16 multiply two terms of a column in a lane by one instruction
(`dots.py`). It takes subnormal elements as 0. With AVX-512, kernels round subnormal results to 0,
as oneDNN does by the same instructions. Processors with dot products of bytes multiply four terms
in a lane, in i32, exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from codegen_svc.emitters.llvm.dots import NO_DOTS, DotInstruction, Dots
from codegen_svc.emitters.llvm.text import FLOAT, I32
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE, Expr, ceil_div
from kernelfarm.ir.loop_ir import Axis, Kernel
from kernelfarm.ir.panel_order import LANE_BYTES, PanelOrder, tile_sums, tile_vectors
from kernelfarm.ir.processor_products import ProcessorProduct, find_processor_product

_SLICE: Final = {256: 256}
_MOST_SLICE: Final = 384
"""Terms of a sum in one slice. The panel stays in the second-level cache (AVX-512: 96 KiB) or in
the first-level cache (AVX2: 16 KiB)."""
_SLICE_OF_ALL_BYTES: Final = 768
"""The same in fours, if all terms of a product of bytes fit (AVX-512: 192 KiB). An AMD EPYC (Zen
5), one thread, 2,048 and 3,072 terms: 128 and 512 rows take 0.93 to 0.98 of the time that two
slices take; 4,096 terms in two slices, one of which is short, take longer by weights (k, n)."""
_STEPS_TOGETHER: Final = {256: 4, 512: 2}
"""Steps that an iteration of the loop over terms has. Two threads of a core share what it decodes:
with AVX2 a step is 12 multiply-adds, and 8 loads beside them. While the core's other thread worked,
128 rows by 1,024 x 1,024 took 1.3 times as long with a test and addresses in each step. With
AVX-512 (Intel), two steps compute 512 rows 1.01 to 1.04 times as fast, and four no faster."""
GROUP_ROWS: Final = 48
"""Rows of a unit: to pack a panel for so few costs about a tenth of their time."""
BLOCK_GROUPS: Final = 8
"""The most groups of a block. Their sums are on the stack (AVX-512: 96 KiB)."""
ELEMENT_BYTES: Final = LANE_BYTES
COLUMN_AXIS, GROUP_AXIS = "tile.column", "row.group"
"""Axes of units. They are no identifiers, so no axis of a kernel has them."""
_LEAST_BITS: Final = 128
_PAIR: Final = 2
_BYTES: Final = 4
"""Terms of bf16 and of i8 in a lane."""


@dataclass(frozen=True, slots=True)
class FewRows:
    """How up to `most` rows are computed without a panel.

    The sums of a group of `rows` by a group of `columns` are in registers. Columns of a tile are
    whole groups.
    """

    most: int
    rows: int
    columns: int


_FEW_ROWS: Final = {256: FewRows(10, 2, 4), 512: FewRows(16, 4, 4)}
"""By the bits of a vector. In times of what panels take, weights from memory, one thread: 13 and 16
rows of f32 with AVX-512 (Intel) 0.8 to 1.0, 8 rows with AVX2 (AMD) 0.7. With AVX-512, groups of
6 x 4 and 8 x 2 are no faster on the whole; with AVX2, groups of 3 x 4 are slower."""
_FEW_ROWS_OF_BYTES: Final = FewRows(24, 4, 4)
_FEWEST_ROWS_OF_BYTES: Final = {
    1: FewRows(1, 1, 4),
    2: FewRows(2, 2, 8),
    **dict.fromkeys((5, 6), FewRows(6, 6, 4)),
}
"""By numbers of rows that are known. An AMD EPYC with AVX-512 (Zen 5), one thread, 768 x 768 to
4,096 x 4,096: 24 rows take 0.85 to 1.0 of the time by panels, 32 rows 0.9 to 1.03. Six rows by
groups of 6 x 4 take 0.75 to 0.9 of the time by 4 x 4, one row by 1 x 4 takes 0.85 to 0.95 of it by
1 x 16."""
_LEAST_VECTORS: Final = 8
"""Vectors of f32 of a row; of pairs twice as many. 16 rows with AVX-512 (Intel), by 64 x 64 and
128 x 32: panels take 0.8 and 0.65 of the time; by 512 x 128: 1.0, by 3072 x 256: 1.2."""


@dataclass(frozen=True, slots=True)
class TiledProduct:
    """A product whose tiles have `height` rows of `vectors` of `lanes`.

    A panel has `slice_terms`. Each of its lanes has `lane_terms`: one of f32, or those that `dot`
    multiplies: two of bf16, or four of i8.
    """

    product: ProcessorProduct
    lanes: int
    vectors: int
    height: int
    slice_terms: int
    dot: DotInstruction | None = None

    @property
    def lane_terms(self) -> int:
        """The terms of a lane of a panel."""
        return 1 if self.dot is None else self.dot.lane_terms

    @property
    def raising_dot(self) -> DotInstruction | None:
        """The instruction, if it needs 128 added to the bytes of a factor; None: it does not."""
        return self.dot if self.dot is not None and self.dot.takes_unsigned else None

    @property
    def rows(self) -> Axis:
        """The axis of the rows."""
        return self.product.rows

    @property
    def columns(self) -> Axis:
        """The axis of the columns."""
        return self.product.columns

    @property
    def terms(self) -> Axis:
        """The axis of the terms that are summed."""
        return self.product.terms

    @property
    def vector(self) -> str:
        """LLVM's type of a vector of sums."""
        return f"<{self.lanes} x {self.sum_type}>"

    @property
    def sum_type(self) -> str:
        """LLVM's type of a sum."""
        return I32 if self.has_bytes else FLOAT

    @property
    def is_paired(self) -> bool:
        """True if a lane of a panel has two terms."""
        return self.lane_terms == _PAIR

    @property
    def has_bytes(self) -> bool:
        """True if a lane of a panel has four terms."""
        return self.lane_terms == _BYTES

    @property
    def has_rest(self) -> bool:
        """True if the last lane of a column may have fewer terms than the others."""
        return self.lane_terms > 1 and not is_multiple(self.terms.extent, self.lane_terms)

    @property
    def is_in_panels(self) -> bool:
        """True if the right factor is in panels in memory, so no kernel copies it."""
        return self.product.right.order is not None

    @property
    def lane_type(self) -> str:
        """LLVM's type of a lane of a panel."""
        return I32 if self.lane_terms > 1 else FLOAT

    @property
    def panel_vector(self) -> str:
        """LLVM's type of a vector of a panel."""
        return f"<{self.lanes} x {self.lane_type}>"

    @property
    def vector_bytes(self) -> int:
        """The size and the alignment of a vector in panels and sums."""
        return self.lanes * ELEMENT_BYTES

    @property
    def width(self) -> int:
        """The columns of a tile."""
        return self.lanes * self.vectors

    @property
    def steps_together(self) -> int:
        """Steps that an iteration of the loop over terms has."""
        return _STEPS_TOGETHER.get(8 * self.vector_bytes, 1)

    @property
    def has_one_slice(self) -> bool:
        """True if a panel has all terms, so the sums of a tile are complete when it ends."""
        extent = self.terms.extent
        return extent.is_constant and extent.constant <= self.slice_terms

    @property
    def block_rows(self) -> int:
        """The most rows of a block."""
        groups, extent = BLOCK_GROUPS, self.rows.extent
        if extent.is_constant:
            groups = min(groups, ceil_div(extent, GROUP_ROWS).constant)
        return groups * GROUP_ROWS

    @property
    def few_rows(self) -> FewRows | None:
        """How few rows are computed, if a call may have few; None: as many are.

        Vectors have successive terms of a row and of a column, so all are whole. To sum their lanes
        takes about as long as four more vectors of each.
        """
        left, right, rows = self.product.left, self.product.right, self.rows.extent
        form = _FEW_ROWS.get(8 * self.vector_bytes)
        if self.has_bytes:
            form = _few_rows_of_bytes(rows)
        if form is None or (rows.is_constant and rows.constant > form.most):
            return None
        are_adjacent = left.inner is right.inner is ONE
        in_vector = self.lanes * self.lane_terms
        are_whole = is_multiple(self.terms.extent, in_vector)
        least = 1 if self.has_bytes else _LEAST_VECTORS * self.lane_terms * in_vector
        has_many = are_whole and self.terms.extent.constant >= least
        return form if are_adjacent and has_many else None

    @property
    def units(self) -> tuple[Axis, ...]:
        """The axes of the units, the fastest last."""
        return (
            *self.product.others,
            Axis(COLUMN_AXIS, ceil_div(self.columns.extent, self.width)),
            Axis(GROUP_AXIS, ceil_div(self.rows.extent, GROUP_ROWS)),
        )


def tiled_product(kernel: Kernel, vector_bits: int, dots: Dots = NO_DOTS) -> TiledProduct | None:
    """How a processor with vectors of so many bits computes a kernel in tiles; None: it does not.

    Fewer columns than half a tile has are faster as rows to reduce. `dots` are the processor's
    instructions that multiply and add several terms of a lane.
    """
    found = find_processor_product(kernel)
    if found is None or vector_bits < _LEAST_BITS:
        return None
    lanes = vector_bits // (8 * ELEMENT_BYTES)
    vectors = tile_vectors(found.columns.extent, vector_bits)
    columns = found.columns.extent
    if columns.is_constant and 2 * columns.constant < lanes * vectors:
        return None
    dot = dots.pairs if _has_pairs(found) else None
    order = found.right.order
    if found.left.dtype is DType.I8:
        if dots.bytes is None or not _has_whole_lanes(found):
            return None
        dot = dots.bytes
    lane_terms = 1 if dot is None else dot.lane_terms
    if order is not None and order != PanelOrder(lanes * vectors, lane_terms):
        return None
    return TiledProduct(
        found,
        lanes=lanes,
        vectors=vectors,
        height=tile_sums(vector_bits) // vectors,
        slice_terms=_slice_terms(found.terms.extent, vector_bits, lane_terms),
        dot=dot,
    )


def _slice_terms(terms: Expr, vector_bits: int, lane_terms: int) -> int:
    """The most terms of a panel."""
    if lane_terms == _BYTES and terms.constant <= lane_terms * _SLICE_OF_ALL_BYTES:
        return lane_terms * _SLICE_OF_ALL_BYTES
    return _SLICE.get(vector_bits, _MOST_SLICE) * lane_terms


def _has_pairs(product: ProcessorProduct) -> bool:
    """True if both factors are bf16, and the terms of a row are adjacent."""
    left, right = product.left, product.right
    return left.dtype is right.dtype is DType.BF16 and left.inner is ONE


def _few_rows_of_bytes(rows: Expr) -> FewRows:
    if not rows.is_constant:
        return _FEW_ROWS_OF_BYTES
    return _FEWEST_ROWS_OF_BYTES.get(rows.constant, _FEW_ROWS_OF_BYTES)


def _has_whole_lanes(product: ProcessorProduct) -> bool:
    """True if the bytes of a row are adjacent and their number is known."""
    is_in_panels = product.right.order is not None
    return product.left.inner is ONE and product.terms.extent.is_constant and not is_in_panels


def is_multiple(extent: Expr, number: int) -> bool:
    """True if an extent is known to be a multiple of a number."""
    return extent.is_constant and extent.constant % number == 0
