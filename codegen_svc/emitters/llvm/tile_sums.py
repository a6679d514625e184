"""The sums of one tile: products of a few rows of the left factor by a panel, in registers.

A step of the loop multiplies a term, or a pair of terms, of each row by the panel's vectors of it.
Rows of 16 bits that are not multiplied in pairs are converted to f32 before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codegen_svc.emitters.llvm.byte_sums import add_halves, load_first_bytes, raised
from codegen_svc.emitters.llvm.dots import add_dots
from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.panels import (
    Panel,
    load_element,
    load_single,
    load_vector,
    steps_of,
)
from codegen_svc.emitters.llvm.stored_panels import StoredPanel
from codegen_svc.emitters.llvm.text import FLOAT, I32, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.tiles import ELEMENT_BYTES, TiledProduct
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ONE

# Sums of a tile, which LLVM keeps in registers.
_SLOT_BYTES = 8
StepStart = Callable[[Value], None]
"""Writes what a step does besides its products."""
_LoadLane = Callable[[Value, Value], Value]
"""Writes the load of a row's lane of a step, from where the row begins."""


def add_products(
    fn: FunctionText, product: TiledProduct, before: Value, left: Value, right: Value
) -> Value:
    """Sums with the products of two vectors, lane by lane: of all terms that a lane has."""
    if product.dot is not None:
        return add_dots(fn, product.dot, before, left, right)
    name = f"llvm.fma.v{product.lanes}f32"
    return fn.call_external(name, product.vector, left, right, before)


class TileSums:
    """Writes the sums of tiles by a panel."""

    def __init__(
        self, context: UnitContext, product: TiledProduct, panel: Panel | StoredPanel
    ) -> None:
        self._fn = context.fn
        self._product = product
        self._panel = panel
        left = product.product.left
        self._firsts = None
        if product.raising_dot is not None:
            self._firsts = self._fn.alloca("column.firsts", I32, product.width)
        self._wide_rows = None
        is_narrow = product.lane_terms == 1 and left.dtype is not DType.F32
        if is_narrow and left.inner is ONE:
            count = product.height * product.slice_terms
            self._wide_rows = self._fn.alloca("rows", FLOAT, count)

    def write(
        self, starts: Sequence[Value], inner: Value, count: Value, step_start: StepStart | None
    ) -> list[list[Value]]:
        """Writes the loops over `count` terms; the results are vectors of each row's sums.

        `starts` are the addresses of the rows' first terms, `inner` is the step between their
        terms, in elements. `step_start` writes what each step does before its products.
        """
        fn, product = self._fn, self._product
        dtype = product.product.left.dtype
        if self._wide_rows is not None:
            starts, inner, dtype = self._widened(starts, count), integer(1, I64), DType.F32
        slots = [[fn.alloca("total", product.vector) for _ in self._columns()] for _ in starts]
        for row_slots in slots:
            for first, slot in zip(self._first(), row_slots, strict=True):
                fn.store(first, slot, _SLOT_BYTES)
        for bounds, load in self._loops(count, inner, dtype):

            def step(at: Value, load: _LoadLane = load) -> None:
                if step_start is not None:
                    step_start(at)
                self._add_step(at, [(start, load) for start in starts], slots)

            together = product.steps_together
            write_loop(fn, "term", bounds, step, is_inner=False, together=together)
        return [[fn.load(product.vector, slot, _SLOT_BYTES) for slot in row] for row in slots]

    def begin(self, count: Value) -> None:
        """Writes what sums by a panel of `count` terms start at: -128 times its sums, of bytes."""
        fn, product, dot = self._fn, self._product, self._product.raising_dot
        if self._firsts is None or dot is None:
            return
        slots = [fn.alloca("column.total", product.vector) for _ in self._columns()]
        for slot in slots:
            fn.store(Value("zeroinitializer", product.vector), slot, _SLOT_BYTES)

        def step(at: Value) -> None:
            for column, slot in zip(self._columns(), slots, strict=True):
                place = self._panel.at(at, column)
                found = fn.load(product.panel_vector, place, self._panel.alignment)
                before = fn.load(product.vector, slot, _SLOT_BYTES)
                fn.store(add_halves(fn, dot, before, found), slot, _SLOT_BYTES)

        bounds = (ZERO_I64, steps_of(fn, product, count)[1])
        write_loop(fn, "summed", bounds, step, is_inner=False, is_unrolled=False)
        for number, slot in enumerate(slots):
            total = fn.load(product.vector, slot, _SLOT_BYTES)
            first = fn.op("sub", Value("zeroinitializer", product.vector), total)
            place = fn.element(product.vector, self._firsts, integer(number, I64))
            fn.store(first, place, product.vector_bytes)

    def _first(self) -> list[Value]:
        """What the sums of a row start at."""
        fn, product = self._fn, self._product
        if self._firsts is None:
            return [Value("zeroinitializer", product.vector)] * product.vectors
        places = [
            fn.element(product.vector, self._firsts, integer(number, I64))
            for number in range(product.vectors)
        ]
        return [fn.load(product.vector, place, product.vector_bytes) for place in places]

    def _columns(self) -> list[Value]:
        product = self._product
        return [integer(part * product.lanes, I64) for part in range(product.vectors)]

    def _loops(
        self, count: Value, inner: Value, dtype: DType
    ) -> list[tuple[tuple[Value, Value], _LoadLane]]:
        """The bounds of each loop over steps, and how it loads a lane of a row."""
        if self._product.lane_terms == 1:
            return [((ZERO_I64, count), self._load_term(inner, dtype))]
        whole, all_ = steps_of(self._fn, self._product, count)
        loops: list[tuple[tuple[Value, Value], _LoadLane]] = [((ZERO_I64, whole), self._load_lane)]
        if self._product.has_rest:
            loops.append(((whole, all_), self._load_rest))
        return loops

    def _add_step(
        self, at: Value, rows: list[tuple[Value, _LoadLane]], slots: list[list[Value]]
    ) -> None:
        fn, product = self._fn, self._product
        places = [self._panel.at(at, column) for column in self._columns()]
        rights = [
            fn.load(product.panel_vector, place, self._panel.alignment, wish="right")
            for place in places
        ]
        for (start, load), row_slots in zip(rows, slots, strict=True):
            left = self._spread(load(start, at))
            if product.raising_dot is not None:
                left = raised(fn, left)
            for right, slot in zip(rights, row_slots, strict=True):
                before = fn.load(product.vector, slot, _SLOT_BYTES)
                fn.store(add_products(fn, product, before, left, right), slot, _SLOT_BYTES)

    def _load_term(self, inner: Value, dtype: DType) -> _LoadLane:
        """How an element is loaded as f32."""
        fn = self._fn

        def load(start: Value, term: Value) -> Value:
            position = term if inner.text == "1" else fn.op("mul nsw", term, inner)
            return load_element(fn, dtype, fn.element(memory_type(dtype), start, position))

        return load

    def _load_lane(self, start: Value, step: Value) -> Value:
        place = self._fn.element(I32, start, step)
        return self._fn.load(I32, place, self._product.product.left.dtype.itemsize_bytes)

    def _load_rest(self, start: Value, step: Value) -> Value:
        fn, product = self._fn, self._product
        place = fn.element(I32, start, step)
        if product.is_paired:
            return load_single(fn, place)
        return load_first_bytes(fn, place, product.terms.extent.constant % product.lane_terms)

    def _spread(self, lane: Value) -> Value:
        """A vector of equal lanes."""
        fn, vector = self._fn, self._product.panel_vector
        one = fn.define("", vector, f"insertelement {vector} poison, {lane}, {I32} 0")
        mask = f"<{self._product.lanes} x i32> zeroinitializer"
        return fn.define("", vector, f"shufflevector {one}, {vector} poison, {mask}")

    def _widened(self, starts: Sequence[Value], count: Value) -> list[Value]:
        """The addresses of a tile's rows of the left factor as f32, which are converted before."""
        fn, product = self._fn, self._product
        assert self._wide_rows is not None  # the caller has asked
        lanes, wide_rows = integer(product.lanes, I64), self._wide_rows
        factor = product.product.left
        kind = memory_type(factor.dtype)
        whole = fn.op("mul nuw nsw", fn.op("udiv", count, lanes), lanes, wish="terms.whole")
        rows = [
            fn.element(FLOAT, wide_rows, integer(row * product.slice_terms, I64))
            for row in range(len(starts))
        ]

        def vector(number: Value) -> None:
            at = fn.op("mul nuw nsw", number, lanes)
            for start, row in zip(starts, rows, strict=True):
                found = load_vector(fn, factor, fn.element(kind, start, at), product.lanes)
                fn.store(found, fn.element(FLOAT, row, at), ELEMENT_BYTES)

        def single(at: Value) -> None:
            for start, row in zip(starts, rows, strict=True):
                found = load_element(fn, factor.dtype, fn.element(kind, start, at))
                fn.store(found, fn.element(FLOAT, row, at), ELEMENT_BYTES)

        vectors = (ZERO_I64, fn.op("udiv", count, lanes, wish="vectors"))
        write_loop(fn, "widened", vectors, vector, is_inner=False)
        write_loop(fn, "widened", (whole, count), single, is_inner=False)
        return rows
