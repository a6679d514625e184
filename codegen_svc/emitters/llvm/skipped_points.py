"""The steps of points of a reduction over lanes, without those that add 0 to all sums.

    if a point of a group changes sums:
        if all do: one loop over lanes for all points
        else:      a loop over lanes for each that does

Each point that does asks memory for what the same point reads in the next row: behind it may be
points that nothing reads, but rows have the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, reduce

from codegen_svc.emitters.llvm.element_types import memory_type
from codegen_svc.emitters.llvm.next_panels import LINE_BYTES, write_fetch
from codegen_svc.emitters.llvm.text import I1, I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_choice, write_loop
from codegen_svc.emitters.llvm.values import Scope, ValueWriter
from kernelfarm.ir.loop_ir import Axis, Load

WritePoints = Callable[[Value, int], None]
"""Writes the steps of so many points from the first one."""
Step = Callable[[Sequence[Value], Mapping[int, Value]], None]
"""Writes one loop over lanes for points of an axis, with values that are known there."""


def write_points(fn: FunctionText, axis: Axis, step: Step, start: Value, points: int) -> None:
    """Writes the steps of all points."""
    step(_places(fn, axis, start, points), {})


class SkippedPoints:
    """Writes the steps of points where `condition` holds, for the rows and lanes of a scope."""

    def __init__(
        self, context: UnitContext, axis: Axis, condition: int, writer: ValueWriter, scope: Scope
    ) -> None:
        self._context = context
        self._fn = context.fn
        self._axis = axis
        self._condition = condition
        self._writer = writer
        self._scope = scope

    def writing(self, step: Step, first_lane: Value) -> WritePoints:
        """What writes the steps; `first_lane` is the first one of the block."""
        return partial(self._write, step, first_lane)

    def _write(self, step: Step, first_lane: Value, start: Value, points: int) -> None:
        fn = self._fn
        places = _places(fn, self._axis, start, points)
        changes = [
            self._writer.value(self._condition, self._scope.inner(**{self._axis.name: at}))
            for at in places
        ]
        do_all, does_any = (reduce(partial(fn.op, name), changes) for name in ("and", "or"))

        def together() -> None:
            for at in places:
                self._fetch(at, first_lane)
            step(places, {self._condition: integer(1, I1)})

        def one(k: Value) -> None:
            self._write(step, first_lane, fn.op("add nsw", start, k), 1)

        def one_by_one() -> None:
            bounds = (ZERO_I64, integer(points, I64))
            write_loop(fn, self._axis.name, bounds, one, is_inner=False, is_unrolled=False)

        def some() -> None:
            if points == 1:
                together()
            else:
                write_choice(fn, "all", do_all, together, one_by_one)

        write_choice(fn, "any", does_any, some, lambda: None)

    def _fetch(self, at: Value, first_lane: Value) -> None:
        """Asks memory for what the lanes of a point read in the next row."""
        context, fn = self._context, self._fn
        lane = context.schedule.lane
        assert lane is not None  # there is a loop over lanes
        for load, row in self._loads(lane):
            symbols = {**self._scope.symbols, self._axis.name: at, lane.name: first_lane}
            symbols[row] = fn.op("add nsw", symbols[row], integer(1, I64), wish=f"{row}.next")
            dtype = context.kernel.param(load.param).dtype
            position = context.index.write(load.index, symbols)
            start = fn.element(memory_type(dtype), context.buffers[load.param], position)
            lanes = context.schedule.lane_block
            if lane.extent.is_constant:
                lanes = min(lanes, lane.extent.constant)
            for line in range(0, lanes * dtype.itemsize_bytes, LINE_BYTES):
                write_fetch(fn, fn.element("i8", start, integer(line, I64)))

    def _loads(self, lane: Axis) -> Iterator[tuple[Load, str]]:
        """What differs between points and lanes, with the last axis of rows that has others."""
        rows = [axis.name for axis in self._context.schedule.rows]
        for load in self._context.kernel.body:
            symbols = load.index.symbols if isinstance(load, Load) else frozenset()
            named = [row for row in rows if row in symbols]
            if isinstance(load, Load) and named and {lane.name, self._axis.name} <= symbols:
                yield load, named[-1]


def _places(fn: FunctionText, axis: Axis, start: Value, points: int) -> list[Value]:
    return [fn.op("add nsw", start, integer(k, I64), wish=f"{axis.name}.at") for k in range(points)]
