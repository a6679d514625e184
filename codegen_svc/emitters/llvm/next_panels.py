"""Fetches the next panel's elements from memory while tiles multiply by the present panel.

A product with few rows reads its right factor from memory in about the time of its multiplications.
A processor waits for memory while it packs a panel. So each step of the first tiles asks for one
line of the next panel, which comes to the second-level cache meanwhile: a panel of 64 columns has
as many lines as four tiles have steps.

Measured on an AMD EPYC with AVX-512, one thread, 128 rows, weights that no cache holds: 1.04 to
1.14 times as many products in a second, in f32 and in bf16.
"""

from __future__ import annotations

from typing import Final

from codegen_svc.emitters.llvm.panels import Symbols
from codegen_svc.emitters.llvm.text import I8, I32, I64, PTR, FunctionText, Value, integer
from codegen_svc.emitters.llvm.tiles import TiledProduct
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext
from kernelfarm.ir.algebra.expr import ONE, Expr, as_expr

LINE_BYTES: Final = 64
_TILE_COLUMNS: Final = 16
"""Columns of which the steps of one tile ask for a line in turn: a power of two."""
_SECOND_LEVEL: Final = 2


def write_fetch(fn: FunctionText, place: Value) -> None:
    """Writes the fetch of the line at an address into the second-level cache."""
    kinds = (Value("0", I32), Value(str(_SECOND_LEVEL), I32), Value("1", I32))
    fn.module.declare("llvm.prefetch.p0", "void", (PTR, I32, I32, I32))
    fn.emit(f"call void @llvm.prefetch.p0({place}, {', '.join(map(str, kinds))})")


class NextPanel:
    """What the panel after the present one copies: the next terms, or the next columns."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._factor = product.product.right

    @property
    def is_fetched(self) -> bool:
        """True if whole lines of memory have elements of a panel."""
        return self._factor.inner is ONE or self._factor.along is ONE

    @property
    def tiles(self) -> int:
        """How many tiles of a block ask for lines; later ones would ask for the same again."""
        if not self.is_fetched:
            return 0
        if self._factor.inner is ONE:
            return max(self._product.width // _TILE_COLUMNS, 1)
        return self._row_lines * self._product.lane_terms

    @property
    def _row_lines(self) -> int:
        """The lines of a panel's columns in a row of the factor."""
        row_bytes = self._product.width * self._factor.dtype.itemsize_bytes
        return max(row_bytes // LINE_BYTES, 1)

    def start(self, first_column: Value, slices: tuple[Value, Value], symbols: Symbols) -> Value:
        """The address of its first element, which may be behind the factor's end.

        `slices` are the number of the present slice of the terms and their count; `symbols` has the
        present slice's first term.
        """
        fn, product = self._fn, self._product
        following = fn.op("add nuw nsw", slices[0], integer(1, I64), wish="slice.next")
        is_last = fn.compare("icmp", "sge", following, slices[1], wish="is_last")
        beside = fn.op("add nuw nsw", first_column, integer(product.width, I64), wish="beside")
        below = fn.op("mul nuw nsw", following, integer(product.slice_terms, I64), wish="below")
        at = {
            **symbols,
            product.columns.name: fn.select(is_last, beside, first_column),
            product.terms.name: fn.select(is_last, ZERO_I64, below),
        }
        offset = self._bytes(self._context.index.write(self._factor.load.index, at))
        return self._behind(self._context.buffers[self._factor.load.param], offset)

    def fetch(self, start: Value, tile: Value, step: Value, symbols: Symbols) -> None:
        """Writes the fetch of a step of a tile; `start` is where the next panel begins."""
        write = self._write_columns if self._factor.inner is ONE else self._write_rows
        write_fetch(self._fn, self._behind(start, write(tile, step, symbols)))

    def _write_columns(self, tile: Value, step: Value, symbols: Symbols) -> Value:
        """The offset of a line in columns whose terms are adjacent; later tiles repeat the last."""
        fn = self._fn
        group = fn.intrinsic("smin", tile, integer(self.tiles - 1, I64))
        first = fn.op("mul nuw nsw", group, integer(_TILE_COLUMNS, I64))
        within = fn.op("and", step, integer(_TILE_COLUMNS - 1, I64))
        line = fn.op("udiv", step, integer(_TILE_COLUMNS, I64))
        return fn.op(
            "add",
            self._scaled(fn.op("add nuw nsw", first, within), self._factor.along, symbols),
            fn.op("mul nuw nsw", line, integer(LINE_BYTES, I64)),
        )

    def _write_rows(self, tile: Value, step: Value, symbols: Symbols) -> Value:
        """The offset of a line in rows of columns, a row for each term; each tile has its lines."""
        fn, product = self._fn, self._product
        lines = self._row_lines
        number = fn.intrinsic("smin", tile, integer(self.tiles - 1, I64))
        below, line = (fn.op(name, number, integer(lines, I64)) for name in ("udiv", "urem"))
        first = fn.op("mul nuw nsw", step, integer(product.lane_terms, I64))
        return fn.op(
            "add",
            self._scaled(fn.op("add nuw nsw", first, below), self._factor.inner, symbols),
            fn.op("mul nuw nsw", line, integer(LINE_BYTES, I64)),
        )

    def _scaled(self, count: Value, step: Expr, symbols: Symbols) -> Value:
        """The bytes of so many steps between elements."""
        scaled = step * as_expr(self._factor.dtype.itemsize_bytes)
        return self._fn.op("mul", count, self._context.index.write(scaled, symbols))

    def _bytes(self, elements: Value) -> Value:
        return self._fn.op("mul", elements, integer(self._factor.dtype.itemsize_bytes, I64))

    def _behind(self, start: Value, offset_bytes: Value) -> Value:
        """An address that may be outside of the memory that it is computed from."""
        return self._fn.define("ahead", PTR, f"getelementptr {I8}, {start}, {offset_bytes}")
