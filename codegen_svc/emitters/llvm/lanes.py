"""A unit that is a block of lanes: the innermost loop of every phase runs over part of an axis.

Pointwise kernels have no phases, only a last loop that stores. With a reduction, a stack array
holds the running value of each lane. Costly values that depend on the lane alone are computed
before the first unit (`lane_constants.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

from codegen_svc.emitters.llvm.accumulate import (
    accumulator_dtype,
    combine,
    identity,
    start_value,
)
from codegen_svc.emitters.llvm.element_types import convert
from codegen_svc.emitters.llvm.lane_array import LaneArray
from codegen_svc.emitters.llvm.lane_ranges import (
    LaneRange,
    lane_ranges,
    row_ranges,
    usual_conditions,
)
from codegen_svc.emitters.llvm.running_lanes import RunningReductions, RunningScans, lane_array
from codegen_svc.emitters.llvm.scan import ScanState
from codegen_svc.emitters.llvm.schedule import (
    SUM_OF_LANES_BLOCK,
    Accumulator,
    Phase,
    value_dtype,
)
from codegen_svc.emitters.llvm.skipped_points import SkippedPoints, WritePoints, write_points
from codegen_svc.emitters.llvm.skipped_terms import adding_if
from codegen_svc.emitters.llvm.text import I1, I64, Value, integer
from codegen_svc.emitters.llvm.turned_tiles import LANE, ROW, TurnedTile
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope
from kernelfarm.ir.loop_ir import Axis, Load

LaneBody = Callable[[Scope], None]
# Points of a reduction that one loop over lanes takes. A column sum of 4096 x 768 f32 took 1.8
# times as long with one: each vector of running values was loaded and stored for each point.
_POINTS: Final = 4
# With fewer points, or more statements at each point, the longer code does not pay.
_MANY_POINTS: Final = 16
_MAX_REPEATED: Final = 24


class LaneWriter:
    """Writes units that are blocks of lanes."""

    def __init__(self, context: UnitContext, lane: Axis) -> None:
        self._context = context
        self._fn = context.fn
        self._lane = lane
        self._accumulators = context.accumulators()
        self._running = RunningReductions(context)
        self._scans = RunningScans(context)
        self._first = self._width = ZERO_I64
        kernel = context.kernel
        self._ranges = lane_ranges(kernel, lane)
        self._usual = usual_conditions(kernel, lane, len(self._ranges))
        self._rows = None if self._usual else row_ranges(kernel, lane, len(self._ranges))
        self._can_repeat = context.can_repeat_stores
        self._writer = context.value_writer(
            self._read_reduction, self._scans.step, lambda n, value, scope: None
        )
        tiles = {n: TurnedTile(context, n) for n in context.schedule.turned}
        self._loaded = {n: t for n, t in tiles.items() if isinstance(kernel.body[n], Load)}
        self._stored = {n: t for n, t in tiles.items() if n not in self._loaded}
        self._writer.kept.update((n, tile.value) for n, tile in self._loaded.items())
        self._writer.placed.update((n, tile.address) for n, tile in self._stored.items())

    def begin(self, sizes: dict[str, Value]) -> None:
        """Writes what precedes all units: the values that depend on the lane alone."""
        kernel, fn, lane = self._context.kernel, self._fn, self._lane
        kept = []
        for number in self._context.schedule.lane_constants:
            dtype = value_dtype(kernel, number)
            kept.append(LaneArray(fn, number, dtype, lane))
        if not kept:
            return

        def point(i: Value) -> None:
            scope = Scope({**sizes, lane.name: i})
            for each in kept:
                each.write(self._writer.value(each.number, scope), scope)

        extent = (ZERO_I64, integer(lane.extent.as_int(), I64))
        write_loop(fn, f"{lane.name}.kept", extent, point, is_inner=True)
        self._writer.kept.update((each.number, each.read) for each in kept)

    def write(self, symbols: dict[str, Value]) -> None:
        """Writes one unit; `symbols` has the other outer axes, the block's number and the sizes."""
        scope = Scope(dict(symbols))
        schedule = self._context.schedule
        self._first, self._width = self._block(self._lane, schedule.lane_block, scope)
        if schedule.turned:
            self._write_tile(scope)
            return
        for phase in schedule.phases:
            self._write_phase(phase, scope)
        if schedule.final_stores:
            self._write_versions(scope)

    def close(self) -> None:
        """Ends the writing of units; it has no memory to free."""

    def _block(self, axis: Axis, size: int, scope: Scope) -> tuple[Value, Value]:
        """The first point of an axis in a block, and the number of its points there."""
        fn = self._fn
        number = scope.symbols[f"{axis.name}_block"]
        first = fn.op("mul nsw", number, integer(size, I64), wish=f"{axis.name}.first")
        width = integer(size, I64)
        if axis.extent.is_constant and axis.extent.constant % size == 0:
            return first, width
        extent = self._context.index.write(axis.extent, scope.symbols)
        left = fn.op("sub nsw", extent, first, wish=f"{axis.name}.left")
        return first, fn.intrinsic("smin", left, width, wish=f"{axis.name}.width")

    def _write_tile(self, scope: Scope) -> None:
        """Writes a unit of several rows, with the copies of turned accesses before and after."""
        schedule = self._context.schedule
        row = schedule.rows[-1]
        first_row, rows = self._block(row, schedule.tile_rows, scope)
        corner, size = (first_row, self._first), (rows, self._width)
        for tile in self._loaded.values():
            tile.fill(scope, corner, size)

        def one_row(i: Value) -> None:
            at = self._fn.op("add nsw", first_row, i, wish=f"{row.name}.at")
            self._write_versions(scope.inner(**{row.name: at, ROW: i}))

        write_loop(self._fn, row.name, (ZERO_I64, rows), one_row, is_inner=False)
        for tile in self._stored.values():
            tile.drain(scope, corner, size)

    def _write_versions(self, scope: Scope) -> None:
        """Writes the loops of the last stores: for rows on which no condition matters, and others.

        Such rows lie inside an image whose windows have padding.
        """
        fn = self._fn
        if self._rows is not None:
            self._over_rows(*self._rows, scope)
            return
        if not self._usual:
            self._over_ranges(scope)
            return
        names = {part: fn.name(f"rows.{part}") for part in ("usual", "other", "end")}
        is_usual = self._writer.value(self._usual[0], scope)
        for number in self._usual[1:]:
            is_usual = fn.op("and", is_usual, self._writer.value(number, scope), wish="is_usual")
        fn.branch_if(is_usual, names["usual"], names["other"])
        fn.start_block(names["usual"])
        usual = scope.inner()
        usual.values.update((number, integer(1, I1)) for number in self._usual)
        self._over_ranges(usual)
        fn.branch(names["end"])
        fn.start_block(names["other"])
        self._over_ranges(scope.at_border())
        fn.branch(names["end"])
        fn.start_block(names["end"])

    def _over_rows(self, axis: Axis, ranges: Sequence[LaneRange], scope: Scope) -> None:
        """Writes a version of the loops for each range of another axis."""
        fn, at = self._fn, scope.symbols[axis.name]
        end = fn.name("rows.end")
        for number, each in enumerate(ranges):
            if number < len(ranges) - 1:
                here, others = fn.name("rows.range"), fn.name("rows.others")
                is_here = fn.compare("icmp", "slt", at, integer(each.last, I64), wish="is_here")
                fn.branch_if(is_here, here, others)
                fn.start_block(here)
            inside = scope.inner()
            inside.values.update((n, integer(int(holds), I1)) for n, holds in each.known)
            self._over_ranges(inside)
            fn.branch(end)
            if number < len(ranges) - 1:
                fn.start_block(others)
        fn.start_block(end)

    def _over_ranges(self, scope: Scope) -> None:
        """Writes the last stores; those of functions with a usual way again if it did not fit."""
        if not self._can_repeat:
            self._store_ranges(scope)
            return
        fn, library = self._fn, self._context.library
        library.begin_usual(fn)
        self._store_ranges(scope.inner())
        is_beyond = library.end_usual(fn)
        again, end = fn.name("again"), fn.name("again.end")
        fn.branch_if(is_beyond, again, end)
        fn.start_block(again)
        self._store_ranges(scope.inner())
        fn.branch(end)
        fn.start_block(end)

    def _store_ranges(self, scope: Scope) -> None:
        """Writes the last stores in one loop for each range of lanes with known comparisons."""
        stores = self._context.schedule.final_stores

        def store(inner: Scope) -> None:
            self._writer.store_all(stores, inner)

        if not self._ranges:
            self._over_lanes(scope, store)
            return
        for each in self._ranges:
            inside = scope.inner()
            inside.values.update((n, integer(int(holds), I1)) for n, holds in each.known)
            self._over_lanes(inside, store, (each.first, each.last))

    def _over_lanes(
        self, scope: Scope, body: LaneBody, bounds: tuple[int, int] | None = None
    ) -> None:
        """Writes a loop over the block's lanes; `bounds` are the first lane and the end of some."""
        fn, lane = self._fn, self._lane

        def point(i: Value) -> None:
            at = fn.op("add nsw", self._first, i, wish=f"{lane.name}.at")
            body(scope.inner(**{lane.name: at, LANE: i}))

        lower, upper = ZERO_I64, self._width
        if bounds is not None:
            lower, upper = (self._in_block(bound) for bound in bounds)
        write_loop(fn, lane.name, (lower, upper), point, is_inner=True)

    def _in_block(self, at: int) -> Value:
        """A lane's position in the block, or the end of the block that is nearer to it."""
        fn, extent = self._fn, self._lane.extent
        if extent.is_constant and extent.constant == self._context.schedule.lane_block:
            return integer(at, I64)
        offset = fn.op("sub nsw", integer(at, I64), self._first, wish=f"{self._lane.name}.from")
        inside = fn.intrinsic("smax", offset, ZERO_I64)
        return fn.intrinsic("smin", inside, self._width)

    def _write_phase(self, phase: Phase, scope: Scope) -> None:
        size = self._context.schedule.lane_block
        self._running.allocate(phase.accumulators, size)
        scans = self._context.scans(phase, frozenset())
        self._scans.allocate(scans, size)
        if phase.accumulators or scans:
            self._over_lanes(scope, lambda inner: self._start(phase, scans, inner))
        self._nest(phase, 0, scope)

    def _nest(self, phase: Phase, level: int, scope: Scope) -> None:
        axes = self._context.schedule.reduction
        if level == len(axes):
            self._over_lanes(scope, lambda inner: self._step(phase, inner))
            return
        axis = axes[level]
        extent = self._context.index.write(axis.extent, scope.symbols)
        in_blocks = self._in_blocks(phase, axis) if level == len(axes) - 1 else []
        if in_blocks:
            self._over_blocks(phase, in_blocks, extent, scope)
            return
        if level == len(axes) - 1:
            self._over_points(phase, ZERO_I64, extent, scope)
            return

        def iteration(i: Value) -> None:
            self._nest(phase, level + 1, scope.inner(**{axis.name: i}))

        write_loop(self._fn, axis.name, (ZERO_I64, extent), iteration, is_inner=False)

    def _over_points(self, phase: Phase, first: Value, count: Value, scope: Scope) -> None:
        """Takes points of the last reduction axis; a few in one loop over lanes, if possible.

        Then the running values stay in registers for these points.
        """
        fn, axis = self._fn, self._context.schedule.reduction[-1]
        write = self._points(phase, axis, scope)

        def group(number: Value) -> None:
            offset = fn.op("mul nsw", number, integer(_POINTS, I64), wish=f"{axis.name}.offset")
            write(fn.op("add nsw", first, offset, wish=f"{axis.name}.first"), _POINTS)

        def single(number: Value) -> None:
            write(fn.op("add nsw", first, number, wish=f"{axis.name}.single"), 1)

        start = ZERO_I64
        if self._takes_several(phase, axis):
            groups = fn.op("udiv", count, integer(_POINTS, I64), wish=f"{axis.name}.groups")
            write_loop(fn, f"{axis.name}.group", (start, groups), group, is_inner=False)
            start = fn.op("mul nsw", groups, integer(_POINTS, I64), wish=f"{axis.name}.rest")
        write_loop(fn, axis.name, (start, count), single, is_inner=False)

    def _points(self, phase: Phase, axis: Axis, scope: Scope) -> WritePoints:
        """What writes the steps of some points of an axis, if they change sums."""

        def step(places: Sequence[Value], known: Mapping[int, Value]) -> None:
            def lanes(inner: Scope) -> None:
                for at in places:
                    point = inner.inner(**{axis.name: at})
                    point.values.update(known)
                    self._step(phase, point)

            self._over_lanes(scope, lanes)

        condition = adding_if(self._context.kernel, phase, self._lane)
        if condition is None or self._scans:
            return partial(write_points, self._fn, axis, step)
        points = SkippedPoints(self._context, axis, condition, self._writer, scope)
        return points.writing(step, self._first)

    def _takes_several(self, phase: Phase, axis: Axis) -> bool:
        """True if a long axis is only reduced, by code that is short enough to be repeated."""
        is_long = not axis.extent.is_constant or axis.extent.constant >= _MANY_POINTS
        is_short = len(self._context.kernel.body) <= _MAX_REPEATED
        is_reduced = bool(phase.plain) and not (phase.guided or phase.stores)
        return is_long and is_short and is_reduced and not self._scans

    def _in_blocks(self, phase: Phase, axis: Axis) -> list[Accumulator]:
        """The sums that are kept in f64, and take the axis in blocks of f32 sums."""
        if axis.extent.is_constant and axis.extent.constant <= SUM_OF_LANES_BLOCK:
            return []
        return [
            a
            for a in phase.plain
            if not self._running.is_guide(a) and self._running.dtype(a) is not accumulator_dtype(a)
        ]

    def _over_blocks(
        self, phase: Phase, sums: list[Accumulator], extent: Value, scope: Scope
    ) -> None:
        """Adds the points of a long axis in blocks: in f32 within a block, in f64 the blocks."""
        fn, axis = self._fn, self._context.schedule.reduction[-1]
        size = integer(SUM_OF_LANES_BLOCK, I64)
        lanes, running = self._context.schedule.lane_block, self._running
        arrays = {
            a.key: lane_array(fn, f"{a.key}.block", accumulator_dtype(a), lanes) for a in sums
        }

        def begin(inner: Scope) -> None:
            for a in sums:
                running.write(a, identity(a.op, running.dtype(a)), inner)

        def end(inner: Scope) -> None:
            for a in sums:
                running.partial = arrays
                narrow, narrow_dtype = running.read(a, inner), running.dtype(a)
                running.partial = {}
                dtype = running.dtype(a)
                wide = convert(fn, narrow, narrow_dtype, dtype)
                total = combine(fn, a.op, dtype, running.read(a, inner), wide)
                running.write(a, total, inner)

        def block(number: Value) -> None:
            first = fn.op("mul nsw", number, size, wish=f"{axis.name}.first")
            left = fn.op("sub nsw", extent, first, wish=f"{axis.name}.left")
            width = fn.intrinsic("smin", left, size, wish=f"{axis.name}.width")
            running.partial = arrays
            self._over_lanes(scope, begin)
            self._over_points(phase, first, width, scope)
            running.partial = {}
            self._over_lanes(scope, end)

        above = fn.op("add nsw", extent, integer(SUM_OF_LANES_BLOCK - 1, I64), wish="above")
        count = fn.op("sdiv", above, size, wish=f"{axis.name}.blocks")
        write_loop(fn, f"{axis.name}.block", (ZERO_I64, count), block, is_inner=False)

    def _start(self, phase: Phase, scans: tuple[ScanState, ...], scope: Scope) -> None:
        for state in scans:
            self._scans.start(state, scope)
        for a in phase.accumulators:
            start, dtype = start_value(a), self._running.dtype(a)
            if dtype is not accumulator_dtype(a):
                start = identity(a.op, dtype)
            self._running.write(a, start, scope)

    def _step(self, phase: Phase, scope: Scope) -> None:
        for a in phase.guided:  # before their guides change
            self._step_guided(a, scope)
        for a in phase.plain:
            dtype = self._running.dtype(a)
            value = convert(self._fn, self._contribution(a, scope), accumulator_dtype(a), dtype)
            known = self._running.read(a, scope)
            self._running.write(a, combine(self._fn, a.op, dtype, known, value), scope)
        self._writer.store_all(phase.stores, scope)

    def _step_guided(self, a: Accumulator, scope: Scope) -> None:
        dtype = self._running.dtype(a)
        text = self._context.guided_text(a, a.dtype, dtype)
        value = self._contribution(a, scope)
        joined = text.joined(self._running.part(a, scope), text.lone(value))
        self._running.write(a, convert(self._fn, joined.total, text.kept[1], dtype), scope)

    def _contribution(self, a: Accumulator, scope: Scope) -> Value:
        return self._context.contribution(
            self._writer, a, scope, lambda key: self._running.finished_by_key(key, scope)
        )

    def _read_reduction(self, number: int, scope: Scope) -> Value:
        return self._running.finished(self._accumulators[number], scope)
