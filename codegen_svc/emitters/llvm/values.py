"""The values of a loop kernel's statements, each computed in the scope that needs it.

A scope is straight-line code: it holds the values of its axes and of the statements that it has
computed. A scope inside a loop also has the values computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from codegen_svc.emitters.llvm.border_loads import offset_in_row
from codegen_svc.emitters.llvm.element_types import constant, convert, memory_type, register_type
from codegen_svc.emitters.llvm.index import IndexWriter
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.scalar_ops import TypedValue, emit_scalar
from codegen_svc.emitters.llvm.schedule import Schedule, used_by, value_dtype
from codegen_svc.emitters.llvm.text import I1, I8, I32, I64, FunctionText, Value, integer
from kernelfarm.dtypes import DType
from kernelfarm.errors import InternalError
from kernelfarm.ir.algebra.expr import Expr
from kernelfarm.ir.loop_ir import (
    Compute,
    IndexValue,
    Indirect,
    Kernel,
    Literal,
    Load,
    Reduce,
    Scan,
    Sort,
    Statement,
    Store,
    StoreMode,
    scattering_stores,
)

# Suffix for the value that says whether a symbol's index is within its extent. No symbol ends so.
_IS_INSIDE = "?"
_COMBINING = {
    StoreMode.ADD: "add",
    StoreMode.MUL: "mul",
    StoreMode.MIN: "minimum",
    StoreMode.MAX: "maximum",
}


@dataclass
class Scope:
    """Known values in straight-line code: of axes and indirect symbols, and of statements.

    At a border, a masked load reads an element in any case, if its mask is that of a whole row.
    """

    symbols: dict[str, Value]
    values: dict[int, Value] = field(default_factory=dict)
    is_at_border: bool = False

    def inner(self, **symbols: Value) -> Scope:
        """A scope of a loop here: it has all these values, and what it adds stays in it."""
        return Scope({**self.symbols, **symbols}, dict(self.values), self.is_at_border)

    def at_border(self) -> Scope:
        """A scope for rows that need most of their masks."""
        return Scope(dict(self.symbols), dict(self.values), is_at_border=True)


ReadKept = Callable[[Scope], Value]
ReadReduction = Callable[[int, Scope], Value]
StepScan = Callable[[int, Scope], Value]
KeepRow = Callable[[int, Value, Scope], None]


@dataclass
class ValueWriter:
    """Computes statements in scopes.

    `read_reduction` gives the value of a finished reduction or sort. `step_scan` advances a scan by
    one point, whose operand is known in the scope, and gives its value. `kept` reads the values
    that were computed before, `placed` gives the addresses of stores that do not go to their
    buffers.
    """

    kernel: Kernel
    schedule: Schedule
    fn: FunctionText
    library: MathLibrary
    index: IndexWriter
    buffers: dict[str, Value]
    failed: Value
    read_reduction: ReadReduction
    step_scan: StepScan
    on_computed: KeepRow = lambda number, value, scope: None
    kept: dict[int, ReadKept] = field(default_factory=dict)
    placed: dict[int, ReadKept] = field(default_factory=dict)

    def value(self, number: int, scope: Scope) -> Value:
        """The value of a statement in a scope, computed at most once there."""
        pending = [number]
        while pending:
            current = pending[-1]
            if current in scope.values:
                pending.pop()
                continue
            if current in self.kept:
                self.fn.topic = f"kept{current}"
                scope.values[current] = self.kept[current](scope)
                pending.pop()
                continue
            statement = self.kernel.body[current]
            is_done = isinstance(statement, Reduce | Sort)
            missing = [] if is_done else self._missing(current, scope)
            if missing:
                pending += missing
                continue
            scope.values[current] = self._compute(current, statement, scope)
            self.on_computed(current, scope.values[current], scope)
            pending.pop()
        return scope.values[number]

    def store_all(self, numbers: Iterable[int], scope: Scope) -> None:
        """Writes Store statements, after computing all their values.

        An element of an in-place buffer must be read before it is overwritten.
        """
        stores = [(n, s) for n in numbers if isinstance(s := self.kernel.body[n], Store)]
        scatters = scattering_stores(self.kernel)
        for number in numbers:
            for used in used_by(self.kernel, number, self.schedule.indirect_of):
                self.value(used, scope)
        for number, statement in stores:
            self.fn.topic = f"{statement.param}_at"
            if number in scatters:
                self._scatter(statement, scope)
            elif number in self.placed:
                dtype = self.kernel.param(statement.param).dtype
                value = to_memory(self.fn, scope.values[statement.value], dtype)
                self.fn.store(value, self.placed[number](scope), dtype.itemsize_bytes)
            else:
                self._store(statement, scope)

    def _store(self, statement: Store, scope: Scope) -> None:
        fn, dtype = self.fn, self.kernel.param(statement.param).dtype
        value = scope.values[statement.value]
        pointer = self._address(statement, dtype, scope)
        if statement.mode is not StoreMode.SET:
            raw = fn.load(memory_type(dtype), pointer, dtype.itemsize_bytes, wish="old")
            both = [TypedValue(from_memory(fn, raw, dtype), dtype), TypedValue(value, dtype)]
            value = emit_scalar(fn, self.library, _COMBINING[statement.mode], both, dtype)
        fn.store(to_memory(fn, value, dtype), pointer, dtype.itemsize_bytes)

    def _scatter(self, statement: Store, scope: Scope) -> None:
        """Writes an update. An index out of range, which `failed` records, changes nothing."""
        fn = self.fn
        guard: Value | None = None
        for name in sorted(statement.index.symbols):
            inside = scope.symbols.get(f"{name}{_IS_INSIDE}")
            if inside is not None:
                guard = inside if guard is None else fn.op("and", guard, inside)
        if guard is None:
            self._store(statement, scope)
            return
        update, after = fn.name("update"), fn.name("update.end")
        fn.branch_if(guard, update, after)
        fn.start_block(update)
        self._store(statement, scope)
        fn.branch(after)
        fn.start_block(after)

    def _missing(self, number: int, scope: Scope) -> list[int]:
        used = used_by(self.kernel, number, self.schedule.indirect_of)
        return [v for v in used if v not in scope.values]

    def _compute(self, number: int, statement: Statement, scope: Scope) -> Value:
        fn = self.fn
        match statement:
            case Load():
                fn.topic = f"{statement.param}_v{number}"
                return self._load(statement, scope)
            case Literal(dtype=dtype, value=value):
                return constant(fn, dtype, value)
            case IndexValue(dtype=dtype, expr=expr):
                fn.topic = f"index{number}"
                return convert(fn, self.index.write(expr, scope.symbols), DType.I64, dtype)
            case Compute(op=op, operands=operands, dtype=dtype):
                fn.topic = f"{op}{number}"
                typed = [TypedValue(scope.values[v], value_dtype(self.kernel, v)) for v in operands]
                return emit_scalar(fn, self.library, op, typed, dtype)
            case Reduce() | Scan() | Sort():
                fn.topic = f"{'sort' if isinstance(statement, Sort) else statement.op}{number}"
                is_scan = isinstance(statement, Scan)
                return (self.step_scan if is_scan else self.read_reduction)(number, scope)
            case Indirect():
                fn.topic = f"indirect{number}"
                return self._indirect(statement, scope)
        raise InternalError(f"statement {number} of {self.kernel.name} has no value")

    def _indirect(self, statement: Indirect, scope: Scope) -> Value:
        """Wraps a negative index, records one outside the extent, and gives a safe one."""
        fn = self.fn
        dtype = value_dtype(self.kernel, statement.value)
        raw = convert(fn, scope.values[statement.value], dtype, DType.I64)
        extent = self.index.write(statement.extent, scope.symbols)
        is_negative = fn.compare("icmp", "slt", raw, integer(0, I64))
        wrapped = fn.select(is_negative, fn.op("add", raw, extent), raw)
        is_inside = fn.compare("icmp", "ult", wrapped, extent)
        outside = fn.cast("zext", fn.op("xor", is_inside, integer(1, I1)), I32)
        known = fn.load(I32, self.failed, 8, wish="failed.old")
        fn.store(fn.op("or", known, outside, wish="failed.new"), self.failed, 8)
        scope.symbols[f"{statement.symbol}{_IS_INSIDE}"] = is_inside
        safe = fn.select(is_inside, wrapped, integer(0, I64))
        scope.symbols[statement.symbol] = safe
        return safe

    def _address(self, access: Load | Store, dtype: DType, scope: Scope) -> Value:
        at = self.index.write(access.index, scope.symbols)
        return self.fn.element(memory_type(dtype), self.buffers[access.param], at)

    def _load(self, load: Load, scope: Scope) -> Value:
        if load.mask is None:
            return self._read(load, scope)
        fn = self.fn
        dtype = self.kernel.param(load.param).dtype
        other = constant(fn, dtype, 0)
        if load.other is not None:
            source = value_dtype(self.kernel, load.other)
            other = convert(fn, scope.values[load.other], source, dtype)
        mask = scope.values[load.mask]
        if scope.is_at_border:
            offset = offset_in_row(self.kernel, load, self.schedule.lane, scope.values)
            if offset is not None:
                return fn.select(mask, self._read_always(load, mask, offset, scope), other)
        before = fn.block
        inside, after = fn.name("masked"), fn.name("masked.end")
        fn.branch_if(mask, inside, after)
        fn.start_block(inside)
        value = self._read(load, scope)
        end = fn.block
        fn.branch(after)
        fn.start_block(after)
        kind = register_type(dtype)
        choice = f"phi {kind} [ {value.text}, %{end} ], [ {other.text}, %{before} ]"
        return fn.define("", kind, choice)

    def _read_always(self, load: Load, mask: Value, offset: Expr, scope: Scope) -> Value:
        """A load without a branch: with the mask false, from a row at the start of the buffer.

        The start of the row does not depend on the lane, so it is computed before the loop.
        """
        fn, index = self.fn, self.index
        start = index.write(load.index - offset, scope.symbols)
        start = fn.select(mask, start, integer(0, I64))
        at = fn.op("add nsw", start, index.write(offset, scope.symbols))
        return self._element(load.param, at)

    def _read(self, load: Load, scope: Scope) -> Value:
        return self._element(load.param, self.index.write(load.index, scope.symbols))

    def _element(self, param: str, at: Value) -> Value:
        dtype = self.kernel.param(param).dtype
        pointer = self.fn.element(memory_type(dtype), self.buffers[param], at)
        raw = self.fn.load(memory_type(dtype), pointer, dtype.itemsize_bytes)
        return from_memory(self.fn, raw, dtype)


def from_memory(fn: FunctionText, value: Value, dtype: DType) -> Value:
    """A loaded element as a register value."""
    if dtype is DType.BOOL:
        return fn.compare("icmp", "ne", value, integer(0, I8))
    return value


def to_memory(fn: FunctionText, value: Value, dtype: DType) -> Value:
    """A register value in the type that memory holds."""
    return fn.cast("zext", value, I8) if dtype is DType.BOOL else value
