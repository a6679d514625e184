"""Running reductions: their types, identities and steps, and their final values."""

from __future__ import annotations

from typing import Final

from codegen_svc.emitters.llvm.element_types import INTEGER_RANGE, convert, register_type
from codegen_svc.emitters.llvm.schedule import Accumulator
from codegen_svc.emitters.llvm.text import (
    DOUBLE,
    FLOAT,
    I1,
    I64,
    FunctionText,
    Value,
    bits_type,
    floating,
    integer,
)
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

NO_INDEX: Final = 2**63 - 1


def accumulator_dtype(accumulator: Accumulator) -> DType:
    """The type of a reduction's running value: f32 for narrow floats, i64 for indices.

    Extrema of floats use integers of the same order, see `ordered_bits`.
    """
    if is_float_extremum(accumulator):
        return DType.I64 if accumulator.dtype is DType.F64 else DType.I32
    if accumulator.op == "first_index":
        return DType.I64
    if accumulator.op in ("any", "all"):
        return DType.BOOL
    return accumulator.dtype.compute_dtype


def is_float_extremum(accumulator: Accumulator) -> bool:
    """True if the reduction gives the largest or smallest float."""
    return accumulator.op in ("amax", "amin") and accumulator.dtype.is_float


def ordered_bits(fn: FunctionText, value: Value, op: str) -> Value:
    """An integer that compares as the float does; NaN is beyond every number.

    A step of the reduction is then one integer maximum. A float maximum that propagates NaN takes
    five instructions, each of which depends on the one before.
    """
    kind = bits_type(value.type)
    width = int(kind[1:])
    pattern = fn.cast("bitcast", value, kind)
    ordered = _flip_negative(fn, pattern, width)
    beyond = 2 ** (width - 1) - 1 if op == "amax" else -(2 ** (width - 1))
    is_nan = fn.compare("fcmp", "uno", value, value)
    return fn.select(is_nan, integer(beyond, kind), ordered)


def _flip_negative(fn: FunctionText, pattern: Value, width: int) -> Value:
    """Inverts all bits but the sign of negative numbers; the function is its own inverse."""
    sign = fn.op("ashr", pattern, integer(width - 1, pattern.type))
    mask = fn.op("lshr", sign, integer(1, pattern.type))
    return fn.op("xor", pattern, mask)


def from_ordered_bits(fn: FunctionText, value: Value) -> Value:
    """The float of an ordered integer."""
    width = int(value.type[1:])
    pattern = _flip_negative(fn, value, width)
    return fn.cast("bitcast", pattern, DOUBLE if width == 64 else FLOAT)


def start_value(accumulator: Accumulator) -> Value:
    """The start of a reduction's running value."""
    if not is_float_extremum(accumulator):
        return identity(accumulator.op, accumulator_dtype(accumulator))
    # The patterns of infinities; those of negative numbers have all bits but the sign inverted.
    infinity = 0x7FF << 52 if accumulator.dtype is DType.F64 else 0xFF << 23
    value = -infinity - 1 if accumulator.op == "amax" else infinity
    return integer(value, register_type(accumulator_dtype(accumulator)))


def identity(op: str, dtype: DType) -> Value:
    """The neutral value of a reduction in the type of its running value."""
    llvm_type = register_type(dtype)
    if op == "first_index":
        return integer(NO_INDEX, I64)
    if op in ("any", "all"):
        return integer(int(op == "all"), I1)
    if dtype.is_float:
        return floating(1.0 if op == "prod" else 0.0, llvm_type)
    if op in ("sum", "prod"):
        return integer(int(op == "prod"), llvm_type)
    low, high = (0, 1) if dtype is DType.BOOL else INTEGER_RANGE[dtype]
    return integer(low if op == "amax" else high, llvm_type)


def combine(fn: FunctionText, op: str, dtype: DType, a: Value, b: Value) -> Value:
    """One step of a reduction; sums and products may be reordered, so that they vectorize.

    Raises:
        KernelRejectedError: the reduction is not defined for this type.
    """
    if op in ("any", "all"):
        return fn.op("or" if op == "any" else "and", a, b)
    if op == "first_index":
        return fn.intrinsic("smin", a, b)
    if op in ("amax", "amin"):
        return _extremum(fn, op, dtype, a, b)
    if dtype is DType.BOOL:
        raise KernelRejectedError(f"reduction {op!r} on bool has no CPU code; expected an integer")
    if dtype.is_float:
        return fn.op("fadd reassoc" if op == "sum" else "fmul reassoc", a, b)
    return fn.op("add" if op == "sum" else "mul", a, b)


def _extremum(fn: FunctionText, op: str, dtype: DType, a: Value, b: Value) -> Value:
    if dtype is DType.BOOL:
        return fn.op("or" if op == "amax" else "and", a, b)
    sign = "u" if dtype is DType.U8 else "s"
    return fn.intrinsic(sign + ("max" if op == "amax" else "min"), a, b)


def index_of_hit(
    fn: FunctionText, value: Value, best: Value, flat_index: Value, dtype: DType
) -> Value:
    """The flat index if the value is the extremum or NaN, else an index above all others."""
    if dtype.is_float:
        is_equal = fn.compare("fcmp", "oeq", value, best)
        is_hit = fn.op("or", is_equal, fn.compare("fcmp", "uno", value, value))
    else:
        is_hit = fn.compare("icmp", "eq", value, best)
    return fn.select(is_hit, flat_index, integer(NO_INDEX, I64))


def finished(fn: FunctionText, value: Value, accumulator: Accumulator, running: DType) -> Value:
    """The value of a finished reduction in the type of its statement."""
    if is_float_extremum(accumulator):
        return convert(
            fn,
            from_ordered_bits(fn, value),
            accumulator.dtype.compute_dtype,
            accumulator.dtype,
        )
    return convert(fn, value, running, accumulator.dtype)
