"""The meaning of every scalar operation on NumPy arrays, as PyTorch defines it on tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kernelfarm.dtypes import DType
from kernelfarm.ir.interpret.arrays import Array, numpy_dtype
from kernelfarm.ir.interpret.random_bits import philox

Meaning = Callable[..., Any]

# NumPy has no error function; C's has less than 1 ulp in double precision.
_erf64 = np.vectorize(math.erf, otypes=[np.float64])
_erfc64 = np.vectorize(math.erfc, otypes=[np.float64])


def compute(op: str, operands: list[Array], dtype: DType) -> Array:
    """An operation on arrays that broadcast; `dtype` is the element type of the result.

    Narrow floats compute in f32 and are rounded once. Division by zero, overflow and invalid
    operands give the results of IEEE arithmetic, without warnings.
    """
    with np.errstate(all="ignore"):
        if op == "convert":
            return convert(operands[0], dtype)
        wide = [widened(operand) for operand in operands]
        return convert(np.asarray(_MEANINGS[op](*wide)), dtype)


def convert(array: Array, dtype: DType) -> Array:
    """The array in another element type: floats truncate to integers, bool means `!= 0`."""
    target = numpy_dtype(dtype)
    if array.dtype == target:
        return array
    with np.errstate(all="ignore"):
        if dtype is DType.BOOL:
            return np.asarray(widened(array) != 0)
        return array.astype(target)


def widened(array: Array) -> Array:
    """The array in the type of its arithmetic: f32 for narrower floats."""
    # The kind of ml_dtypes' floats is "V" in NumPy; float16 is a float of two bytes.
    is_narrow = array.dtype.kind == "V" or (array.dtype.kind == "f" and array.dtype.itemsize < 4)
    return array.astype(np.float32) if is_narrow else array


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f"


def _through_double(function: Callable[[Array], Array]) -> Meaning:
    def apply(x: Array) -> Array:
        if not x.size:  # np.vectorize refuses empty arrays
            return x
        return np.asarray(function(x.astype(np.float64))).astype(x.dtype)

    return apply


def _sign(x: Array) -> Array:
    # The sign of NaN is 0 in PyTorch and NaN in NumPy; a bool is its own sign.
    if x.dtype.kind == "b":
        return x
    return np.asarray((x > 0).astype(x.dtype) - (x < 0).astype(x.dtype))


def _sigmoid(x: Array) -> Array:
    one = x.dtype.type(1)
    return np.asarray(one / (one + np.exp(-x)))


def _trunc_div(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(np.trunc(a / b))
    quotient = a // b
    has_rest = (quotient * b != a) & (b != 0)
    return np.asarray(quotient + ((quotient < 0) & has_rest).astype(a.dtype))


def _mod_floor(a: Array, b: Array) -> Array:
    if not _is_float(a):
        return np.asarray(np.remainder(a, b))
    rest = np.fmod(a, b)
    return np.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)


def _pow(a: Array, b: Array) -> Array:
    if _is_float(a):
        return np.asarray(np.power(a, b))
    power = np.power(a, np.maximum(b, b.dtype.type(0)))
    # For a negative exponent only 1 and -1 have an integer power; all others round to 0.
    odd_sign = np.where(b % 2 == 0, 1, -1).astype(a.dtype) if a.dtype.kind == "i" else power
    unit = np.where(a == 1, a, np.where(a == -1, odd_sign, 0)).astype(a.dtype)
    return np.where(b < 0, unit, power)


_MEANINGS: dict[str, Meaning] = {
    "neg": np.negative,
    "abs": np.abs,
    "sign": _sign,
    "reciprocal": lambda x: x.dtype.type(1) / x,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: x.dtype.type(1) / np.sqrt(x),
    "exp": np.exp,
    "exp2": np.exp2,
    "expm1": np.expm1,
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "asinh": np.arcsinh,
    "acosh": np.arccosh,
    "atanh": np.arctanh,
    "erf": _through_double(_erf64),
    "erfc": _through_double(_erfc64),
    "sigmoid": _sigmoid,
    "floor": np.floor,
    "ceil": np.ceil,
    "trunc": np.trunc,
    "round_even": lambda x: np.rint(x) if _is_float(x) else x,
    "bitwise_not": np.invert,
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "floor_div": np.floor_divide,
    "trunc_div": _trunc_div,
    "mod_floor": _mod_floor,
    "fmod": np.fmod,
    "pow": _pow,
    "atan2": np.arctan2,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "fmax": np.fmax,
    "fmin": np.fmin,
    "copysign": np.copysign,
    "bit_and": np.bitwise_and,
    "bit_or": np.bitwise_or,
    "bit_xor": np.bitwise_xor,
    "shl": np.left_shift,
    "shr_arith": np.right_shift,
    "philox": philox,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "isfinite": np.isfinite,
    "signbit": np.signbit,
    "logical_not": np.logical_not,
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "where": np.where,
}
