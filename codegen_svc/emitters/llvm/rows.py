"""A unit that is one outer point: phases loop over the reduction, with its last axis vectorized.

Each loop level has its own running values, which are added to those of the outer level when it
ends. Rounding errors therefore grow with the extents of the levels, not with their product.
"""

from __future__ import annotations

from collections.abc import Callable

from codegen_svc.emitters.llvm.accumulate import accumulator_dtype, combine, finished, start_value
from codegen_svc.emitters.llvm.element_types import memory_type, register_type
from codegen_svc.emitters.llvm.guided_rows import GuidedRows, Slots
from codegen_svc.emitters.llvm.scan import ScanState, scan_step, scan_value
from codegen_svc.emitters.llvm.schedule import (
    GUIDED_BLOCK,
    SUM_BLOCK,
    Accumulator,
    Phase,
    closure,
    phase_roots,
    value_dtype,
)
from codegen_svc.emitters.llvm.sort import SortRows
from codegen_svc.emitters.llvm.text import I64, Value, integer
from codegen_svc.emitters.llvm.unit import ZERO_I64, UnitContext, write_loop
from codegen_svc.emitters.llvm.values import Scope, from_memory, to_memory
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import Axis


class RowWriter:
    """Writes units that are single outer points."""

    def __init__(self, context: UnitContext) -> None:
        self._context = context
        self._fn = context.fn
        self._slots: Slots = {}
        self._accumulators = context.accumulators()
        self.guided = GuidedRows(context)
        self._kept: set[int] = set()
        self._rows = {n: self._allocate_row(n) for n in context.schedule.scratch}
        self._sorts = SortRows(context.fn, context.kernel)
        self._scans: dict[int, tuple[ScanState, tuple[Value, ...]]] = {}
        self._writer = context.value_writer(self._read_reduction, self._step_scan, self._keep)

    def begin(self, sizes: dict[str, Value]) -> None:
        """Writes what precedes all units: nothing."""

    def write(self, symbols: dict[str, Value]) -> None:
        """Writes one unit; `symbols` holds the outer axes and the sizes."""
        scope = Scope(dict(symbols))
        for phase in self._context.schedule.phases:
            self._write_phase(phase, scope)
        self._writer.store_all(self._context.schedule.final_stores, scope)

    def close(self) -> None:
        """Ends the writing of units; frees the rows to sort."""
        self._sorts.free()

    def _write_phase(self, phase: Phase, scope: Scope) -> None:
        needed = self._needed(phase)
        for number in sorted(needed):
            if number not in self._context.schedule.varying:
                self._writer.value(number, scope)
        for a in phase.plain:
            self._slots[a.key] = self._fresh_slot(a, a.key)
        self._slots |= self.guided.fresh(phase)
        for state in self._context.scans(phase, frozenset(self._kept)):
            self._start_scan(state)
        self._nest(_Nest(self, phase), 0, scope, dict(self._slots))
        for number in phase.sorts:
            self._sorts.sort(number)
        self._kept |= {n for n in self._rows if n in needed}

    def _needed(self, phase: Phase) -> set[int]:
        kernel, schedule = self._context.kernel, self._context.schedule
        roots = phase_roots(kernel, phase)
        return closure(kernel, roots, schedule.indirect_of, frozenset(self._kept))

    def _nest(self, nest: _Nest, level: int, scope: Scope, slots: Slots) -> None:
        """Writes loop number `level` of a phase."""
        axes = self._context.schedule.reduction
        axis = axes[level]
        extent = self._context.index.write(axis.extent, scope.symbols)
        if level < len(axes) - 1:

            def iteration(i: Value) -> None:
                inner = scope.inner(**{axis.name: i})
                nest.with_partials(slots, lambda own: self._nest(nest, level + 1, inner, own))

            write_loop(self._fn, axis.name, (ZERO_I64, extent), iteration, is_inner=False)
        elif nest.phase.has_float_sum and not _is_short(axis.extent):
            self._blocked_loop(nest, axis, scope, slots)
        else:
            self._chunk(nest, axis, (ZERO_I64, extent), scope, slots)

    def _chunk(
        self, nest: _Nest, axis: Axis, bounds: tuple[Value, Value], scope: Scope, slots: Slots
    ) -> None:
        """Writes a loop over some points; guided reductions need a second one, with known guides.

        Only the last loop stores, because earlier loops still read the old elements of in-place
        buffers.
        """
        phase = nest.phase
        if not phase.guided:
            self._inner_loop(axis, bounds, scope, lambda at: self._write_point(phase, at, slots))
            return
        self._inner_loop(axis, bounds, scope, lambda at: self._accumulate_plain(phase, at, slots))
        chunk = self.guided.start(phase, bounds, slots)

        def again(at: Scope) -> None:
            self.guided.add_point(phase, chunk, self._writer, at)
            self._writer.store_all(phase.stores, at)

        self._inner_loop(axis, bounds, scope, again)
        self.guided.end(phase, chunk, slots)

    def _inner_loop(
        self, axis: Axis, bounds: tuple[Value, Value], scope: Scope, write: Callable[[Scope], None]
    ) -> None:
        def point(i: Value) -> None:
            at = scope.inner(**{axis.name: i})
            for number in sorted(self._kept):
                at.values[number] = self._read_row(number, at)
            write(at)

        write_loop(self._fn, axis.name, bounds, point, is_inner=True)

    def _blocked_loop(self, nest: _Nest, axis: Axis, scope: Scope, slots: Slots) -> None:
        """Writes the loop over an axis in blocks that have running values of their own."""
        fn, index = self._fn, self._context.index
        extent = index.write(axis.extent, scope.symbols)
        elems = GUIDED_BLOCK if nest.phase.guided else SUM_BLOCK
        blocks = index.write((axis.extent + (elems - 1)) // elems, scope.symbols)
        size = integer(elems, I64)

        def block(number: Value) -> None:
            lower = fn.op("mul nsw", number, size, wish=f"{axis.name}.low")
            above = fn.op("add nsw", lower, size, wish=f"{axis.name}.above")
            upper = fn.intrinsic("smin", above, extent, wish=f"{axis.name}.high")
            nest.with_partials(
                slots, lambda own: self._chunk(nest, axis, (lower, upper), scope, own)
            )

        write_loop(fn, f"{axis.name}_block", (ZERO_I64, blocks), block, is_inner=False)

    def _write_point(self, phase: Phase, scope: Scope, slots: Slots) -> None:
        self._accumulate_plain(phase, scope, slots)
        self._writer.store_all(phase.stores, scope)

    def _accumulate_plain(self, phase: Phase, scope: Scope, slots: Slots) -> None:
        for a in phase.plain:
            value = self._context.contribution(self._writer, a, scope, self._read_slot)
            self.accumulate(a, slots[a.key], value)
        for number in phase.sorts:
            row = self._sorts.rows[number]
            operand = self._writer.value(row.sort.operand, scope)
            self._sorts.put(number, operand, self._flat(scope))

    def _fresh_slot(self, a: Accumulator, wish: str) -> Value:
        """A slot on the stack for a running value, set to the identity."""
        running = accumulator_dtype(a)
        slot = self._fn.alloca(wish, register_type(running))
        self._fn.store(start_value(a), slot, 8)
        return slot

    def accumulate(self, a: Accumulator, slot: Value, value: Value) -> None:
        """Combines one value with a running reduction."""
        running = accumulator_dtype(a)
        self._fn.topic = a.key
        known = self._fn.load(register_type(running), slot, 8)
        self._fn.store(combine(self._fn, a.op, running, known, value), slot, 8)

    def fresh_partial(self, a: Accumulator) -> Value:
        """A slot for the running value of one iteration of an outer loop."""
        return self._fresh_slot(a, f"{a.key}.part")

    def read_partial(self, a: Accumulator, slot: Value) -> Value:
        """The value of a slot."""
        self._fn.topic = a.key
        return self._fn.load(register_type(accumulator_dtype(a)), slot, 8)

    def _read_slot(self, key: str) -> Value:
        phases = self._context.schedule.phases
        a = next(a for p in phases for a in p.accumulators if a.key == key)
        return self._finished(a)

    def _read_reduction(self, number: int, scope: Scope) -> Value:
        if number in self._sorts.rows:
            return self._sorts.position(number, self._flat(scope))
        return self._finished(self._accumulators[number])

    def _flat(self, scope: Scope) -> Value:
        """The point's position within the reduction."""
        return self._context.index.write(self._context.flat_index, scope.symbols)

    def _finished(self, a: Accumulator) -> Value:
        if a.is_guided:
            return self.guided.finished(a, self._slots)
        running = accumulator_dtype(a)
        self._fn.topic = a.key
        value = self._fn.load(register_type(running), self._slots[a.key], 8)
        return finished(self._fn, value, a, running)

    # A scan's running values last through all loop levels of a phase.

    def _start_scan(self, state: ScanState) -> None:
        wish = f"{state.scan.op}{state.number}.kept"
        slots = tuple(self._fn.alloca(wish, register_type(dtype)) for dtype in state.kept)
        for slot, start in zip(slots, state.starts(), strict=True):
            self._fn.store(start, slot, 8)
        self._scans[state.number] = (state, slots)

    def _step_scan(self, number: int, scope: Scope) -> Value:
        fn = self._fn
        state, slots = self._scans[number]
        pairs = zip(state.kept, slots, strict=True)
        known = tuple(fn.load(register_type(dtype), slot, 8) for dtype, slot in pairs)
        flat = self._context.index.write(self._context.flat_index, scope.symbols)
        point = (known, scope.values[state.scan.operand], flat)
        after = scan_step(fn, self._context.library, state, point)
        for slot, value in zip(slots, after, strict=True):
            fn.store(value, slot, 8)
        return scan_value(fn, state, after)

    # Scratch rows: values that later phases need again.

    def _allocate_row(self, number: int) -> Value:
        kind = memory_type(value_dtype(self._context.kernel, number))
        return self._fn.alloca(f"row{number}", kind, self._context.reduction_extent.as_int())

    def _row_element(self, number: int, scope: Scope) -> Value:
        self._fn.topic = f"row{number}_at"
        at = self._context.index.write(self._context.flat_index, scope.symbols)
        kind = memory_type(value_dtype(self._context.kernel, number))
        return self._fn.element(kind, self._rows[number], at)

    def _read_row(self, number: int, scope: Scope) -> Value:
        dtype = value_dtype(self._context.kernel, number)
        element = self._row_element(number, scope)
        raw = self._fn.load(memory_type(dtype), element, dtype.itemsize_bytes)
        return from_memory(self._fn, raw, dtype)

    def _keep(self, number: int, value: Value, scope: Scope) -> None:
        if number not in self._rows or number in self._kept:
            return
        dtype = value_dtype(self._context.kernel, number)
        element = self._row_element(number, scope)
        self._fn.store(to_memory(self._fn, value, dtype), element, dtype.itemsize_bytes)


class _Nest:
    """The loops of a phase under construction."""

    def __init__(self, rows: RowWriter, phase: Phase) -> None:
        self._rows = rows
        self.phase = phase

    def with_partials(self, slots: Slots, inside: Callable[[Slots], None]) -> None:
        """Writes `inside` with new running values, and adds them to the outer ones afterwards."""
        rows, phase = self._rows, self.phase
        own = {**slots, **{a.key: rows.fresh_partial(a) for a in phase.plain}}
        own |= rows.guided.fresh(phase)
        inside(own)
        for a in phase.plain:
            rows.accumulate(a, slots[a.key], rows.read_partial(a, own[a.key]))
        rows.guided.join(phase, slots, own)


def _is_short(extent: Expr) -> bool:
    return extent.is_constant and extent.constant <= SUM_BLOCK
