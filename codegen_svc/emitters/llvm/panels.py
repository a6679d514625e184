"""Panels: a slice of the right factor of a product, for the columns of one tile.

The elements of a term are adjacent, so a tile reads its panel from the first to the last byte. If
the terms of a column are adjacent in memory, squares of as many columns as a vector has lanes are
transposed in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from codegen_svc.emitters.llvm.element_types import convert, memory_type
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, TiledProduct
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE
from kernelfarm.ir.processor_products import Factor

Symbols = Mapping[str, Value]


def address_of(context: UnitContext, factor: Factor, symbols: Symbols) -> Value:
    """The address of a factor's element at the symbols' point."""
    position = context.index.write(factor.load.index, symbols)
    return context.fn.element(
        memory_type(factor.dtype), context.buffers[factor.load.param], position
    )


def load_element(fn: FunctionText, dtype: DType, start: Value, position: Value) -> Value:
    """The element of a factor at a position behind an address, as f32."""
    place = fn.element(memory_type(dtype), start, position)
    found = fn.load(memory_type(dtype), place, dtype.itemsize_bytes)
    return convert(fn, found, dtype, DType.F32)


def load_vector(fn: FunctionText, factor: Factor, place: Value, lanes: int) -> Value:
    """Adjacent elements of a factor, as f32."""
    dtype = factor.dtype
    found = fn.load(f"<{lanes} x {memory_type(dtype)}>", place, dtype.itemsize_bytes)
    vector = f"<{lanes} x {FLOAT}>"
    if dtype is DType.F16:
        return fn.cast("fpext", found, vector)
    if dtype is not DType.BF16:
        return found
    bits = fn.cast("zext", found, f"<{lanes} x {I32}>")
    sixteen = ", ".join([f"{I32} 16"] * lanes)
    return fn.cast("bitcast", fn.op("shl", bits, Value(f"<{sixteen}>", bits.type)), vector)


class Panel:
    """The memory of a panel, (slice_terms, width) row-major."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._memory = self._fn.alloca("panel", FLOAT, product.slice_terms * product.width)

    def at(self, term: Value, column: Value) -> Value:
        """The address of an element."""
        fn = self._fn
        start = fn.op("mul nuw nsw", term, integer(self._product.width, I64))
        return fn.element(FLOAT, self._memory, fn.op("add nuw nsw", start, column))

    def fill(self, first_column: Value, count: Value, symbols: Symbols) -> None:
        """Writes code that copies `count` terms; `symbols` has the first one."""
        factor, first = self._product.product.right, ZERO_I64
        if factor.inner is ONE:
            first = self._transpose(factor, first_column, count, symbols)
            if self._has_whole_vectors():
                return
        elif factor.along is ONE:
            is_whole = self._is_whole(first_column, symbols)
            whole = self._fn.select(is_whole, count, ZERO_I64, wish="terms.whole")
            self._copy_rows(factor, first_column, whole, symbols)
            first = whole
        self._copy_elements(factor, first_column, (first, count), symbols)

    def _has_whole_vectors(self) -> bool:
        terms = self._product.terms.extent
        return terms.is_constant and terms.constant % self._product.lanes == 0

    def _is_whole(self, first_column: Value, symbols: Symbols) -> Value:
        """True if the matrix has all columns of the panel."""
        fn, product = self._fn, self._product
        end = fn.op("add nuw nsw", first_column, integer(product.width, I64), wish="end")
        extent = self._context.index.write(product.columns.extent, symbols)
        return fn.compare("icmp", "sle", end, extent, wish="is_whole")

    def _column(self, first_column: Value, number: Value, symbols: Symbols) -> Value:
        """A column of the panel in the matrix, at most the last one."""
        fn, columns = self._fn, self._product.columns
        column = fn.op("add nuw nsw", first_column, number, wish=columns.name)
        extent = columns.extent
        if extent.is_constant and extent.constant % self._product.width == 0:
            return column
        last = fn.op("sub nsw", self._context.index.write(extent, symbols), integer(1, I64))
        return fn.intrinsic("smin", column, last, wish=columns.name)

    def _transpose(
        self, factor: Factor, first_column: Value, count: Value, symbols: Symbols
    ) -> Value:
        """Writes the loops over squares; the result is the number of terms in them."""
        fn, product = self._fn, self._product
        lanes = integer(product.lanes, I64)
        squares = fn.op("udiv", count, lanes, wish="squares")

        def group(number: Value) -> None:
            left = fn.op("mul nuw nsw", number, lanes, wish="left")
            starts = []
            for lane in range(product.lanes):
                own = fn.op("add nuw nsw", left, integer(lane, I64))
                at = {**symbols, product.columns.name: self._column(first_column, own, symbols)}
                starts.append(address_of(self._context, factor, at))

            def square(at: Value) -> None:
                term = fn.op("mul nuw nsw", at, lanes, wish="term")
                places = [fn.element(memory_type(factor.dtype), start, term) for start in starts]
                rows = [load_vector(fn, factor, place, product.lanes) for place in places]
                for below, row in enumerate(self._transposed(rows)):
                    own = fn.op("add nuw nsw", term, integer(below, I64))
                    fn.store(row, self.at(own, left), product.vector_bytes)

            write_loop(fn, "square", (ZERO_I64, squares), square, is_inner=False)

        groups = (ZERO_I64, integer(product.vectors, I64))
        write_loop(fn, "group", groups, group, is_inner=False, is_unrolled=False)
        return fn.op("mul nuw nsw", squares, lanes, wish="terms.done")

    def _transposed(self, rows: list[Value]) -> list[Value]:
        """A square of vectors transposed: each step exchanges squares of half of the side."""
        fn, vector, lanes = self._fn, self._product.vector, self._product.lanes
        step = 1
        while step < lanes:
            low, high = ([], [])
            for lane in range(lanes):
                is_second = bool(lane & step)
                low.append(lane - step + lanes if is_second else lane)
                high.append(lane + lanes if is_second else lane + step)
            exchanged = list(rows)
            for number in range(lanes):
                if not number & step:
                    pair = f"{rows[number]}, {rows[number + step]}"
                    for offset, order in ((0, low), (step, high)):
                        mask = ", ".join(f"i32 {lane}" for lane in order)
                        text = f"shufflevector {pair}, <{lanes} x i32> <{mask}>"
                        exchanged[number + offset] = fn.define("turned", vector, text)
            rows, step = exchanged, 2 * step
        return rows

    def _copy_rows(
        self, factor: Factor, first_column: Value, count: Value, symbols: Symbols
    ) -> None:
        """Writes the loop that copies terms whose columns are adjacent."""
        fn, product = self._fn, self._product
        step = self._context.index.write(factor.inner, symbols)
        start = address_of(self._context, factor, {**symbols, product.columns.name: first_column})

        def term(at: Value) -> None:
            row = fn.element(memory_type(factor.dtype), start, fn.op("mul nsw", at, step))
            for part in range(product.vectors):
                column = integer(part * product.lanes, I64)
                place = fn.element(memory_type(factor.dtype), row, column)
                found = load_vector(fn, factor, place, product.lanes)
                fn.store(found, self.at(at, column), product.vector_bytes)

        write_loop(fn, "copied", (ZERO_I64, count), term, is_inner=False)

    def _copy_elements(
        self, factor: Factor, first_column: Value, terms: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the loops that copy terms element by element."""
        fn, product = self._fn, self._product
        step = self._context.index.write(factor.inner, symbols)

        def term(at: Value) -> None:
            offset = fn.op("mul nsw", at, step)

            def column(number: Value) -> None:
                own = self._column(first_column, number, symbols)
                start = address_of(self._context, factor, {**symbols, product.columns.name: own})
                found = load_element(fn, factor.dtype, start, offset)
                fn.store(found, self.at(at, number), ELEMENT_BYTES)

            write_loop(fn, "column", (ZERO_I64, integer(product.width, I64)), column, is_inner=True)

        write_loop(fn, "single", terms, term, is_inner=False)
