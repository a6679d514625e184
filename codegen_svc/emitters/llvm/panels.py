"""Panels: a slice of the right factor of a product, for the columns of one tile.

The elements of a term are adjacent, so a tile reads its panel from the first to the last byte. If
the terms of a column are adjacent in memory, squares of as many columns as a vector has lanes are
transposed in registers. A lane has an element of a term, as f32, or the elements of two successive
terms, bf16, the first one in its lower half, or those of four, i8; behind the last term it has 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from codegen_svc.emitters.llvm.byte_sums import load_first_bytes
from codegen_svc.emitters.llvm.element_types import convert, memory_type
from codegen_svc.emitters.llvm.text import FLOAT, I8, I16, I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, TiledProduct, is_multiple
from codegen_svc.emitters.llvm.transposition import transposed
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


def load_element(fn: FunctionText, dtype: DType, place: Value) -> Value:
    """The element of a factor at an address, as f32."""
    found = fn.load(memory_type(dtype), place, dtype.itemsize_bytes)
    return convert(fn, found, dtype, DType.F32)


def load_single(fn: FunctionText, place: Value) -> Value:
    """A bf16 at an address in a lane, with 0 as the second one."""
    return fn.cast("zext", fn.load(I16, place, DType.BF16.itemsize_bytes), I32)


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


def load_pair(fn: FunctionText, first: Value, second: Value, lanes: int | None = None) -> Value:
    """Two bf16 at addresses in one lane; with `lanes`, as many adjacent ones at each address."""
    narrow, wide, sixteen = I16, I32, "16"
    if lanes is not None:
        narrow, wide = f"<{lanes} x {I16}>", f"<{lanes} x {I32}>"
        sixteen = f"<{', '.join([f'{I32} 16'] * lanes)}>"
    low, high = (
        fn.cast("zext", fn.load(narrow, place, DType.BF16.itemsize_bytes), wide)
        for place in (first, second)
    )
    return fn.op("or", low, fn.op("shl", high, Value(sixteen, wide)))


def load_bytes(fn: FunctionText, places: list[Value], lanes: int | None = None) -> Value:
    """Four bytes at addresses in one lane; with `lanes`, as many adjacent ones at each address."""
    narrow, wide = I8, I32
    if lanes is not None:
        narrow, wide = f"<{lanes} x {I8}>", f"<{lanes} x {I32}>"
    found = [fn.cast("zext", fn.load(narrow, place, 1), wide) for place in places]
    total = found[0]
    for number, byte in enumerate(found[1:], start=1):
        bits = integer(8 * number, I32)
        text = bits.text if lanes is None else f"<{', '.join([str(bits)] * lanes)}>"
        total = fn.op("or", total, fn.op("shl", byte, Value(text, wide)))
    return total


def steps_of(fn: FunctionText, product: TiledProduct, count: Value) -> tuple[Value, Value]:
    """The steps that `count` terms fill, and all steps: the last one may have fewer terms."""
    if product.lane_terms == 1:
        return count, count
    whole = fn.op("udiv", count, integer(product.lane_terms, I64), wish="steps")
    if product.is_paired:
        return whole, fn.op("sub nuw nsw", count, whole, wish="steps.all")
    above = fn.op("add nuw nsw", count, integer(product.lane_terms - 1, I64))
    return whole, fn.op("udiv", above, integer(product.lane_terms, I64), wish="steps.all")


class Panel:
    """The memory of a panel, (slice_terms / lane_terms, width) lanes, row-major."""

    def __init__(self, context: UnitContext, product: TiledProduct) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._factor = product.product.right
        self._memory = self._fn.alloca(
            "panel", product.lane_type, product.slice_terms // product.lane_terms * product.width
        )

    @property
    def alignment(self) -> int:
        """The alignment of its vectors in bytes."""
        return self._product.vector_bytes

    def at(self, step: Value, column: Value) -> Value:
        """The address of a lane; a step is a term, or a pair of terms."""
        fn = self._fn
        start = fn.op("mul nuw nsw", step, integer(self._product.width, I64))
        position = fn.op("add nuw nsw", start, column)
        return fn.element(self._product.lane_type, self._memory, position)

    def fill(self, first_column: Value, count: Value, symbols: Symbols) -> None:
        """Writes code that copies `count` terms; `symbols` has the first one."""
        fn, (steps, all_) = self._fn, steps_of(self._fn, self._product, count)
        done = ZERO_I64
        if self._factor.inner is ONE:
            done = self._transpose(first_column, count, symbols)
            if self._has_whole_squares():
                return
        elif self._factor.along is ONE:
            is_whole = self._is_whole(first_column, symbols)
            done = fn.select(is_whole, steps, ZERO_I64, wish="steps.whole")
            self._copy_rows(first_column, done, symbols)
        self._copy_elements(first_column, (done, steps), symbols)
        if self._product.has_rest:
            self._copy_rest(first_column, (steps, all_), symbols)

    def _has_whole_squares(self) -> bool:
        product = self._product
        return is_multiple(product.terms.extent, product.lanes * product.lane_terms)

    def _is_whole(self, first_column: Value, symbols: Symbols) -> Value:
        """True if the matrix has all columns of the panel."""
        fn, product = self._fn, self._product
        end = fn.op("add nuw nsw", first_column, integer(product.width, I64), wish="end")
        extent = self._context.index.write(product.columns.extent, symbols)
        return fn.compare("icmp", "sle", end, extent, wish="is_whole")

    def _start(self, first_column: Value, number: Value, symbols: Symbols) -> Value:
        """The address of the first term of a column of the panel, at most the last column."""
        fn, columns = self._fn, self._product.columns
        column = fn.op("add nuw nsw", first_column, number, wish=columns.name)
        extent = columns.extent
        if not is_multiple(extent, self._product.width):
            last = fn.op("sub nsw", self._context.index.write(extent, symbols), integer(1, I64))
            column = fn.intrinsic("smin", column, last, wish=columns.name)
        return address_of(self._context, self._factor, {**symbols, columns.name: column})

    def _transpose(self, first_column: Value, count: Value, symbols: Symbols) -> Value:
        """Writes the loops over squares; the result is the number of steps in them."""
        fn, product, factor = self._fn, self._product, self._factor
        lanes, side = (
            integer(number, I64) for number in (product.lanes, product.lanes * product.lane_terms)
        )
        squares = fn.op("udiv", count, side, wish="squares")

        def group(number: Value) -> None:
            left = fn.op("mul nuw nsw", number, lanes, wish="left")
            starts = []
            for lane in range(product.lanes):
                own = fn.op("add nuw nsw", left, integer(lane, I64))
                starts.append(self._start(first_column, own, symbols))

            def square(at: Value) -> None:
                step = fn.op("mul nuw nsw", at, lanes, wish="step")
                term = fn.op("mul nuw nsw", at, side, wish="term")
                places = [fn.element(memory_type(factor.dtype), start, term) for start in starts]
                rows = [self._load_terms(place) for place in places]
                for below, row in enumerate(transposed(fn, rows, 8 * ELEMENT_BYTES)):
                    own = fn.op("add nuw nsw", step, integer(below, I64))
                    fn.store(row, self.at(own, left), product.vector_bytes)

            write_loop(fn, "square", (ZERO_I64, squares), square, is_inner=False)

        groups = (ZERO_I64, integer(product.vectors, I64))
        write_loop(fn, "group", groups, group, is_inner=False, is_unrolled=False)
        return fn.op("mul nuw nsw", squares, lanes, wish="steps.done")

    def _load_rest(self, places: list[Value]) -> Value:
        """A lane of the last terms, which do not fill it."""
        fn, product = self._fn, self._product
        if product.is_paired:
            return load_single(fn, places[0])
        count = product.terms.extent.constant % product.lane_terms
        if self._factor.inner is ONE:
            return load_first_bytes(fn, places[0], count)
        return load_bytes(fn, places[:count])

    def _load_terms(self, place: Value) -> Value:
        """The bits of adjacent terms of a column that fill a vector's lanes."""
        fn, product, factor = self._fn, self._product, self._factor
        bits = f"<{product.lanes} x {I32}>"
        if product.lane_terms > 1:
            return fn.load(bits, place, factor.dtype.itemsize_bytes)
        return fn.cast("bitcast", load_vector(fn, factor, place, product.lanes), bits)

    def _places(self, start: Value, step: Value, symbols: Symbols) -> list[Value]:
        """The addresses of the terms of a step, behind that of the first term."""
        fn, terms = self._fn, self._product.lane_terms
        inner = self._context.index.write(self._factor.inner, symbols)
        first = step if terms == 1 else fn.op("mul nuw nsw", step, integer(terms, I64))
        kind = memory_type(self._factor.dtype)
        places = [fn.element(kind, start, fn.op("mul nsw", first, inner))]
        for _ in range(terms - 1):
            places.append(fn.element(kind, places[-1], inner))
        return places

    def _copy_rows(self, first_column: Value, count: Value, symbols: Symbols) -> None:
        """Writes the loop that copies steps whose columns are adjacent."""
        fn, product = self._fn, self._product
        columns = {**symbols, product.columns.name: first_column}
        start = address_of(self._context, self._factor, columns)

        def step(at: Value) -> None:
            rows = self._places(start, at, symbols)
            for part in range(product.vectors):
                column = integer(part * product.lanes, I64)
                kind = memory_type(self._factor.dtype)
                found = self._load_lanes([fn.element(kind, row, column) for row in rows])
                fn.store(found, self.at(at, column), product.vector_bytes)

        write_loop(fn, "copied", (ZERO_I64, count), step, is_inner=False)

    def _load_lanes(self, places: list[Value]) -> Value:
        """A vector of adjacent columns, from the addresses of its terms."""
        if self._product.is_paired:
            return load_pair(self._fn, places[0], places[1], self._product.lanes)
        if self._product.has_bytes:
            return load_bytes(self._fn, places, self._product.lanes)
        return load_vector(self._fn, self._factor, places[0], self._product.lanes)

    def _copy_elements(
        self, first_column: Value, steps: tuple[Value, Value], symbols: Symbols
    ) -> None:
        """Writes the loops that copy steps element by element."""
        fn, product = self._fn, self._product

        def step(at: Value) -> None:
            def column(number: Value) -> None:
                places = self._places(self._start(first_column, number, symbols), at, symbols)
                found = self._load_lane(places)
                fn.store(found, self.at(at, number), ELEMENT_BYTES)

            write_loop(fn, "column", (ZERO_I64, integer(product.width, I64)), column, is_inner=True)

        write_loop(fn, "single", steps, step, is_inner=False)

    def _load_lane(self, places: list[Value]) -> Value:
        """A lane of a column, from the addresses of its terms."""
        fn = self._fn
        if self._product.is_paired:
            return load_pair(fn, places[0], places[1])
        if not self._product.has_bytes:
            return load_element(fn, self._factor.dtype, places[0])
        are_adjacent = self._factor.inner is ONE
        return fn.load(I32, places[0], 1) if are_adjacent else load_bytes(fn, places)

    def _copy_rest(self, first_column: Value, steps: tuple[Value, Value], symbols: Symbols) -> None:
        """Writes the copy of the last terms, which do not fill a lane."""
        fn, product = self._fn, self._product

        def step(at: Value) -> None:
            def column(number: Value) -> None:
                start = self._start(first_column, number, symbols)
                found = self._load_rest(self._places(start, at, symbols))
                fn.store(found, self.at(at, number), ELEMENT_BYTES)

            write_loop(fn, "column", (ZERO_I64, integer(product.width, I64)), column, is_inner=True)

        write_loop(fn, "last", steps, step, is_inner=False)
