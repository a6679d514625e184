"""The units of a product in tiles: blocks of rows by the columns of one tile (`tiles.py`).

    for each block of the units:
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

from dataclasses import dataclass

from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.panels import Panel, Symbols, address_of, load_element, load_vector
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, Value, integer
from codegen_svc.emitters.llvm.tiles import (
    BLOCK_GROUPS,
    COLUMN_AXIS,
    ELEMENT_BYTES,
    GROUP_AXIS,
    GROUP_ROWS,
    TiledProduct,
)
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import ONE, Expr, ceil_div
from kernelfarm.ir.loop_ir import Axis

# Sums of a tile, which LLVM keeps in registers.
_SLOT_BYTES = 8
# Symbols for the position of a result in its unit. They are no identifiers, so no axis has them.
_ROW, _LANE = "unit.row", "unit.lane"


@dataclass(frozen=True, slots=True)
class _LeftRows:
    """Where the rows of a tile begin in the left factor, the step to the next term, their type."""

    starts: list[Value]
    step: Value
    dtype: DType


class TileWriter:
    """Writes the units of a product in tiles."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._left = product.product.left.dtype
        self._wide = self._rows_of_f32(product)
        self._panel = Panel(context, product)
        count = product.block_rows * product.width
        self._sums = self._fn.alloca("sums", FLOAT, count)
        self._writer = context.value_writer(self._read_sum, _no_scan, lambda n, value, scope: None)

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
        self._add_products(rows, columns[0], symbols)
        self._store_results(rows, columns, symbols)
        return done

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
        if axis.extent.is_constant and axis.extent.constant % size == 0:
            return first, points
        left = fn.op("sub nsw", self._index(axis.extent, symbols), first, wish=f"{axis.name}.left")
        return first, fn.intrinsic("smin", left, points, wish=f"{axis.name}.count")

    def _add_products(
        self, rows: tuple[Value, Value], first_column: Value, symbols: Symbols
    ) -> None:
        """Writes the loop over the slices of the terms."""
        fn, product = self._fn, self._product
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
            self._panel.fill(first_column, count, inside)
            is_first = fn.compare("icmp", "eq", at, ZERO_I64, wish="is_first")
            self._tiles(rows, (count, is_first), inside)

        write_loop(fn, "slice", (ZERO_I64, slices), slice_, is_inner=False)

    def _tiles(
        self, rows: tuple[Value, Value], terms: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the loop over whole tiles, and one over the tile that the last rows make."""
        fn, product = self._fn, self._product
        (first, count), height = rows, product.height
        whole = fn.op("udiv", count, integer(height, I64), wish="tiles")
        above = fn.op("add nuw nsw", count, integer(height - 1, I64), wish="rows.above")
        all_ = fn.op("udiv", above, integer(height, I64), wish="tiles.all")
        left = product.product.left
        step = self._index(left.inner, symbols)

        def tile(at: Value, rows: int, last: Value | None = None) -> None:
            inside = fn.op("mul nuw nsw", at, integer(height, I64), wish="tile.row")
            top = fn.op("add nuw nsw", first, inside, wish=product.rows.name)
            starts = []
            for row in range(rows):
                own = fn.op("add nuw nsw", top, integer(row, I64), wish=product.rows.name)
                if last is not None:
                    own = fn.intrinsic("smin", own, last, wish=product.rows.name)
                starts.append(address_of(self._context, left, {**symbols, product.rows.name: own}))
            self._tile(self._widened(starts, step, terms[0]), inside, terms)

        write_loop(fn, "tile", (ZERO_I64, whole), lambda at: tile(at, height), is_inner=False)
        extent = product.rows.extent
        if not extent.is_constant:
            last = fn.op("sub nsw", self._index(extent, symbols), integer(1, I64), wish="row.last")
            rest = (whole, all_)
            write_loop(fn, "rest", rest, lambda at: tile(at, height, last), is_inner=False)
        elif extent.constant % height:
            left_over = extent.constant % height
            write_loop(fn, "rest", (whole, all_), lambda at: tile(at, left_over), is_inner=False)

    def _rows_of_f32(self, product: TiledProduct) -> Value | None:
        """Memory for a tile's rows of a narrow left factor as f32; None if they are read as is."""
        left = product.product.left
        if left.dtype is DType.F32 or left.inner is not ONE:
            return None
        return self._fn.alloca("rows", FLOAT, product.height * product.slice_terms)

    def _widened(self, starts: list[Value], step: Value, count: Value) -> _LeftRows:
        """Where a tile's rows of the left factor begin, as f32 if they are converted before."""
        if self._wide is None:
            return _LeftRows(starts, step, self._left)
        fn, product = self._fn, self._product
        lanes = integer(product.lanes, I64)
        factor = product.product.left
        whole = fn.op("mul nuw nsw", fn.op("udiv", count, lanes), lanes, wish="terms.whole")
        rows = [
            fn.element(FLOAT, self._wide, integer(row * product.slice_terms, I64))
            for row in range(len(starts))
        ]

        def vector(number: Value) -> None:
            at = fn.op("mul nuw nsw", number, lanes)
            for start, row in zip(starts, rows, strict=True):
                place = fn.element(memory_type(factor.dtype), start, at)
                found = load_vector(fn, factor, place, product.lanes)
                fn.store(found, fn.element(FLOAT, row, at), ELEMENT_BYTES)

        def single(at: Value) -> None:
            for start, row in zip(starts, rows, strict=True):
                found = load_element(fn, factor.dtype, start, at)
                fn.store(found, fn.element(FLOAT, row, at), ELEMENT_BYTES)

        vectors = (ZERO_I64, fn.op("udiv", count, lanes, wish="vectors"))
        write_loop(fn, "widened", vectors, vector, is_inner=False)
        write_loop(fn, "widened", (whole, count), single, is_inner=False)
        return _LeftRows(rows, integer(1, I64), DType.F32)

    def _tile(self, left: _LeftRows, row: Value, terms: tuple[Value, Value]) -> None:
        """Writes the sums of one tile."""
        fn, product, starts, step = self._fn, self._product, left.starts, left.step
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
                element = self._spread(load_element(fn, left.dtype, start, position))
                for right, slot in zip(rights, row_slots, strict=True):
                    before = fn.load(vector, slot, _SLOT_BYTES)
                    fn.store(self._fma(element, right, before), slot, _SLOT_BYTES)

        write_loop(fn, "term", (ZERO_I64, count), term, is_inner=False)
        for below, row_slots in enumerate(slots):
            at = fn.op("add nuw nsw", row, integer(below, I64))
            for column, slot in zip(columns, row_slots, strict=True):
                place = self._in_sums(at, column)
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
        place = self._in_sums(scope.symbols[_ROW], scope.symbols[_LANE])
        return self._fn.load(FLOAT, place, ELEMENT_BYTES)

    def _in_sums(self, row: Value, column: Value) -> Value:
        fn = self._fn
        start = fn.op("mul nuw nsw", row, integer(self._product.width, I64))
        return fn.element(FLOAT, self._sums, fn.op("add nuw nsw", start, column))

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
