"""The running values of a block of lanes: arrays on the stack, with an element for each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from codegen_svc.emitters.llvm.accumulate import (
    accumulator_dtype,
    finished,
    is_float_extremum,
)
from codegen_svc.emitters.llvm.element_types import convert, memory_type
from codegen_svc.emitters.llvm.guided import PartialResult
from codegen_svc.emitters.llvm.scan import ScanState, scan_step, scan_value
from codegen_svc.emitters.llvm.schedule import WIDE_SUM_EXTENT, Accumulator
from codegen_svc.emitters.llvm.text import DOUBLE, FunctionText, Value, floating
from codegen_svc.emitters.llvm.turned_tiles import LANE
from codegen_svc.emitters.llvm.unit import UnitContext
from codegen_svc.emitters.llvm.values import Scope, from_memory, to_memory
from kernelfarm.dtypes import DType


def lane_array(fn: FunctionText, name: str, dtype: DType, lanes: int) -> Value:
    """Memory for an element of each of so many lanes."""
    return fn.alloca(name, memory_type(dtype), max(lanes, 2))


class RunningReductions:
    """The accumulators of each lane.

    `partial` has arrays that take the place of accumulators' own while a block of a long sum is
    added.
    """

    def __init__(self, context: UnitContext) -> None:
        self._context = context
        self._fn = context.fn
        self._by_key = {a.key: a for p in context.schedule.phases for a in p.accumulators}
        self._guided = [a for a in self._by_key.values() if a.is_guided]
        self._guides = {a.guide for a in self._guided}
        self._arrays: dict[str, Value] = {}
        self.partial: Mapping[str, Value] = {}

    def allocate(self, accumulators: Sequence[Accumulator], lanes: int) -> None:
        """Makes the arrays."""
        for a in accumulators:
            self._arrays[a.key] = lane_array(self._fn, a.key, self.dtype(a), lanes)

    def dtype(self, a: Accumulator) -> DType:
        """The type of an accumulator; long sums need f64, because sums of lanes are sequential."""
        running = accumulator_dtype(a)
        if a.key in self.partial:
            return running
        extent = self._context.reduction_extent
        is_long = not extent.is_constant or extent.constant > WIDE_SUM_EXTENT
        is_rounded = a.op in ("sum", "prod") and running is DType.F32
        is_guided = a.is_guided or any(b.guide == a.key and a.op == "sum" for b in self._guided)
        return DType.F64 if is_guided or (is_rounded and is_long) else running

    def is_guide(self, a: Accumulator) -> bool:
        """True if another accumulator's values are relative to this one's."""
        return a.key in self._guides

    def read(self, a: Accumulator, scope: Scope) -> Value:
        """The value of the scope's lane."""
        dtype = self.dtype(a)
        raw = self._fn.load(memory_type(dtype), self._element(a, scope), dtype.itemsize_bytes)
        return from_memory(self._fn, raw, dtype)

    def write(self, a: Accumulator, value: Value, scope: Scope) -> None:
        """Stores the value of the scope's lane."""
        dtype = self.dtype(a)
        element = self._element(a, scope)
        self._fn.store(to_memory(self._fn, value, dtype), element, dtype.itemsize_bytes)

    def finished(self, a: Accumulator, scope: Scope) -> Value:
        """The result of the scope's lane."""
        dtype = self.dtype(a)
        value = self.read(a, scope)
        if a.op == "softmax_sum":
            top = self.finished_by_key(a.guide, scope)
            partial = PartialResult(floating(0.0, DOUBLE), top, value)
            return self._context.guided_text(a, a.dtype, dtype).finished(partial)
        return finished(self._fn, value, a, dtype)

    def finished_by_key(self, key: str, scope: Scope) -> Value:
        """The result of the accumulator with a key."""
        return self.finished(self._by_key[key], scope)

    def part(self, a: Accumulator, scope: Scope) -> PartialResult:
        """The points of a lane so far, for a guided accumulator."""
        fn, context = self._fn, self._context
        text = context.guided_text(a, a.dtype, self.dtype(a))
        count = fn.cast("sitofp", context.index.write(context.points_before, scope.symbols), DOUBLE)
        guide = self._by_key[a.guide]
        value, dtype = self.read(guide, scope), self.dtype(guide)
        if is_float_extremum(guide):
            value = finished(fn, value, guide, dtype)
        else:
            value = text.mean(count, convert(fn, value, dtype, DType.F64))
        return PartialResult(count, value, self.read(a, scope))

    def _element(self, a: Accumulator, scope: Scope) -> Value:
        self._fn.topic = f"{a.key}_at"
        array = self.partial.get(a.key, self._arrays[a.key])
        return self._fn.element(memory_type(self.dtype(a)), array, scope.symbols[LANE])


class RunningScans:
    """What the scans of each lane keep between points."""

    def __init__(self, context: UnitContext) -> None:
        self._context = context
        self._fn = context.fn
        self._scans: dict[int, tuple[ScanState, tuple[Value, ...]]] = {}

    def __bool__(self) -> bool:
        """True if a phase has had scans."""
        return bool(self._scans)

    def allocate(self, states: Sequence[ScanState], lanes: int) -> None:
        """Makes the arrays."""
        for state in states:
            name = f"{state.scan.op}{state.number}.kept"
            kept = (lane_array(self._fn, name, dtype, lanes) for dtype in state.kept)
            self._scans[state.number] = (state, tuple(kept))

    def start(self, state: ScanState, scope: Scope) -> None:
        """Stores what a scan begins with."""
        self._keep(state.number, state.starts(), scope)

    def step(self, number: int, scope: Scope) -> Value:
        """Takes the scope's point; the scan's value there."""
        fn, context = self._fn, self._context
        state, _ = self._scans[number]
        known = tuple(
            fn.load(memory_type(dtype), address, dtype.itemsize_bytes)
            for dtype, address in self._kept_at(number, scope)
        )
        flat = context.index.write(context.flat_index, scope.symbols)
        after = scan_step(
            fn, context.library, state, (known, scope.values[state.scan.operand], flat)
        )
        self._keep(number, after, scope)
        return scan_value(fn, state, after)

    def _keep(self, number: int, values: tuple[Value, ...], scope: Scope) -> None:
        for (dtype, address), value in zip(self._kept_at(number, scope), values, strict=True):
            self._fn.store(value, address, dtype.itemsize_bytes)

    def _kept_at(self, number: int, scope: Scope) -> list[tuple[DType, Value]]:
        """Type and address of each value that a scan keeps for the scope's lane."""
        state, arrays = self._scans[number]
        lane = scope.symbols[LANE]
        return [
            (dtype, self._fn.element(memory_type(dtype), array, lane))
            for dtype, array in zip(state.kept, arrays, strict=True)
        ]
