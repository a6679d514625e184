"""Scalar operations on integers and bools.

Arithmetic wraps. Division and remainder by zero give 0: PyTorch raises an error there, which a
kernel cannot do, and it must not trap. The smallest integer divided by -1 wraps. As in PyTorch,
shifts by a negative amount or by at least the width give 0, or the sign for `shr_arith`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from codegen_svc.emitters.llvm import random_bits
from codegen_svc.emitters.llvm.text import I1, I64, FunctionText, Value, integer
from kernelfarm.dtypes import DType

Operation = Callable[[FunctionText, DType, list[Value]], Value]

_BOOL_INSTRUCTIONS: Final = {
    "add": "or",
    "mul": "and",
    "maximum": "or",
    "minimum": "and",
    "fmax": "or",
    "fmin": "and",
    "bit_and": "and",
    "bit_or": "or",
    "bit_xor": "xor",
}
_INSTRUCTIONS: Final = {
    "add": "add",
    "sub": "sub",
    "mul": "mul",
    "bit_and": "and",
    "bit_or": "or",
    "bit_xor": "xor",
}
_IDENTITIES: Final = frozenset({"floor", "ceil", "trunc", "round_even"})
_BOOL_IDENTITIES: Final = _IDENTITIES | {"abs", "sign"}


def find(op: str, dtype: DType) -> Operation | None:
    """The function that writes an operation on integers or bools; None if there is none."""
    if dtype is DType.BOOL:
        return _find_bool(op)
    if op in _INSTRUCTIONS:
        return lambda fn, _, v: fn.op(_INSTRUCTIONS[op], *v)
    if op in _IDENTITIES:
        return lambda fn, _, v: v[0]
    return _OPERATIONS.get(op)


def _find_bool(op: str) -> Operation | None:
    if op in _BOOL_INSTRUCTIONS:
        return lambda fn, _, v: fn.op(_BOOL_INSTRUCTIONS[op], *v)
    if op in _BOOL_IDENTITIES:
        return lambda fn, _, v: v[0]
    if op == "bitwise_not":
        return lambda fn, _, v: fn.op("xor", v[0], integer(1, I1))
    return None


def _is_unsigned(dtype: DType) -> bool:
    return dtype is DType.U8


def _compare(fn: FunctionText, dtype: DType, predicate: str, a: Value, b: Value) -> Value:
    return fn.compare("icmp", ("u" if _is_unsigned(dtype) else "s") + predicate, a, b)


def _neg(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    return fn.op("sub", integer(0, v[0].type), v[0])


def _not(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    return fn.op("xor", v[0], integer(-1, v[0].type))


def _abs(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    if _is_unsigned(dtype):
        return v[0]
    negative = fn.compare("icmp", "slt", v[0], integer(0, v[0].type))
    return fn.select(negative, _neg(fn, dtype, v), v[0])


def _sign(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    zero, one = integer(0, v[0].type), integer(1, v[0].type)
    positive = fn.select(_compare(fn, dtype, "gt", v[0], zero), one, zero)
    if _is_unsigned(dtype):
        return positive
    negative = fn.compare("icmp", "slt", v[0], zero)
    return fn.select(negative, integer(-1, v[0].type), positive)


def _maximum(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    return fn.intrinsic("umax" if _is_unsigned(dtype) else "smax", *v)


def _minimum(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    return fn.intrinsic("umin" if _is_unsigned(dtype) else "smin", *v)


def _safe_divisor(fn: FunctionText, dtype: DType, b: Value) -> tuple[Value, Value, Value]:
    """(a divisor that cannot trap, whether b is 0, whether b is -1)."""
    is_zero = fn.compare("icmp", "eq", b, integer(0, b.type))
    is_minus_one = integer(0, I1)
    is_unsafe = is_zero
    if not _is_unsigned(dtype):
        is_minus_one = fn.compare("icmp", "eq", b, integer(-1, b.type))
        is_unsafe = fn.op("or", is_zero, is_minus_one)
    return fn.select(is_unsafe, integer(1, b.type), b), is_zero, is_minus_one


def _trunc_div(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    a, b = v
    divisor, is_zero, is_minus_one = _safe_divisor(fn, dtype, b)
    quotient = fn.op("udiv" if _is_unsigned(dtype) else "sdiv", a, divisor)
    quotient = fn.select(is_minus_one, _neg(fn, dtype, [a]), quotient)
    return fn.select(is_zero, integer(0, a.type), quotient)


def _fmod(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    divisor, _, _ = _safe_divisor(fn, dtype, v[1])
    return fn.op("urem" if _is_unsigned(dtype) else "srem", v[0], divisor)


def _needs_floor(fn: FunctionText, remainder: Value, b: Value) -> Value:
    zero = integer(0, b.type)
    differs = fn.compare("icmp", "slt", fn.op("xor", remainder, b), zero)
    return fn.op("and", fn.compare("icmp", "ne", remainder, zero), differs)


def _floor_div(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    quotient = _trunc_div(fn, dtype, v)
    if _is_unsigned(dtype):
        return quotient
    remainder = _fmod(fn, dtype, v)
    lower = fn.op("sub", quotient, integer(1, quotient.type))
    return fn.select(_needs_floor(fn, remainder, v[1]), lower, quotient)


def _mod_floor(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    remainder = _fmod(fn, dtype, v)
    if _is_unsigned(dtype):
        return remainder
    moved = fn.op("add", remainder, v[1])
    return fn.select(_needs_floor(fn, remainder, v[1]), moved, remainder)


def _is_shift_in_range(fn: FunctionText, amount: Value) -> Value:
    return fn.compare("icmp", "ult", amount, integer(int(amount.type[1:]), amount.type))


def _shl(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    is_fine = _is_shift_in_range(fn, v[1])
    zero = integer(0, v[0].type)
    shifted = fn.op("shl", v[0], fn.select(is_fine, v[1], zero))
    return fn.select(is_fine, shifted, zero)


def _shr_arith(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    is_fine = _is_shift_in_range(fn, v[1])
    if _is_unsigned(dtype):
        zero = integer(0, v[0].type)
        shifted = fn.op("lshr", v[0], fn.select(is_fine, v[1], zero))
        return fn.select(is_fine, shifted, zero)
    last = integer(int(v[1].type[1:]) - 1, v[1].type)
    return fn.op("ashr", v[0], fn.select(is_fine, v[1], last))


_POWER = """define internal i64 @kf.pow.i64(i64 %base, i64 %exponent) nounwind {
entry:
  %parity = and i64 %exponent, 1
  %is_odd = icmp ne i64 %parity, 0
  %sign = select i1 %is_odd, i64 -1, i64 1
  %is_one = icmp eq i64 %base, 1
  %is_minus_one = icmp eq i64 %base, -1
  %unit = select i1 %is_minus_one, i64 %sign, i64 0
  %inverse = select i1 %is_one, i64 1, i64 %unit
  %is_negative = icmp slt i64 %exponent, 0
  br i1 %is_negative, label %exit, label %head
head:
  %left = phi i64 [ %exponent, %entry ], [ %halved, %step ]
  %power = phi i64 [ %base, %entry ], [ %squared, %step ]
  %result = phi i64 [ 1, %entry ], [ %next, %step ]
  %is_done = icmp eq i64 %left, 0
  br i1 %is_done, label %exit, label %step
step:
  %bit = and i64 %left, 1
  %is_set = icmp ne i64 %bit, 0
  %multiplied = mul i64 %result, %power
  %next = select i1 %is_set, i64 %multiplied, i64 %result
  %squared = mul i64 %power, %power
  %halved = lshr i64 %left, 1
  br label %head
exit:
  %value = phi i64 [ %inverse, %entry ], [ %result, %head ]
  ret i64 %value
}"""


def _pow(fn: FunctionText, dtype: DType, v: list[Value]) -> Value:
    """A power by squaring; a negative exponent gives 0, except for the bases 1 and -1."""
    if _POWER not in fn.module.functions:
        fn.module.functions.append(_POWER)
    extend = "zext" if _is_unsigned(dtype) else "sext"
    wide = [fn.cast(extend, value, I64) for value in v]
    return fn.cast("trunc", fn.call("kf.pow.i64", I64, *wide), v[0].type)


_OPERATIONS: Final[dict[str, Operation]] = {
    "neg": _neg,
    "bitwise_not": _not,
    "abs": _abs,
    "sign": _sign,
    "maximum": _maximum,
    "minimum": _minimum,
    "fmax": _maximum,
    "fmin": _minimum,
    "trunc_div": _trunc_div,
    "floor_div": _floor_div,
    "fmod": _fmod,
    "mod_floor": _mod_floor,
    "shl": _shl,
    "shr_arith": _shr_arith,
    "pow": _pow,
    "philox": random_bits.philox,
}
