"""The units of a product in tiles: blocks of rows by the columns of one tile (`tiles.py`).

    for each block of the units:
        for each slice of the terms:
            panel = columns of the right factor, the elements of a term after each other,
                    copied unless memory has them so
            for each tile of the rows:
                sums += products of the tile's rows by the panel, in registers
        results of the block from its sums, by a function (`tile_results.py`)

If one slice has all terms, the function is called behind each tile, whose sums are still in the
first-level cache.

Rows and columns past the end of a matrix are those of its last one: they are computed, because no
instruction is saved without them, and not stored. Each slice has sums of its own, which are added
to those of the slices before, so rounding errors grow with the terms of a slice.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from codegen_svc.emitters.llvm.few_row_sums import FewRowSums
from codegen_svc.emitters.llvm.next_panels import NextPanel
from codegen_svc.emitters.llvm.panels import Panel, Symbols, address_of
from codegen_svc.emitters.llvm.stored_panels import StoredPanel
from codegen_svc.emitters.llvm.text import I64, Value, integer
from codegen_svc.emitters.llvm.tile_results import TileResults
from codegen_svc.emitters.llvm.tile_sums import StepStart, TileSums
from codegen_svc.emitters.llvm.tiles import (
    BLOCK_GROUPS,
    COLUMN_AXIS,
    GROUP_AXIS,
    GROUP_ROWS,
    TiledProduct,
    is_multiple,
)
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from kernelfarm.ir.algebra.expr import Expr, as_expr, ceil_div
from kernelfarm.ir.loop_ir import Axis


@dataclass(frozen=True, slots=True)
class _Slice:
    """A slice of the terms: their number, and where the next panel begins."""

    count: Value
    ahead: Value


class TileWriter:
    """Writes the units of a product in tiles."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._panel: Panel | StoredPanel
        self._panel = (StoredPanel if product.is_in_panels else Panel)(context, product)
        self._next = NextPanel(context, product)
        self._tile = TileSums(context, product, self._panel)
        rows = product.height if product.has_one_slice else product.block_rows
        few = product.few_rows
        if few is not None:
            rows = max(rows, ceil_div(as_expr(few.most), few.rows).constant * few.rows)
        self._sums = self._fn.alloca("sums", product.sum_type, rows * product.width)
        self._few = None if few is None else FewRowSums(context, product, few, self._sums)
        self._results = TileResults(context, product)

    def write(self, bounds: tuple[Value, Value], sizes: Symbols) -> None:
        """Writes the loop over the units first..last-1, a block at a time."""
        fn = self._fn
        first, last = bounds
        slot = fn.alloca("unit.at", I64)
        fn.store(first, slot, 8)
        head, body, end = (fn.name(f"units.{part}") for part in ("loop", "block", "end"))
        fn.branch(head)
        fn.start_block(head)
        number = fn.load(I64, slot, 8, wish="unit")
        fn.branch_if(fn.compare("icmp", "slt", number, last, wish="unit.more"), body, end)
        fn.start_block(body)
        left = fn.op("sub nsw", last, number, wish="units.left")
        done = self._write_block(number, left, sizes)
        fn.store(fn.op("add nsw", number, done, wish="unit.next"), slot, 8)
        fn.branch(head)
        fn.start_block(end)

    def _write_block(self, number: Value, left: Value, sizes: Symbols) -> Value:
        """Writes the block that begins with a unit; the result is its number of units."""
        fn, product = self._fn, self._product
        symbols, group, groups = self._position(number, sizes)
        most = fn.intrinsic("smin", left, integer(BLOCK_GROUPS, I64), wish="groups.most")
        rest = fn.op("sub nsw", groups, group, wish="groups.left")
        done = fn.intrinsic("smin", rest, most, wish="groups")
        rows = self._part(product.rows, (group, done), GROUP_ROWS, symbols)
        columns = self._part(
            product.columns, (symbols[COLUMN_AXIS], integer(1, I64)), product.width, symbols
        )
        self._write_results(rows, columns, symbols)
        return done

    def _write_results(
        self, rows: tuple[Value, Value], columns: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the results of a block's rows by the columns of a tile."""
        fn, extent, form = self._fn, self._product.rows.extent, self._product.few_rows
        if self._few is None or form is None:
            self._write_by_panels(rows, columns, symbols)
            return
        if extent.is_constant:
            self._write_few(self._few, rows, columns, symbols)
            return
        count, most = self._index(extent, symbols), integer(form.most, I64)
        few, many, end = (fn.name(f"rows.{part}") for part in ("few", "many", "end"))
        fn.branch_if(fn.compare("icmp", "sle", count, most, wish="are_few"), few, many)
        fn.start_block(few)
        self._write_few(self._few, rows, columns, symbols)
        fn.branch(end)
        fn.start_block(many)
        self._write_by_panels(rows, columns, symbols)
        fn.branch(end)
        fn.start_block(end)

    def _write_few(
        self,
        few: FewRowSums,
        rows: tuple[Value, Value],
        columns: tuple[Value, Value],
        symbols: Symbols,
    ) -> None:
        few.write(rows[1], columns, symbols)
        self._results.call(self._sums, rows, columns, symbols)

    def _write_by_panels(
        self, rows: tuple[Value, Value], columns: tuple[Value, Value], symbols: Symbols
    ) -> None:
        self._add_products(rows, columns, symbols)
        if not self._product.has_one_slice:
            self._results.call(self._sums, rows, columns, symbols)

    def _position(self, number: Value, sizes: Symbols) -> tuple[Symbols, Value, Value]:
        """The values of a unit's axes, its group of rows, and the number of groups."""
        fn, symbols = self._fn, dict(sizes)
        first, *others = self._product.units
        rest = number
        extents = {}
        for axis in reversed(others):
            extent = fn.intrinsic(
                "smax", self._index(axis.extent, sizes), integer(1, I64), wish="extent"
            )
            extents[axis.name] = extent
            symbols[axis.name] = fn.op("urem", rest, extent, wish=axis.name)
            rest = fn.op("udiv", rest, extent, wish="rest")
        symbols[first.name] = rest
        return symbols, symbols[GROUP_AXIS], extents[GROUP_AXIS]

    def _part(
        self, axis: Axis, blocks: tuple[Value, Value], size: int, symbols: Symbols
    ) -> tuple[Value, Value]:
        """The first point of an axis in successive blocks, and the number of their points."""
        fn, whole = self._fn, integer(size, I64)
        number, count = blocks
        first = fn.op("mul nuw nsw", number, whole, wish=f"{axis.name}.first")
        points = fn.op("mul nuw nsw", count, whole, wish=f"{axis.name}.points")
        if is_multiple(axis.extent, size):
            return first, points
        left = fn.op("sub nsw", self._index(axis.extent, symbols), first, wish=f"{axis.name}.left")
        return first, fn.intrinsic("smin", left, points, wish=f"{axis.name}.count")

    def _add_products(
        self, rows: tuple[Value, Value], columns: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the loop over the slices of the terms."""
        fn, product = self._fn, self._product
        whole = integer(product.slice_terms, I64)
        terms = self._index(product.terms.extent, symbols)
        slices = self._index(ceil_div(product.terms.extent, product.slice_terms), symbols)
        # A sum of no terms is 0, which its only slice stores.
        slices = fn.intrinsic("smax", slices, integer(1, I64), wish="slices")
        if not product.has_one_slice:
            self._clear(rows[1])

        def slice_(at: Value) -> None:
            first = fn.op("mul nuw nsw", at, whole, wish="term.first")
            rest = fn.op("sub nsw", terms, first, wish="term.left")
            count = fn.intrinsic("smin", rest, whole, wish="term.count")
            inside = {**symbols, product.terms.name: first}
            self._panel.fill(columns[0], count, inside)
            self._tile.begin(count)
            if isinstance(self._panel, StoredPanel):
                ahead = self._panel.start(count)
            else:
                ahead = self._next.start(columns[0], (at, slices), inside)
            self._tiles(rows, columns, _Slice(count, ahead), inside)

        write_loop(fn, "slice", (ZERO_I64, slices), slice_, is_inner=False)

    def _tiles(
        self,
        rows: tuple[Value, Value],
        columns: tuple[Value, Value],
        terms: _Slice,
        symbols: Symbols,
    ) -> None:
        """Writes the loop over whole tiles, and one over the tile that the last rows make."""
        fn, product = self._fn, self._product
        (first, count), height = rows, product.height
        whole = fn.op("udiv", count, integer(height, I64), wish="tiles")
        above = fn.op("add nuw nsw", count, integer(height - 1, I64), wish="rows.above")
        all_ = fn.op("udiv", above, integer(height, I64), wish="tiles.all")

        fetching = (self._panel if isinstance(self._panel, StoredPanel) else self._next).tiles

        def tile(
            at: Value, height: int, last: Value | None = None, *, has_fetch: bool = True
        ) -> None:
            inside = fn.op("mul nuw nsw", at, integer(product.height, I64), wish="tile.row")
            top = fn.op("add nuw nsw", first, inside, wish=product.rows.name)
            own_rows = (top, integer(height, I64))
            if last is not None:
                left = fn.op("sub nsw", count, inside, wish="rows.left")
                own_rows = (top, fn.intrinsic("smin", own_rows[1], left, wish="rows.own"))
            fetch = partial(self._fetch, terms.ahead, at, symbols) if has_fetch else None
            totals = self._tile_sums((top, height, last), terms.count, fetch, symbols)
            if product.has_one_slice:
                self._keep(totals, ZERO_I64, is_first=True)
                self._results.call(self._sums, own_rows, columns, symbols)
            else:
                self._keep(totals, inside, is_first=False)

        first_tiles = fn.intrinsic("smin", whole, integer(fetching, I64), wish="tiles.first")
        if fetching:
            bounds = (ZERO_I64, first_tiles)
            write_loop(fn, "first", bounds, lambda at: tile(at, height), is_inner=False)
        bounds = (first_tiles, whole)
        write_loop(fn, "tile", bounds, lambda at: tile(at, height, has_fetch=False), is_inner=False)
        extent = product.rows.extent
        if not extent.is_constant:
            last = fn.op("sub nsw", self._index(extent, symbols), integer(1, I64), wish="row.last")
            rest = (whole, all_)
            write_loop(fn, "rest", rest, lambda at: tile(at, height, last), is_inner=False)
        elif extent.constant % height:
            left_over = extent.constant % height
            write_loop(fn, "rest", (whole, all_), lambda at: tile(at, left_over), is_inner=False)

    def _tile_sums(
        self,
        rows: tuple[Value, int, Value | None],
        count: Value,
        fetch: StepStart | None,
        symbols: Symbols,
    ) -> list[list[Value]]:
        """The sums of a tile of `count` terms, from its first row, its number of rows, and the last
        row of the matrix."""
        fn, left = self._fn, self._product.product.left
        top, height, last = rows
        name = self._product.rows.name
        starts = []
        for number in range(height):
            row = fn.op("add nuw nsw", top, integer(number, I64), wish=name)
            if last is not None:
                row = fn.intrinsic("smin", row, last, wish=name)
            starts.append(address_of(self._context, left, {**symbols, name: row}))

        inner = self._index(left.inner, symbols)
        return self._tile.write(starts, inner, count, fetch)

    def _fetch(self, ahead: Value, tile: Value, symbols: Symbols, step: Value) -> None:
        """Writes what a step of a tile asks memory for."""
        if isinstance(self._panel, StoredPanel):
            self._panel.fetch(ahead, tile, step)
        elif self._next.is_fetched:
            self._next.fetch(ahead, tile, step, symbols)

    def _clear(self, rows: Value) -> None:
        """Writes zeros to the sums of a block's rows."""
        fn, product = self._fn, self._product
        count = fn.op("mul nuw nsw", rows, integer(product.vectors, I64), wish="sums.count")

        def clear(number: Value) -> None:
            place = fn.element(product.vector, self._sums, number)
            fn.store(Value("zeroinitializer", product.vector), place, product.vector_bytes)

        write_loop(fn, "cleared", (ZERO_I64, count), clear, is_inner=False)

    def _keep(self, totals: list[list[Value]], first_row: Value, *, is_first: bool) -> None:
        """Stores a tile's sums; they are added to those before unless the slice is the first."""
        fn, product = self._fn, self._product
        add = "add" if product.has_bytes else "fadd"
        for below, row_totals in enumerate(totals):
            row = fn.op("add nuw nsw", first_row, integer(below, I64))
            for part, own in enumerate(row_totals):
                place, total = self._in_sums(row, integer(part * product.lanes, I64)), own
                if not is_first:
                    before = fn.load(product.vector, place, product.vector_bytes, wish="before")
                    total = fn.op(add, before, own, wish="total")
                fn.store(total, place, product.vector_bytes)

    def _in_sums(self, row: Value, column: Value) -> Value:
        fn = self._fn
        start = fn.op("mul nuw nsw", row, integer(self._product.width, I64))
        kind = self._product.sum_type
        return fn.element(kind, self._sums, fn.op("add nuw nsw", start, column))

    def _index(self, expr: Expr, symbols: Symbols) -> Value:
        return self._context.index.write(expr, symbols)
