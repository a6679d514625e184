"""Sums of a product in tiles that has few rows, known to be few or found to be so by a call.

    for each group of columns:
        for each group of rows:
            for each vector of terms:
                sums of each row and column += products, lane by lane
            sums of the lanes

A panel would be copied for a tile or two, which takes longer than memory takes to deliver the right
factor. Here its columns, whose terms are adjacent, are multiplied as they are; a group of columns
stays in the first-level cache for all groups of rows, and each step asks memory for a line of the
next group. Groups that are not whole compute their last column or row again.

Weights of 768 x 768 to 4,096 x 4,096 from memory, one thread, 2 to 12 rows, in times of the speed
by panels: Intel with AVX-512 1.1 to 1.7 in f32 and 0.9 to 2.0 in pairs of bf16, AMD with AVX2 (up
to 8 rows) 1.0 to 1.8 in f32.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen_svc.emitters.llvm.byte_sums import first_row_sums, raised
from codegen_svc.emitters.llvm.lane_sums import lane_sums
from codegen_svc.emitters.llvm.next_panels import write_fetch
from codegen_svc.emitters.llvm.panels import Symbols, address_of, load_vector
from codegen_svc.emitters.llvm.text import I8, I32, I64, PTR, Value, integer
from codegen_svc.emitters.llvm.tile_sums import add_products
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, FewRows, TiledProduct, is_multiple
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from kernelfarm.ir.algebra.expr import as_expr, ceil_div
from kernelfarm.ir.loop_ir import Axis
from kernelfarm.ir.processor_products import Factor


class FewRowSums:
    """Writes the sums of all rows by the columns of one tile into `sums`, a row of a tile each."""

    def __init__(
        self, context: UnitContext, product: TiledProduct, form: FewRows, sums: Value
    ) -> None:
        self._context = context
        self._fn = context.fn
        self._product = product
        self._form = form
        self._sums = sums
        self._firsts = None
        if product.raising_dot is not None:
            count = ceil_div(as_expr(form.most), form.rows).constant * form.rows
            self._firsts = self._fn.alloca("row.firsts", I32, count)

    def write(self, row_count: Value, columns: tuple[Value, Value], symbols: Symbols) -> None:
        """Writes the loops; `columns` are the tile's first one and the number of columns."""
        form, product = self._form, self._product
        inside = {**symbols, product.terms.name: ZERO_I64}
        if self._firsts is not None:
            self._write_firsts(self._firsts, row_count, inside)

        def group(first: Value) -> None:
            column = self._fn.op("add nuw nsw", columns[0], first)
            rights = self._starts(product.product.right, product.columns, column, inside)

            def add(row: Value) -> None:
                self._add((row, first), rights, inside)

            self._for_groups("rows", form.rows, row_count, add)

        self._for_groups("columns", form.columns, columns[1], group)

    def _write_firsts(self, firsts: Value, row_count: Value, symbols: Symbols) -> None:
        """Writes what the sums of each row start at into memory."""
        fn, product, dot = self._fn, self._product, self._product.raising_dot
        assert dot is not None  # the caller has asked

        def group(row: Value) -> None:
            starts = self._starts(product.product.left, product.rows, row, symbols)
            count = product.terms.extent.constant
            for below, first in enumerate(first_row_sums(fn, dot, starts, count, product.lanes)):
                own = fn.op("add nuw nsw", row, integer(below, I64))
                fn.store(first, fn.element(I32, firsts, own), ELEMENT_BYTES)

        self._for_groups("firsts", self._form.rows, row_count, group)

    def _for_groups(
        self, wish: str, size: int, count: Value, write: Callable[[Value], None]
    ) -> None:
        """Writes the loop over groups of so many, by the first one of each."""
        fn, whole = self._fn, integer(size, I64)
        above = fn.op("add nuw nsw", count, integer(size - 1, I64))
        bounds = (ZERO_I64, fn.op("udiv", above, whole, wish=f"{wish}.groups"))

        def group(at: Value) -> None:
            write(fn.op("mul nuw nsw", at, whole, wish=f"{wish}.first"))

        write_loop(fn, wish, bounds, group, is_inner=False, is_unrolled=False)

    def _starts(self, factor: Factor, axis: Axis, first: Value, symbols: Symbols) -> list[Value]:
        """The addresses of the first terms of a group; behind the last one it is repeated."""
        fn = self._fn
        is_rows = axis is self._product.rows
        count = self._form.rows if is_rows else self._form.columns
        last = fn.op("sub nsw", self._context.index.write(axis.extent, symbols), integer(1, I64))
        found = []
        for number in range(count):
            at = fn.op("add nuw nsw", first, integer(number, I64), wish=axis.name)
            if not is_multiple(axis.extent, count):
                at = fn.intrinsic("smin", at, last, wish=axis.name)
            found.append(address_of(self._context, factor, {**symbols, axis.name: at}))
        return found

    def _add(self, at: tuple[Value, Value], rights: list[Value], symbols: Symbols) -> None:
        """Writes the sums of a group of rows by a group of columns, from its place in the tile."""
        fn, product = self._fn, self._product
        row, column = at
        lefts = self._starts(product.product.left, product.rows, row, symbols)
        slots = [[fn.alloca("total", product.vector) for _ in rights] for _ in lefts]
        for slot in (slot for row_slots in slots for slot in row_slots):
            fn.store(Value("zeroinitializer", product.vector), slot, product.vector_bytes)
        in_vector = product.lanes * product.lane_terms
        vectors = integer(product.terms.extent.constant // in_vector, I64)

        def step(number: Value) -> None:
            term = fn.op("mul nuw nsw", number, integer(in_vector, I64), wish=product.terms.name)
            self._fetch(rights, term, symbols)
            loaded = [self._load(product.product.right, place, term) for place in rights]
            for place, row_slots in zip(lefts, slots, strict=True):
                left = self._load(product.product.left, place, term)
                for right, slot in zip(loaded, row_slots, strict=True):
                    before = fn.load(product.vector, slot, product.vector_bytes)
                    sides = (left, right) if product.raising_dot is None else (right, left)
                    total = add_products(fn, product, before, *sides)
                    fn.store(total, slot, product.vector_bytes)

        write_loop(fn, "vector", (ZERO_I64, vectors), step, is_inner=False, is_unrolled=False)
        totals = [
            fn.load(product.vector, slot, product.vector_bytes)
            for row_slots in slots
            for slot in row_slots
        ]
        found = iter(lane_sums(fn, totals, product.lanes))
        for below in range(len(lefts)):
            own = fn.op("add nuw nsw", row, integer(below, I64))
            start = fn.op("mul nuw nsw", own, integer(product.width, I64))
            first = fn.op("add nuw nsw", start, column)
            before = None
            if self._firsts is not None:
                before = fn.load(I32, fn.element(I32, self._firsts, own), ELEMENT_BYTES)
            for beside in range(len(rights)):
                place = fn.op("add nuw nsw", first, integer(beside, I64))
                total = next(found)
                total = total if before is None else fn.op("add", before, total)
                fn.store(total, fn.element(total.type, self._sums, place), ELEMENT_BYTES)

    def _load(self, factor: Factor, start: Value, term: Value) -> Value:
        """The lanes of a vector of terms: each has a term as f32, or a pair of them."""
        fn, product = self._fn, self._product
        place = self._behind(start, fn.op("mul", term, self._item(factor)))
        if product.lane_terms > 1:
            found = fn.load(product.panel_vector, place, factor.dtype.itemsize_bytes)
            is_right = factor is product.product.right
            is_raised = is_right and product.raising_dot is not None
            return raised(fn, found) if is_raised else found
        return load_vector(fn, factor, place, product.lanes)

    def _fetch(self, rights: list[Value], term: Value, symbols: Symbols) -> None:
        """Writes what a step asks memory for: the same terms of the next group of columns."""
        fn, factor = self._fn, self._product.product.right
        item = factor.dtype.itemsize_bytes
        step = factor.along * as_expr(self._form.columns * item)
        ahead = self._context.index.write(step, symbols)
        offset = fn.op("add", ahead, fn.op("mul", term, self._item(factor)))
        for place in rights:
            write_fetch(fn, self._behind(place, offset))

    def _item(self, factor: Factor) -> Value:
        return integer(factor.dtype.itemsize_bytes, I64)

    def _behind(self, start: Value, offset: Value) -> Value:
        """An address that may be outside of the memory that it is computed from."""
        return self._fn.define("place", PTR, f"getelementptr {I8}, {start}, {offset}")
