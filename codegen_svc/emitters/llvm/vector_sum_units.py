"""The units of sums in vectors: one result or a few, whose sums stay in registers.

    for each block of terms:
        for each step of a few vectors of terms:
            for each result:
                sums of each vector += products, for each row
    for each result: what the kernel computes from its sums, and its stores

Each block has sums of its own, so rounding errors grow with the terms of a block. If results are in
a loop, their sums are in the first-level cache between the steps.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from codegen_svc.emitters.llvm.schedule import SUM_BLOCK
from codegen_svc.emitters.llvm.text import FLOAT, I64, Value, floating, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope, ValueWriter
from codegen_svc.emitters.llvm.vector_loads import STEP
from codegen_svc.emitters.llvm.vector_sums import BLOCK, VectorSums
from codegen_svc.emitters.llvm.vector_terms import VectorTerms
from kernelfarm.errors import InternalError
from kernelfarm.ir.loop_ir import Reduce

_Symbols = dict[str, Value]


class VectorSumWriter:
    """Writes units of neighbouring results.

    Running sums are arrays of vectors, by result of the unit, sum of the kernel and vector of a
    step.
    """

    def __init__(self, context: UnitContext, sums: VectorSums) -> None:
        self._context = context
        self._fn = context.fn
        self._sums = sums
        self._vector = f"<{sums.lanes} x {FLOAT}>"
        self._each = len(sums.sums) * sums.vectors
        self._totals, self._partial = (
            self._fn.alloca(wish, self._vector, max(2, sums.together * self._each))
            for wish in ("totals", "partial")
        )

    def begin(self, sizes: _Symbols) -> None:
        """Writes what precedes all units: nothing."""

    def write(self, symbols: _Symbols) -> None:
        """Writes one unit; `symbols` holds its block, the other outer axes and the sizes."""
        self._clear(self._totals)
        self._add_terms(symbols)

        def finish(result: Value) -> None:
            found = {number: self._total(result, number) for number in self._sums.sums}
            scope = Scope(self._point(symbols, result))
            self._writer(found).store_all(self._context.schedule.final_stores, scope)

        self._for_results(finish)

    def close(self) -> None:
        """Ends the writing of units."""

    def _for_results(self, write: Callable[[Value], None]) -> None:
        """Writes something for each result of the unit, by its number."""
        count = self._sums.together
        if self._sums.has_loop:
            bounds = (ZERO_I64, integer(count, I64))
            write_loop(self._fn, "result", bounds, write, is_inner=False, is_unrolled=False)
            return
        for number in range(count):
            write(integer(number, I64))

    def _point(self, symbols: _Symbols, result: Value) -> _Symbols:
        """The symbols of a result of the unit."""
        fn, sums = self._fn, self._sums
        first = fn.op("mul nuw nsw", symbols[BLOCK], integer(sums.together, I64))
        own = fn.op("add nuw nsw", first, result, wish=sums.results.name)
        return {**symbols, sums.results.name: own}

    def _slot(self, sums: Value, result: Value, number: int, vector: int) -> Value:
        """The address of a running sum."""
        fn = self._fn
        within = self._sums.sums.index(number) * self._sums.vectors + vector
        first = fn.op("mul nuw nsw", result, integer(self._each, I64))
        place = fn.op("add nuw nsw", first, integer(within, I64))
        return fn.element(self._vector, sums, place)

    def _read(self, slot: Value) -> Value:
        return self._fn.load(self._vector, slot, self._sums.vector_bytes)

    def _keep(self, value: Value, slot: Value) -> None:
        self._fn.store(value, slot, self._sums.vector_bytes)

    def _for_slots(self, write: Callable[[Value, int, int], None]) -> None:
        def each(result: Value) -> None:
            for number in self._sums.sums:
                for vector in range(self._sums.vectors):
                    write(result, number, vector)

        self._for_results(each)

    def _clear(self, sums: Value) -> None:
        zeros = Value("zeroinitializer", self._vector)
        self._for_slots(lambda *at: self._keep(zeros, self._slot(sums, *at)))

    def _add_terms(self, symbols: _Symbols) -> None:
        """Writes the loops over the terms."""
        sums, fn = self._sums, self._fn
        in_step = sums.lanes * sums.vectors
        steps, most = sums.terms.extent.constant // in_step, SUM_BLOCK // in_step
        if steps <= most:
            self._add_steps((ZERO_I64, integer(steps, I64)), symbols, self._totals)
            return

        def join(result: Value, number: int, vector: int) -> None:
            slot = self._slot(self._totals, result, number, vector)
            own = self._read(self._slot(self._partial, result, number, vector))
            self._keep(fn.op("fadd", self._read(slot), own), slot)

        def block(at: Value) -> None:
            first = fn.op("mul nuw nsw", at, integer(most, I64))
            above = fn.op("add nuw nsw", first, integer(most, I64))
            last = fn.intrinsic("smin", above, integer(steps, I64))
            self._clear(self._partial)
            self._add_steps((first, last), symbols, self._partial)
            self._for_slots(join)

        write_loop(fn, "terms", (ZERO_I64, integer(-(-steps // most), I64)), block, is_inner=False)

    def _add_steps(self, bounds: tuple[Value, Value], symbols: _Symbols, sums: Value) -> None:
        """Writes the loop over some steps."""
        fn, vectors = self._fn, self._sums.vectors

        def step(at: Value) -> None:
            before = fn.op("mul nuw nsw", at, integer(vectors, I64))
            for vector in range(vectors):
                number = fn.op("add nuw nsw", before, integer(vector, I64), wish="vector")
                self._for_results(partial(self._add_vector, symbols, sums, (number, vector)))

        write_loop(fn, "step", bounds, step, is_inner=False, is_unrolled=False)

    def _add_vector(
        self, symbols: _Symbols, sums: Value, vector: tuple[Value, int], result: Value
    ) -> None:
        """Writes what a vector adds to the sums of a result.

        `vector` is its number among all, and within its step.
        """
        fn, (at, within) = self._fn, vector
        terms = self._sums.terms.name
        first = fn.op("mul nuw nsw", at, integer(self._sums.lanes, I64), wish=terms)
        scope = Scope({**self._point(symbols, result), STEP: at, terms: first})
        values = VectorTerms(self._context, self._sums, self._writer({}), scope)
        for load in () if within else self._sums.fetched:
            values.fetch(load)
        for number in self._sums.sums:
            summed = self._context.kernel.body[number]
            assert isinstance(summed, Reduce)  # `vector_sums` has chosen them
            slot = self._slot(sums, result, number, within)
            self._keep(values.added(self._read(slot), summed.operand), slot)

    def _total(self, result: Value, number: int) -> Value:
        """A sum of a result, of all lanes and vectors."""
        fn = self._fn
        found: Value | None = None
        for vector in range(self._sums.vectors):
            own = self._read(self._slot(self._totals, result, number, vector))
            found = own if found is None else fn.op("fadd", found, own)
        name = f"llvm.vector.reduce.fadd.v{self._sums.lanes}f32"
        fn.module.declare(name, FLOAT, (FLOAT, self._vector))
        start = floating(-0.0, FLOAT)
        return fn.define(f"sum{number}", FLOAT, f"call reassoc {FLOAT} @{name}({start}, {found})")

    def _writer(self, sums: dict[int, Value]) -> ValueWriter:
        def read(number: int, scope: Scope) -> Value:
            return sums[number]

        return self._context.value_writer(read, _no_scan, lambda number, value, scope: None)


def _no_scan(number: int, scope: Scope) -> Value:
    raise InternalError(f"scan {number} in sums in vectors; expected sums alone")
