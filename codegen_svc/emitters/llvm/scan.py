"""Running scans: the values kept between points, one step, and the value at a point.

Sums and products of f32 are kept in f64, because f32 would round the running value at every point.
"""

from __future__ import annotations

from dataclasses import dataclass

from codegen_svc.emitters.llvm.accumulate import identity
from codegen_svc.emitters.llvm.element_types import INTEGER_RANGE, convert, register_type
from codegen_svc.emitters.llvm.math_functions.library import MathLibrary
from codegen_svc.emitters.llvm.scalar_ops import TypedValue, emit_scalar
from codegen_svc.emitters.llvm.text import I64, FunctionText, Value, floating, integer
from kernelfarm.dtypes import DType
from kernelfarm.ir.loop_ir import Scan

_PLAIN = {"cumsum": "sum", "cumprod": "prod"}


@dataclass(frozen=True, slots=True)
class ScanState:
    """One scan statement, with the types and start of the values that it keeps."""

    number: int
    scan: Scan
    operand_dtype: DType

    @property
    def kept(self) -> tuple[DType, ...]:
        """Types of the kept values: the running value, and a position for positions of extrema."""
        dtype = self.operand_dtype
        if self.scan.op.endswith("_index"):
            return (dtype, DType.I64)
        is_rounded = self.scan.op in _PLAIN and dtype is DType.F32
        return (DType.F64 if is_rounded else dtype,)

    def starts(self) -> tuple[Value, ...]:
        """The kept values before the first point."""
        dtype = self.kept[0]
        if self.scan.op in _PLAIN:
            return (identity(_PLAIN[self.scan.op], dtype),)
        is_top = self.scan.op.startswith("cummin")
        if dtype.is_float:
            first = floating(float("inf") if is_top else float("-inf"), register_type(dtype))
        else:
            first = integer(INTEGER_RANGE[dtype][int(is_top)], register_type(dtype))
        return (first, integer(0, I64))[: len(self.kept)]


def scan_step(
    fn: FunctionText,
    library: MathLibrary,
    state: ScanState,
    point: tuple[tuple[Value, ...], Value, Value],
) -> tuple[Value, ...]:
    """The kept values after a point; `point` is (kept values before, operand, flat index)."""
    known, value, flat = point
    op, dtype = state.scan.op, state.kept[0]
    value = convert(fn, value, state.operand_dtype, dtype)
    if op in _PLAIN:
        kind = {"cumsum": "add", "cumprod": "mul"}[op]
        return (_scalar(fn, library, kind, dtype, known[0], value),)
    if op == "logcumsumexp":
        return (_log_add_exp(fn, library, dtype, known[0], value),)
    is_hit = _is_hit(fn, op, dtype, known[0], value)
    best = fn.select(is_hit, value, known[0])
    return (best, fn.select(is_hit, flat, known[1])) if len(known) == 2 else (best,)


def scan_value(fn: FunctionText, state: ScanState, kept: tuple[Value, ...]) -> Value:
    """The scan's value at a point, given the kept values after it."""
    return convert(fn, kept[-1], state.kept[-1], state.scan.dtype)


def _scalar(fn: FunctionText, library: MathLibrary, op: str, dtype: DType, *values: Value) -> Value:
    result = DType.BOOL if op == "isinf" else dtype
    return emit_scalar(fn, library, op, [TypedValue(value, dtype) for value in values], result)


def _is_hit(fn: FunctionText, op: str, dtype: DType, best: Value, value: Value) -> Value:
    """True if a value replaces the extremum so far: also if it is equal, always if it is NaN."""
    is_top = op.startswith("cummax")
    if not dtype.is_float:
        sign = "u" if dtype is DType.U8 else "s"
        return fn.compare("icmp", sign + ("ge" if is_top else "le"), value, best)
    reaches = fn.compare("fcmp", "oge" if is_top else "ole", value, best)
    return fn.op("or", reaches, fn.compare("fcmp", "uno", value, value))


def _log_add_exp(
    fn: FunctionText, library: MathLibrary, dtype: DType, known: Value, value: Value
) -> Value:
    """log(exp(a) + exp(b)) without overflow; an infinite operand is the result."""

    def scalar(op: str, *values: Value) -> Value:
        return _scalar(fn, library, op, dtype, *values)

    larger, smaller = scalar("maximum", known, value), scalar("minimum", known, value)
    apart = scalar("exp", scalar("sub", smaller, larger))
    finite = scalar("add", larger, scalar("log1p", apart))
    return fn.select(scalar("isinf", larger), larger, finite)
