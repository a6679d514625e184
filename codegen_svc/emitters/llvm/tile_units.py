"""A unit that is a block of rows of a product, by the columns of one tile (`tiles.py`).

    for each slice of the terms:
        panel = columns of the right factor, the elements of a term after each other
        for each tile of the rows:
            sums += products of the tile's rows by the panel, in registers
    for each row, for each column: what the kernel computes from the sums, and its stores

Rows and columns past the end of a matrix are those of its last one: they are computed, because no
instruction is saved without them, and not stored. Each slice has sums of its own, which are added
to those of the slices before, so rounding errors grow with the terms of a slice.
"""

from __future__ import annotations

from codegen_svc.emitters.llvm.panels import Panel, Symbols, address_of
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, ROWS, Factor, TiledProduct
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import Expr, ceil_div
from kernelfarm.ir.loop_ir import Axis

# Sums of a tile, which LLVM keeps in registers.
_SLOT_BYTES = 8
# Symbols for the position of a result in its unit. They are no identifiers, so no axis has them.
_ROW, _LANE = "unit.row", "unit.lane"


class TileWriter:
    """Writes units that are blocks of tiles."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._panel = Panel(context, product)
        count = product.block_rows * product.width
        self._sums = {number: self._fn.alloca("sums", FLOAT, count) for number, *_ in product.sums}
        self._writer = context.value_writer(self._read_sum, _no_scan, lambda n, value, scope: None)

    def begin(self, sizes: dict[str, Value]) -> None:
        """Writes what precedes all units: nothing."""

    def write(self, symbols: dict[str, Value]) -> None:
        """Writes one unit; `symbols` has the axes of units, the blocks' numbers and the sizes."""
        product = self._product
        rows = self._part(product.rows, product.block_rows, symbols)
        columns = self._part(product.columns, product.width, symbols)
        for number, left, right in product.sums:
            self._add_products(number, (left, right), rows, columns[0], symbols)
        self._store_results(rows, columns, symbols)

    def close(self) -> None:
        """Ends the writing of units; it has no memory to free."""

    def _part(self, axis: Axis, size: int, symbols: Symbols) -> tuple[Value, Value]:
        """The first point of an axis in a block, and the number of points there."""
        fn, whole = self._fn, integer(size, I64)
        if axis.extent.is_constant and axis.extent.constant <= size:
            return ZERO_I64, integer(axis.extent.constant, I64)
        number = symbols[f"{axis.name}_block"]
        first = fn.op("mul nuw nsw", number, whole, wish=f"{axis.name}.first")
        if axis.extent.is_constant and axis.extent.constant % size == 0:
            return first, whole
        left = fn.op("sub nsw", self._index(axis.extent, symbols), first, wish=f"{axis.name}.left")
        return first, fn.intrinsic("smin", left, whole, wish=f"{axis.name}.count")

    def _add_products(
        self,
        number: int,
        factors: tuple[Factor, Factor],
        rows: tuple[Value, Value],
        first_column: Value,
        symbols: Symbols,
    ) -> None:
        """Writes the loop over the slices of one sum."""
        fn, product, (left, right) = self._fn, self._product, factors
        whole = integer(product.slice_terms, I64)
        terms = self._index(product.terms.extent, symbols)
        slices = self._index(ceil_div(product.terms.extent, product.slice_terms), symbols)
        # A sum of no terms is 0, which its only slice stores.
        slices = fn.intrinsic("smax", slices, integer(1, I64), wish="slices")

        def slice_(at: Value) -> None:
            first = fn.op("mul nuw nsw", at, whole, wish="term.first")
            rest = fn.op("sub nsw", terms, first, wish="term.left")
            count = fn.intrinsic("smin", rest, whole, wish="term.count")
            inside = {**symbols, product.terms.name: first}
            self._panel.fill(right, first_column, count, inside)
            is_first = fn.compare("icmp", "eq", at, ZERO_I64, wish="is_first")
            self._tiles(number, left, rows, (count, is_first), inside)

        write_loop(fn, "slice", (ZERO_I64, slices), slice_, is_inner=False)

    def _tiles(
        self,
        number: int,
        left: Factor,
        rows: tuple[Value, Value],
        terms: tuple[Value, Value],
        symbols: Symbols,
    ) -> None:
        """Writes the loop over whole tiles, and one over the tile that the last rows make."""
        fn, product = self._fn, self._product
        first, count = rows
        whole = fn.op("udiv", count, integer(ROWS, I64), wish="tiles")
        above = fn.op("add nuw nsw", count, integer(ROWS - 1, I64), wish="rows.above")
        all_ = fn.op("udiv", above, integer(ROWS, I64), wish="tiles.all")
        step = self._index(left.inner, symbols)

        def tile(at: Value, height: int, last: Value | None = None) -> None:
            inside = fn.op("mul nuw nsw", at, integer(ROWS, I64), wish="tile.row")
            top = fn.op("add nuw nsw", first, inside, wish=product.rows.name)
            starts = []
            for row in range(height):
                own = fn.op("add nuw nsw", top, integer(row, I64), wish=product.rows.name)
                if last is not None:
                    own = fn.intrinsic("smin", own, last, wish=product.rows.name)
                starts.append(address_of(self._context, left, {**symbols, product.rows.name: own}))
            self._tile(number, starts, step, inside, terms)

        write_loop(fn, "tile", (ZERO_I64, whole), lambda at: tile(at, ROWS), is_inner=False)
        extent = product.rows.extent
        if not extent.is_constant:
            last = fn.op("sub nsw", self._index(extent, symbols), integer(1, I64), wish="row.last")
            rest = (whole, all_)
            write_loop(fn, "rest", rest, lambda at: tile(at, ROWS, last), is_inner=False)
        elif extent.constant % ROWS:
            height = extent.constant % ROWS
            write_loop(fn, "rest", (whole, all_), lambda at: tile(at, height), is_inner=False)

    def _tile(
        self,
        number: int,
        starts: list[Value],
        step: Value,
        row: Value,
        terms: tuple[Value, Value],
    ) -> None:
        """Writes the sums of one tile, whose rows of the left factor begin at `starts`."""
        fn, product = self._fn, self._product
        vector, (count, is_first) = product.vector, terms
        columns = [integer(part * product.lanes, I64) for part in range(product.vectors)]
        slots = [[fn.alloca("total", vector) for _ in range(product.vectors)] for _ in starts]
        for slot in (slot for row_slots in slots for slot in row_slots):
            fn.store(Value("zeroinitializer", vector), slot, _SLOT_BYTES)

        def term(at: Value) -> None:
            rights = [
                fn.load(vector, self._panel.at(at, column), product.vector_bytes, wish="right")
                for column in columns
            ]
            position = at if step.text == "1" else fn.op("mul nsw", at, step, wish="step")
            for start, row_slots in zip(starts, slots, strict=True):
                place = fn.element(FLOAT, start, position)
                element = self._spread(fn.load(FLOAT, place, ELEMENT_BYTES, wish="left"))
                for right, slot in zip(rights, row_slots, strict=True):
                    before = fn.load(vector, slot, _SLOT_BYTES)
                    fn.store(self._fma(element, right, before), slot, _SLOT_BYTES)

        write_loop(fn, "term", (ZERO_I64, count), term, is_inner=False)
        for below, row_slots in enumerate(slots):
            at = fn.op("add nuw nsw", row, integer(below, I64))
            for column, slot in zip(columns, row_slots, strict=True):
                place = self._in_sums(number, at, column)
                old = fn.load(vector, place, product.vector_bytes, wish="old")
                zeros = Value("zeroinitializer", vector)
                before = fn.select(is_first, zeros, old, wish="before")
                total = fn.op("fadd", before, fn.load(vector, slot, _SLOT_BYTES), wish="total")
                fn.store(total, place, product.vector_bytes)

    def _store_results(
        self, rows: tuple[Value, Value], columns: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the loops over the results: from their sums to what is stored."""
        fn, product = self._fn, self._product

        def row(at: Value) -> None:
            own = fn.op("add nuw nsw", rows[0], at, wish=product.rows.name)
            scope = Scope({**symbols, product.rows.name: own, _ROW: at})

            def lane(number: Value) -> None:
                column = fn.op("add nuw nsw", columns[0], number, wish=product.columns.name)
                inner = scope.inner(**{product.columns.name: column, _LANE: number})
                self._writer.store_all(self._context.schedule.final_stores, inner)

            write_loop(fn, "lane", (ZERO_I64, columns[1]), lane, is_inner=True)

        write_loop(fn, "row", (ZERO_I64, rows[1]), row, is_inner=False)

    def _read_sum(self, number: int, scope: Scope) -> Value:
        place = self._in_sums(number, scope.symbols[_ROW], scope.symbols[_LANE])
        return self._fn.load(FLOAT, place, ELEMENT_BYTES)

    def _in_sums(self, number: int, row: Value, column: Value) -> Value:
        fn = self._fn
        start = fn.op("mul nuw nsw", row, integer(self._product.width, I64))
        return fn.element(FLOAT, self._sums[number], fn.op("add nuw nsw", start, column))

    def _spread(self, element: Value) -> Value:
        """A vector of equal elements."""
        fn, vector = self._fn, self._product.vector
        one = fn.define("", vector, f"insertelement {vector} poison, {element}, {I32} 0")
        mask = f"<{self._product.lanes} x i32> zeroinitializer"
        return fn.define("", vector, f"shufflevector {one}, {vector} poison, {mask}")

    def _fma(self, a: Value, b: Value, added: Value) -> Value:
        name = f"llvm.fma.v{self._product.lanes}f32"
        return self._fn.call_external(name, self._product.vector, a, b, added)

    def _index(self, expr: Expr, symbols: Symbols) -> Value:
        return self._context.index.write(expr, symbols)


def _no_scan(number: int, scope: Scope) -> Value:
    raise InternalError(f"scan {number} in a product in tiles; expected sums of products alone")
