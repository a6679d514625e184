"""The common part of both kinds of units: counted loops, the context of code, arg-reductions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from codegen_svc.emitters.llvm.accumulate import (
    accumulator_dtype,
    index_of_hit,
    is_float_extremum,
    ordered_bits,
)
from codegen_svc.emitters.llvm.element_types import convert
from codegen_svc.emitters.llvm.guided import GuidedText
from codegen_svc.emitters.llvm.index import IndexWriter
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.scan import ScanState
from codegen_svc.emitters.llvm.schedule import (
    Accumulator,
    Phase,
    Schedule,
    closure,
    phase_roots,
    value_dtype,
)
from codegen_svc.emitters.llvm.text import I64, FunctionText, Value, integer
from codegen_svc.emitters.llvm.values import (
    KeepRow,
    ReadReduction,
    Scope,
    StepScan,
    ValueWriter,
)
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import ZERO, Expr, product_of, symbol
from kernelfarm.ir.loop_ir import Access, Axis, Compute, Kernel, Scan

LoopBody = Callable[[Value], None]
ZERO_I64 = integer(0, I64)
# Loops of at most so many iterations are unrolled: a short window, a small head axis.
UNROLLED_ITERATIONS = 8
# But not if that makes more copies of functions: 240 took LLVM 7 s. Models have loops with up to
# 16.
_UNROLLED_CALLS = 32


@dataclass(frozen=True)
class UnitContext:
    """One kernel's range function and everything that its code may use."""

    kernel: Kernel
    schedule: Schedule
    fn: FunctionText
    library: MathLibrary
    index: IndexWriter
    buffers: dict[str, Value]
    failed: Value
    vector_bits: int

    def value_writer(self, read: ReadReduction, scan: StepScan, keep: KeepRow) -> ValueWriter:
        """A writer of values; `read` gives finished reductions, `scan` the values of scans."""
        return ValueWriter(
            self.kernel,
            self.schedule,
            self.fn,
            self.library,
            self.index,
            self.buffers,
            self.failed,
            read,
            scan,
            keep,
        )

    def accumulators(self) -> dict[int, Accumulator]:
        """The accumulator of each Reduce statement, by its number."""
        phases = self.schedule.phases
        return {a.statement: a for p in phases for a in p.accumulators if a.statement >= 0}

    def scans(self, phase: Phase, kept: frozenset[int]) -> tuple[ScanState, ...]:
        """The scans that run in a phase, except those of values in `kept`."""
        roots = phase_roots(self.kernel, phase)
        needed = closure(self.kernel, roots, self.schedule.indirect_of, kept)
        found = [(n, s) for n in sorted(needed) if isinstance(s := self.kernel.body[n], Scan)]
        return tuple(ScanState(n, s, value_dtype(self.kernel, s.operand)) for n, s in found)

    @property
    def can_repeat_stores(self) -> bool:
        """True if storing again gives the same, and some function has a faster, limited way."""
        kernel = self.kernel
        is_pure = not any(p.access is Access.READ_WRITE for p in kernel.params)
        return is_pure and any(
            isinstance(s, Compute) and self.library.has_usual(s.op) for s in kernel.body
        )

    def guided_text(self, a: Accumulator, dtype: DType, total_dtype: DType) -> GuidedText:
        """The writer of a guided reduction."""
        return GuidedText(self.fn, self.library, a.op, dtype, total_dtype)

    @property
    def reduction_extent(self) -> Expr:
        """The number of points of the reduction axes."""
        return product_of([axis.extent for axis in self.kernel.reduction])

    @property
    def points_before(self) -> Expr:
        """The number of points that the phase's loops computed before this one."""
        return _row_major(self.schedule.reduction)

    @property
    def flat_index(self) -> Expr:
        """The position within the reduction, row-major in the order of the kernel's axes."""
        return _row_major(self.kernel.reduction)

    def contribution(
        self, writer: ValueWriter, a: Accumulator, scope: Scope, best: Callable[[str], Value]
    ) -> Value:
        """The value of one point for an accumulator; `best` reads the extremum of an index."""
        value = writer.value(a.operand, scope)
        dtype = value_dtype(self.kernel, a.operand)
        self.fn.topic = a.key
        if is_float_extremum(a):
            wide = convert(self.fn, value, dtype, a.dtype.compute_dtype)
            return ordered_bits(self.fn, wide, a.op)
        if a.op != "first_index":
            return convert(self.fn, value, dtype, accumulator_dtype(a))
        compared: DType = dtype.compute_dtype
        wide = convert(self.fn, value, dtype, compared)
        flat = self.index.write(self.flat_index, scope.symbols)
        return index_of_hit(self.fn, wide, best(a.guide), flat, compared)


def _row_major(axes: tuple[Axis, ...]) -> Expr:
    flat = ZERO
    for axis in axes:
        flat = flat * axis.extent + symbol(axis.name)
    return flat


def write_loop(  # noqa: PLR0913 # hints of one loop
    fn: FunctionText,
    wish: str,
    bounds: tuple[Value, Value],
    body: LoopBody,
    *,
    is_inner: bool,
    is_unrolled: bool = True,
    lanes: int | None = None,
    together: int = 1,
) -> None:
    """Writes `for i in lower..upper`, with the test before the first iteration.

    LLVM computes so many `lanes` together, also the last ones, of which some are masked; None: it
    estimates what costs least. With `together`, it writes so many iterations behind each other.

    Very short loops are fully unrolled, unless they call many functions, because those are inlined,
    or `is_unrolled` is false. Other outer loops are not unrolled, because that would copy the loops
    inside.
    """
    lower, upper = bounds
    head, latch, end = (fn.name(f"{wish}.{part}") for part in ("loop", "next", "end"))
    counter, following = fn.name(wish), fn.name(f"{wish}.inc")
    before = fn.block
    fn.branch_if(fn.compare("icmp", "slt", lower, upper, wish=f"{wish}.any"), head, end)
    fn.start_block(head)
    fn.emit(f"%{counter} = phi i64 [ {lower.text}, %{before} ], [ %{following}, %{latch} ]")
    calls_before = fn.own_calls
    body(Value(f"%{counter}", I64))
    calls = fn.own_calls - calls_before
    fn.branch(latch)
    fn.start_block(latch)
    fn.emit(f"%{following} = add nuw nsw i64 %{counter}, 1")
    again = fn.compare("icmp", "slt", Value(f"%{following}", I64), upper, wish=f"{wish}.more")
    hint = ""
    if lanes is not None:
        hint = _loop_hint(fn, *_widths(fn, lanes))
    elif together > 1:
        hint = _loop_hint(fn, f'!"llvm.loop.unroll.count", i32 {together}')
    elif is_unrolled and _is_very_short(upper, calls):
        hint = _loop_hint(fn, '!"llvm.loop.unroll.full"')
    elif not is_inner:
        hint = _loop_hint(fn, '!"llvm.loop.unroll.disable"')
    fn.emit(f"br {again}, label %{head}, label %{end}{hint}")
    fn.start_block(end)


def write_choice(
    fn: FunctionText,
    wish: str,
    condition: Value,
    write: Callable[[], None],
    write_other: Callable[[], None],
) -> None:
    """Writes `if condition: ... else: ...`."""
    names = [fn.name(f"{wish}.{part}") for part in ("then", "else", "end")]
    fn.branch_if(condition, names[0], names[1])
    for name, write_part in zip(names, (write, write_other), strict=False):
        fn.start_block(name)
        write_part()
        fn.branch(names[2])
    fn.start_block(names[2])


def _is_very_short(upper: Value, calls: int) -> bool:
    if upper.text.startswith("%"):
        return False
    iterations = int(upper.text)
    return iterations <= UNROLLED_ITERATIONS and iterations * calls <= _UNROLLED_CALLS


def _widths(fn: FunctionText, lanes: int) -> list[str]:
    """The hints by which LLVM computes so many lanes together, and masks the last ones."""
    masked = '!"llvm.loop.vectorize.predicate.enable", i1 true'
    if fn.module.vscale is None:
        return [f'!"llvm.loop.vectorize.width", i32 {lanes}', masked]
    # LLVM complains on the standard error about a fixed width where it knows scalable vectors.
    scalable = '!"llvm.loop.vectorize.scalable.enable", i1 true'
    return [f'!"llvm.loop.vectorize.width", i32 {lanes // fn.module.vscale}', scalable, masked]


def _loop_hint(fn: FunctionText, *options: str) -> str:
    nodes = ", ".join(fn.module.shared_node(f"!{{{option}}}") for option in options)
    return f", !llvm.loop {fn.module.distinct_node(f'distinct !{{!self, {nodes}}}')}"


def range_arguments(kernel: Kernel) -> list[tuple[str, str]]:
    """(text in a definition, value) of each buffer and size of the range function."""
    arguments = []
    for param in kernel.params:
        facts = "noalias nocapture" + (" readonly" if param.access is Access.READ else "")
        arguments.append((f"ptr {facts} %{param.name}", f"%{param.name}"))
    return arguments + [(f"i64 %{size.name}", f"%{size.name}") for size in kernel.sizes]
