"""Element types in LLVM: their types in registers and in memory, constants, conversions.

In registers, bf16 and float8 are bit patterns, and bool is `i1`. In memory, bool is one byte, 0 or
1.
"""

from __future__ import annotations

import math
import struct
from typing import Final

from codegen_svc.emitters.llvm.text import (
    DOUBLE,
    FLOAT,
    HALF,
    I1,
    I8,
    I16,
    I32,
    I64,
    FunctionText,
    Value,
    floating,
    integer,
)
from kernelfarm.dtypes import DType

REGISTER_TYPE: Final = {
    DType.F64: DOUBLE,
    DType.F32: FLOAT,
    DType.F16: HALF,
    DType.BF16: I16,
    DType.F8E4M3FN: I8,
    DType.F8E5M2: I8,
    DType.I64: I64,
    DType.I32: I32,
    DType.I16: I16,
    DType.I8: I8,
    DType.U8: I8,
    DType.BOOL: I1,
}
INTEGER_RANGE: Final = {
    DType.I64: (-(2**63), 2**63 - 1),
    DType.I32: (-(2**31), 2**31 - 1),
    DType.I16: (-(2**15), 2**15 - 1),
    DType.I8: (-128, 127),
    DType.U8: (0, 255),
}


def register_type(dtype: DType) -> str:
    """The LLVM type of a value in a register."""
    return REGISTER_TYPE[dtype]


def memory_type(dtype: DType) -> str:
    """The LLVM type of an element in memory."""
    return I8 if dtype is DType.BOOL else REGISTER_TYPE[dtype]


def constant(fn: FunctionText, dtype: DType, value: float | int) -> Value:
    """A number as a constant of the type; integers wrap, as in PyTorch's `full`."""
    if dtype is DType.BOOL:
        return integer(int(bool(value)), I1)
    if dtype.is_integer:
        return integer(_truncated(value), REGISTER_TYPE[dtype])
    if dtype in (DType.F64, DType.F32, DType.F16):
        return floating(float(value), REGISTER_TYPE[dtype])
    if dtype is DType.BF16:
        return integer(_bf16_bits(float(value)), I16)
    return convert(fn, floating(float(value), FLOAT), DType.F32, dtype)


def _truncated(value: float | int) -> int:
    return int(value) if math.isfinite(value) else 0


def _bf16_bits(value: float) -> int:
    if math.isnan(value):
        return 0x7FC0
    bits = int(floating(value, DOUBLE).text[2:], 16)
    as_f32: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    try:
        pattern = int.from_bytes(struct.pack("<f", as_f32), "little")
    except OverflowError:
        return 0x7F80 if value > 0 else 0xFF80
    return (pattern + 0x7FFF + ((pattern >> 16) & 1)) >> 16


def convert(fn: FunctionText, value: Value, source: DType, target: DType) -> Value:
    """The value in another type: floats to integers truncate, anything to bool is `!= 0`."""
    if source is target:
        return value
    if source.compute_dtype is not source:
        return convert(fn, _widen(fn, value, source), DType.F32, target)
    if target.compute_dtype is not target:
        return _narrow(fn, convert(fn, value, source, DType.F32), target)
    if target is DType.BOOL:
        return _is_nonzero(fn, value, source)
    if source.is_float:
        return _from_float(fn, value, target)
    return _from_integer(fn, value, source, target)


def _is_nonzero(fn: FunctionText, value: Value, source: DType) -> Value:
    if source.is_float:
        return fn.compare("fcmp", "une", value, floating(0.0, value.type))
    return fn.compare("icmp", "ne", value, integer(0, value.type))


def _from_float(fn: FunctionText, value: Value, target: DType) -> Value:
    """A float as another type.

    To integers it saturates at 32 or 64 bits, NaN gives 0, and narrower integers are the low bits.
    """
    if target.is_float:
        return fn.cast("fpext" if target is DType.F64 else "fptrunc", value, REGISTER_TYPE[target])
    wide = DType.I64 if target is DType.I64 else DType.I32
    return fn.cast("trunc", _saturated(fn, value, wide), REGISTER_TYPE[target])


def _saturated(fn: FunctionText, value: Value, target: DType) -> Value:
    """A float as an integer of 32 or 64 bits, the nearest one; NaN gives 0.

    LLVM's own operation, `llvm.fptosi.sat`, takes the lanes of x86-64's vectors one by one: rows of
    bf16 as integers of 8 bits took five times as long (AVX-512).
    """
    least, most = INTEGER_RANGE[target]
    low, high = floating(float(least), value.type), floating(float(most + 1), value.type)
    kind = REGISTER_TYPE[target]
    raised = fn.select(fn.compare("fcmp", "olt", value, low), low, value)
    is_number_below = fn.compare("fcmp", "olt", raised, high)
    inside = fn.select(is_number_below, raised, floating(0.0, value.type))
    is_above = fn.compare("fcmp", "oge", value, high)
    return fn.select(is_above, integer(most, kind), fn.cast("fptosi", inside, kind))


def _from_integer(fn: FunctionText, value: Value, source: DType, target: DType) -> Value:
    is_unsigned = source in (DType.U8, DType.BOOL)
    to = REGISTER_TYPE[target]
    if target.is_float:
        return fn.cast("uitofp" if is_unsigned else "sitofp", value, to)
    if source is DType.BOOL or source.itemsize_bytes < target.itemsize_bytes:
        return fn.cast("zext" if is_unsigned else "sext", value, to)
    return fn.cast("trunc", value, to)


def _widen(fn: FunctionText, value: Value, source: DType) -> Value:
    if source is DType.F16:
        return fn.cast("fpext", value, FLOAT)
    if source is DType.BF16:
        wide = fn.cast("zext", value, I32)
        return fn.cast("bitcast", fn.op("shl", wide, integer(16, I32)), FLOAT)
    if source is DType.F8E5M2:
        wide = fn.cast("zext", value, I16)
        half = fn.cast("bitcast", fn.op("shl", wide, integer(8, I16)), HALF)
        return fn.cast("fpext", half, FLOAT)
    return _widen_e4m3(fn, value)


def _widen_e4m3(fn: FunctionText, value: Value) -> Value:
    """1 sign, 4 exponent (bias 7), 3 mantissa bits; no infinity, all ones is NaN."""
    wide = fn.cast("zext", value, I32)
    magnitude = fn.op("and", wide, integer(0x7F, I32))
    moved = fn.op("shl", magnitude, integer(20, I32))
    normal_bits = fn.op("add", moved, integer((127 - 7) << 23, I32))
    normal = fn.cast("bitcast", normal_bits, FLOAT)
    tiny = fn.op("fmul", fn.cast("uitofp", magnitude, FLOAT), floating(2.0**-9, FLOAT))
    result = fn.select(fn.compare("icmp", "ult", magnitude, integer(8, I32)), tiny, normal)
    is_nan = fn.compare("icmp", "eq", magnitude, integer(0x7F, I32))
    result = fn.select(is_nan, floating(math.nan, FLOAT), result)
    sign_bits = fn.op("shl", wide, integer(24, I32))
    return fn.intrinsic("copysign", result, fn.cast("bitcast", sign_bits, FLOAT))


def _narrow(fn: FunctionText, value: Value, target: DType) -> Value:
    """Rounds to nearest even."""
    if target is DType.F16:
        return fn.cast("fptrunc", value, HALF)
    if target is DType.BF16:
        return _narrow_bf16(fn, value)
    if target is DType.F8E4M3FN:
        # There is no infinity; 464 and all larger numbers become the largest, as in PyTorch 2.13.
        return _narrow_f8(fn, value, mantissa=3, bias=7, overflow=0x43E80000, infinity=0x7E)
    return _narrow_f8(fn, value, mantissa=2, bias=15, overflow=143 << 23, infinity=0x7C)


def _narrow_bf16(fn: FunctionText, value: Value) -> Value:
    if fn.module.rounds_results or fn.module.rounds_all:
        return fn.cast("bitcast", fn.cast("fptrunc", value, "bfloat"), I16)
    pattern = fn.cast("bitcast", value, I32)
    is_odd = fn.op("and", fn.op("lshr", pattern, integer(16, I32)), integer(1, I32))
    rounded = fn.op("add", fn.op("add", pattern, integer(0x7FFF, I32)), is_odd)
    moved = fn.cast("trunc", fn.op("lshr", rounded, integer(16, I32)), I16)
    is_nan = fn.compare("fcmp", "uno", value, value)
    return fn.select(is_nan, integer(0x7FC0, I16), moved)


def _narrow_f8(
    fn: FunctionText, value: Value, *, mantissa: int, bias: int, overflow: int, infinity: int
) -> Value:
    """The rounding of c10's Float8 headers.

    `overflow` is the smallest f32 pattern that has no finite f8.
    """
    pattern = fn.cast("bitcast", value, I32)
    sign = fn.op("and", fn.op("lshr", pattern, integer(24, I32)), integer(0x80, I32))
    magnitude = fn.op("and", pattern, integer(0x7FFFFFFF, I32))
    dropped = 23 - mantissa
    # Adding this power of two aligns a denormal's bits at the bottom, rounded by the FPU.
    denormal_base = integer((127 - bias + dropped + 1) << 23, I32)
    aligned = fn.op(
        "fadd",
        fn.cast("bitcast", magnitude, FLOAT),
        fn.cast("bitcast", denormal_base, FLOAT),
    )
    denormal = fn.op("sub", fn.cast("bitcast", aligned, I32), denormal_base)
    is_odd = fn.op("and", fn.op("lshr", magnitude, integer(dropped, I32)), integer(1, I32))
    rebased = fn.op("add", magnitude, integer(((bias - 127) << 23) + (1 << (dropped - 1)) - 1, I32))
    normal = fn.op("lshr", fn.op("add", rebased, is_odd), integer(dropped, I32))
    first_normal = integer((128 - bias) << 23, I32)
    result = fn.select(fn.compare("icmp", "ult", magnitude, first_normal), denormal, normal)
    is_big = fn.compare("icmp", "uge", magnitude, integer(overflow, I32))
    result = fn.select(is_big, integer(infinity, I32), result)
    is_nan = fn.compare("icmp", "ugt", magnitude, integer(0x7F800000, I32))
    result = fn.select(is_nan, integer(0x7F, I32), result)
    return fn.cast("trunc", fn.op("or", result, sign), I8)
