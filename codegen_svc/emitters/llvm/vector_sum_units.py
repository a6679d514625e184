"""The units of sums in vectors: groups of results, whose sums stay in registers.

    for each block of terms:
        for each group of results:
            for each step of a few vectors of terms:
                for each result:
                    sums of each vector += products, for each row
    for each group, for each result: what the kernel computes from its sums, and its stores

Each block has sums of its own, so rounding errors grow with the terms of a block. Between blocks,
and between steps if the results of a group are in a loop, sums are in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from codegen_svc.emitters.llvm.lane_sums import lane_sums
from codegen_svc.emitters.llvm.text import FLOAT, I1, I64, Value, floating, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_choice, write_loop
from codegen_svc.emitters.llvm.values import Scope, ValueWriter
from codegen_svc.emitters.llvm.vector_loads import STEP
from codegen_svc.emitters.llvm.vector_rows import CopiedRows
from codegen_svc.emitters.llvm.vector_sums import BLOCK, VectorSums
from codegen_svc.emitters.llvm.vector_terms import Ahead, VectorTerms
from kernelfarm.errors import InternalError
from kernelfarm.ir.loop_ir import Reduce

_Symbols = dict[str, Value]


@dataclass(frozen=True, slots=True)
class _Steps:
    """Steps of terms, from the first one to before the last one.

    `ahead` is how far ahead memory is asked for weights. `are_copied`: the rows of the steps have
    copies.
    """

    first: Value
    last: Value
    ahead: Ahead | None = None
    are_copied: bool = False


@dataclass(frozen=True, slots=True)
class _Place:
    """A result of a unit: its group, and its number within the group."""

    group: Value
    result: Value


class VectorSumWriter:
    """Writes units of neighbouring results.

    Running sums are arrays of vectors, by group of the unit, result of the group, sum of the kernel
    and vector of a step. A block's own sums are those of one group.
    """

    def __init__(self, context: UnitContext, sums: VectorSums) -> None:
        self._context = context
        self._fn = context.fn
        self._sums = sums
        self._division = sums.division
        self._vector = f"<{sums.lanes} x {FLOAT}>"
        self._each = len(sums.sums) * self._division.vectors
        of_group = self._division.together * self._each
        self._totals, self._partial = (
            self._fn.alloca(wish, self._vector, max(2, count))
            for wish, count in (
                ("totals", self._division.groups * of_group),
                ("partial", of_group),
            )
        )
        self._rest = None
        if sums.has_rest or self._division.apart > 1:
            one_by_one = replace(sums, division=sums.division.one_by_one)
            self._rest = VectorSumWriter(context, one_by_one)
        self._rows = CopiedRows(context, sums) if self._division.groups > 1 else None

    def begin(self, sizes: _Symbols) -> None:
        """Writes what precedes all units: nothing."""

    def write(self, symbols: _Symbols) -> None:
        """Writes one unit; `symbols` holds its block, the other outer axes and the sizes."""
        single = self._rest
        if single is None:
            self._write_whole(symbols)
            return
        if self._division.apart > 1:
            self._write_apart(symbols, single)
            return
        fn, of_unit = self._fn, integer(self._division.unit_results, I64)
        first = fn.op("mul nuw nsw", symbols[BLOCK], of_unit, wish="first")
        extent = self._context.index.write(self._sums.results.extent, symbols)
        left = fn.op("sub nsw", extent, first, wish="left")
        is_whole = fn.compare("icmp", "sge", left, of_unit, wish="is_whole")
        once = fn.select(is_whole, integer(1, I64), ZERO_I64)
        rest = fn.select(is_whole, ZERO_I64, left)

        def result(at: Value) -> None:
            own = fn.op("add nuw nsw", first, at, wish="single")
            single.write({**symbols, BLOCK: own})

        write_loop(
            fn,
            "whole",
            (ZERO_I64, once),
            lambda _: self._write_whole(symbols),
            is_inner=False,
            is_unrolled=False,
        )
        write_loop(fn, "rest", (ZERO_I64, rest), result, is_inner=False, is_unrolled=False)

    def _write_apart(self, symbols: _Symbols, single: VectorSumWriter) -> None:
        """Writes a unit whose results are computed one by one."""
        fn, of_unit = self._fn, integer(self._division.unit_results, I64)
        first = fn.op("mul nuw nsw", symbols[BLOCK], of_unit, wish="first")
        extent = self._context.index.write(self._sums.results.extent, symbols)
        count = fn.intrinsic("smin", fn.op("sub nsw", extent, first, wish="left"), of_unit)

        def result(at: Value) -> None:
            own = fn.op("add nuw nsw", first, at, wish="single")
            single.write({**symbols, BLOCK: own})

        write_loop(fn, "apart", (ZERO_I64, count), result, is_inner=False, is_unrolled=False)

    def _write_whole(self, symbols: _Symbols) -> None:
        """Writes a unit that has all results."""
        condition = self._sums.needed_if
        if condition is None:
            self._write_sums(symbols)
            return
        scope = Scope(self._point(symbols, _Place(ZERO_I64, ZERO_I64)))
        zeros = dict.fromkeys(self._sums.sums, floating(0.0, FLOAT))
        writer = self._writer(zeros)
        is_needed = writer.value(condition, scope)

        def skip() -> None:
            scope.values[condition] = integer(0, I1)
            writer.store_all(self._context.schedule.final_stores, scope)

        write_choice(self._fn, "needed", is_needed, lambda: self._write_sums(symbols), skip)

    def _write_sums(self, symbols: _Symbols) -> None:
        """Writes the sums of a unit, and what the kernel computes from them."""
        self._for_groups(partial(self._clear, self._totals))
        self._add_terms(symbols)
        self._for_groups(partial(self._finish, symbols))

    def close(self) -> None:
        """Ends the writing of units."""

    def _finish(self, symbols: _Symbols, group: Value) -> None:
        """Writes what the kernel computes from the sums of a group, and its stores."""
        places = [_Place(group, integer(n, I64)) for n in range(self._division.together)]
        if self._division.has_loop:
            self._for_results(group, lambda place: self._finish_results(symbols, [place]))
        else:
            self._finish_results(symbols, places)

    def _finish_results(self, symbols: _Symbols, places: list[_Place]) -> None:
        numbers = self._sums.sums
        vectors = [self._total(place, number) for place in places for number in numbers]
        found = lane_sums(self._fn, vectors, self._sums.lanes)
        for at, place in enumerate(places):
            own = found[at * len(numbers) : (at + 1) * len(numbers)]
            scope = Scope(self._point(symbols, place))
            writer = self._writer(dict(zip(numbers, own, strict=True)))
            writer.store_all(self._context.schedule.final_stores, scope)

    def _for_groups(self, write: Callable[[Value], None]) -> None:
        """Writes something for each group of the unit, by its number."""
        count = self._division.groups
        if count == 1:
            write(ZERO_I64)
            return
        bounds = (ZERO_I64, integer(count, I64))
        write_loop(self._fn, "group", bounds, write, is_inner=False, is_unrolled=False)

    def _for_results(self, group: Value, write: Callable[[_Place], None]) -> None:
        """Writes something for each result of a group."""
        count = self._division.together
        if self._division.has_loop:
            write_loop(
                self._fn,
                "result",
                (ZERO_I64, integer(count, I64)),
                lambda result: write(_Place(group, result)),
                is_inner=False,
                is_unrolled=False,
            )
            return
        for number in range(count):
            write(_Place(group, integer(number, I64)))

    def _point(self, symbols: _Symbols, place: _Place) -> _Symbols:
        """The symbols of a result of the unit."""
        fn, sums, together = self._fn, self._sums, integer(self._division.together, I64)
        before = fn.op("mul nuw nsw", symbols[BLOCK], integer(self._division.groups, I64))
        group = fn.op("add nuw nsw", before, place.group, wish="group")
        first = fn.op("mul nuw nsw", group, together)
        own = fn.op("add nuw nsw", first, place.result, wish=sums.results.name)
        return {**symbols, sums.results.name: own}

    def _slot(self, sums: Value, place: _Place, number: int, vector: int) -> Value:
        """The address of a running sum."""
        fn = self._fn
        within = self._sums.sums.index(number) * self._division.vectors + vector
        before = fn.op("mul nuw nsw", place.group, integer(self._division.together, I64))
        result = fn.op("add nuw nsw", before, place.result)
        first = fn.op("mul nuw nsw", result, integer(self._each, I64))
        at = fn.op("add nuw nsw", first, integer(within, I64))
        return fn.element(self._vector, sums, at)

    def _read(self, slot: Value) -> Value:
        return self._fn.load(self._vector, slot, self._sums.vector_bytes)

    def _keep(self, value: Value, slot: Value) -> None:
        self._fn.store(value, slot, self._sums.vector_bytes)

    def _for_slots(self, group: Value, write: Callable[[_Place, int, int], None]) -> None:
        def each(place: _Place) -> None:
            for number in self._sums.sums:
                for vector in range(self._division.vectors):
                    write(place, number, vector)

        self._for_results(group, each)

    def _clear(self, sums: Value, group: Value) -> None:
        zeros = Value("zeroinitializer", self._vector)
        self._for_slots(group, lambda *at: self._keep(zeros, self._slot(sums, *at)))

    def _add_terms(self, symbols: _Symbols) -> None:
        """Writes the loops over the terms."""
        sums, fn = self._sums, self._fn
        in_step, most = sums.vector_terms * self._division.vectors, self._division.block_steps
        steps = sums.terms.extent.constant // in_step
        if steps <= most:
            all_, totals = _Steps(ZERO_I64, integer(steps, I64)), self._totals
            self._for_groups(lambda group: self._add_steps(all_, symbols, (totals, group)))
            return

        def join(group: Value, result: _Place, number: int, vector: int) -> None:
            slot = self._slot(self._totals, _Place(group, result.result), number, vector)
            own = self._read(self._slot(self._partial, result, number, vector))
            self._keep(fn.op("fadd", self._read(slot), own), slot)

        def block(at: Value) -> None:
            first = fn.op("mul nuw nsw", at, integer(most, I64))
            above = fn.op("add nuw nsw", first, integer(most, I64))
            last = fn.intrinsic("smin", above, integer(steps, I64))

            if self._rows is not None:
                vectors = integer(self._division.vectors, I64)
                bounds = [fn.op("mul nuw nsw", step, vectors) for step in (first, last)]
                self._rows.fill(bounds[0], bounds[1], symbols)

            def add_group(group: Value) -> None:
                self._clear(self._partial, ZERO_I64)
                ahead = self._ahead(group, first, integer(steps, I64))
                own = _Steps(first, last, ahead, are_copied=self._rows is not None)
                self._add_steps(own, symbols, (self._partial, group))
                self._for_slots(ZERO_I64, partial(join, group))

            self._for_groups(add_group)

        write_loop(fn, "terms", (ZERO_I64, integer(-(-steps // most), I64)), block, is_inner=False)

    def _ahead(self, group: Value, first: Value, steps: Value) -> Ahead | None:
        """The distance to what the group reads that is `ahead_groups` after a group of a block.

        Behind the last group of a block is the first one of the next block, and behind the last
        block of the unit is the first one of the next unit. `first` is the block's first step.
        """
        fn, division = self._fn, self._division
        if not division.ahead_groups:
            return None
        in_step = integer(self._sums.vector_terms * division.vectors, I64)
        block = integer(division.block_steps, I64)
        following = fn.op("add nuw nsw", first, block)
        is_last = fn.compare("icmp", "sge", following, steps)
        back = fn.op("sub nsw", ZERO_I64, first)
        further = integer(division.ahead_groups * division.together, I64)
        again = integer((division.ahead_groups - division.groups) * division.together, I64)
        own = fn.op("add nuw nsw", group, integer(division.ahead_groups, I64))
        is_behind = fn.compare("icmp", "sge", own, integer(division.groups, I64))
        beside = fn.select(is_last, further, again)
        results = fn.select(is_behind, beside, further)
        below = fn.select(is_last, back, block)
        terms = fn.op("mul nsw", fn.select(is_behind, below, ZERO_I64), in_step)
        return Ahead(results, terms)

    def _add_steps(self, steps: _Steps, symbols: _Symbols, into: tuple[Value, Value]) -> None:
        """Writes the loop over some steps, which adds to the sums of a group.

        `into` are the sums, and the group's number; a block's own sums have no groups.
        """
        fn, vectors, (sums, group) = self._fn, self._division.vectors, into

        def step(at: Value) -> None:
            before = fn.op("mul nuw nsw", at, integer(vectors, I64))
            for vector in range(vectors):
                number = fn.op("add nuw nsw", before, integer(vector, I64), wish="vector")
                add = partial(self._add_vector, steps, symbols, sums, (number, vector))
                self._for_results(group, add)

        bounds = (steps.first, steps.last)
        write_loop(fn, "step", bounds, step, is_inner=False, is_unrolled=False)

    def _add_vector(
        self,
        steps: _Steps,
        symbols: _Symbols,
        sums: Value,
        vector: tuple[Value, int],
        place: _Place,
    ) -> None:
        """Writes what a vector adds to the sums of a result.

        `vector` is its number among all, and within its step.
        """
        fn, (at, within) = self._fn, vector
        terms = self._sums.terms.name
        first = fn.op("mul nuw nsw", at, integer(self._sums.vector_terms, I64), wish=terms)
        scope = Scope({**self._point(symbols, place), STEP: at, terms: first})
        copies: dict[int, Value] = {}
        if self._rows is not None and steps.are_copied:
            start = fn.op("mul nuw nsw", steps.first, integer(self._division.vectors, I64))
            copies = self._rows.places(fn.op("sub nuw nsw", at, start))
        own = _Place(ZERO_I64, place.result) if sums is self._partial else place
        values = VectorTerms(self._context, self._sums, self._writer({}), scope, copies)
        is_fetched = within == 0 or self._sums.needed_if is not None
        for load in self._sums.fetched if is_fetched else ():
            values.fetch(load, steps.ahead)
        for number in self._sums.sums:
            summed = self._context.kernel.body[number]
            assert isinstance(summed, Reduce)  # `vector_sums` has chosen them
            slot = self._slot(sums, own, number, within)
            self._keep(values.added(self._read(slot), summed.operand), slot)

    def _total(self, place: _Place, number: int) -> Value:
        """A sum of a result, in each lane."""
        fn = self._fn
        found: Value | None = None
        for vector in range(self._division.vectors):
            own = self._read(self._slot(self._totals, place, number, vector))
            found = own if found is None else fn.op("fadd", found, own)
        assert found is not None  # a step has a vector at least
        return found

    def _writer(self, sums: dict[int, Value]) -> ValueWriter:
        def read(number: int, scope: Scope) -> Value:
            return sums[number]

        return self._context.value_writer(read, _no_scan, lambda number, value, scope: None)


def _no_scan(number: int, scope: Scope) -> Value:
    raise InternalError(f"scan {number} in sums in vectors; expected sums alone")
