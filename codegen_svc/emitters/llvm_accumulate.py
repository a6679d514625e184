"""Running reductions: identities, one step, and where the running value lies."""

from __future__ import annotations

import math
from typing import Final

from codegen_svc.emitters.llvm_schedule import Accumulator
from codegen_svc.emitters.llvm_text import I1, I64, FunctionText, Value, floating, integer
from codegen_svc.emitters.llvm_types import INTEGER_RANGE, convert, register_type
from kernelfarm.dtypes import DType
from kernelfarm.errors import KernelRejectedError

NO_INDEX: Final = 2**63 - 1


def accumulator_dtype(accumulator: Accumulator) -> DType:
    """The type in which a reduction runs; narrow floats run in f32, indices in i64."""
    if accumulator.op == "first_index":
        return DType.I64
    if accumulator.op in ("any", "all"):
        return DType.BOOL
    return accumulator.dtype.compute_dtype


def identity(op: str, dtype: DType) -> Value:
    """The value that a reduction starts from."""
    llvm_type = register_type(dtype)
    if op == "first_index":
        return integer(NO_INDEX, I64)
    if op in ("any", "all"):
        return integer(int(op == "all"), I1)
    if dtype.is_float:
        start = {"sum": -0.0, "prod": 1.0, "amax": -math.inf, "amin": math.inf}[op]
        return floating(start, llvm_type)
    if op in ("sum", "prod"):
        return integer(int(op == "prod"), llvm_type)
    low, high = (0, 1) if dtype is DType.BOOL else INTEGER_RANGE[dtype]
    return integer(low if op == "amax" else high, llvm_type)


def combine(fn: FunctionText, op: str, dtype: DType, a: Value, b: Value) -> Value:
    """One step of a reduction; sums and products may be reordered, so that they vectorize.

    Raises:
        KernelRejectedError: the reduction has no meaning on this type.
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
    if dtype.is_float:
        return fn.intrinsic("maximum" if op == "amax" else "minimum", a, b)
    if dtype is DType.BOOL:
        return fn.op("or" if op == "amax" else "and", a, b)
    sign = "u" if dtype is DType.U8 else "s"
    return fn.intrinsic(sign + ("max" if op == "amax" else "min"), a, b)


def index_of_hit(
    fn: FunctionText, value: Value, best: Value, flat_index: Value, dtype: DType
) -> Value:
    """The flat index where the value is the extremum or NaN, else an index above all others."""
    if dtype.is_float:
        is_equal = fn.compare("fcmp", "oeq", value, best)
        is_hit = fn.op("or", is_equal, fn.compare("fcmp", "uno", value, value))
    else:
        is_hit = fn.compare("icmp", "eq", value, best)
    return fn.select(is_hit, flat_index, integer(NO_INDEX, I64))


def finished(fn: FunctionText, value: Value, accumulator: Accumulator, running: DType) -> Value:
    """A finished reduction in the type that its statement promises."""
    return convert(fn, value, running, accumulator.dtype)
