"""NumPy element types, and expressions over arrays of loop indices."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.atoms import Atom, FloorDiv, Max, Min, Mod, Symbol
from kernelfarm.ir.algebra.expr import Expr

Array = npt.NDArray[Any]
IntArray = Array | int

_NUMPY = {
    DType.F64: np.float64,
    DType.F32: np.float32,
    DType.F16: np.float16,
    DType.I64: np.int64,
    DType.I32: np.int32,
    DType.I16: np.int16,
    DType.I8: np.int8,
    DType.U8: np.uint8,
    DType.BOOL: np.bool_,
    DType.C64: np.complex64,
    DType.C128: np.complex128,
    DType.U16: np.uint16,
    DType.U32: np.uint32,
    DType.U64: np.uint64,
}
_HALF_COMPLEX = np.dtype([("real", np.float16), ("imag", np.float16)])
_ML_DTYPES = {
    DType.BF16: "bfloat16",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0FNU: "float8_e8m0fnu",
}


@lru_cache(maxsize=32)
def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    """The NumPy type of an element type; narrow floats that NumPy lacks come from ml_dtypes."""
    if dtype in _NUMPY:
        return np.dtype(_NUMPY[dtype])
    if dtype is DType.C32:
        return _HALF_COMPLEX  # no arithmetic is needed for a type that is only copied
    # Imported here, because only the farm and the tests install it and interpret such types.
    import ml_dtypes  # noqa: PLC0415

    narrow: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES[dtype]))
    return narrow


def evaluate_over(expr: Expr, values: Mapping[str, IntArray]) -> IntArray:
    """The value of an expression whose symbols are integers, or arrays that broadcast.

    Raises:
        KeyError: a symbol has no value.
    """
    total: IntArray = expr.constant
    for monomial, coefficient in expr.terms:
        term: IntArray = coefficient
        for atom in monomial:
            term = term * _evaluate_atom(atom, values)
        total = total + term
    return total


def _evaluate_atom(atom: Atom, values: Mapping[str, IntArray]) -> IntArray:
    match atom:
        case Symbol(name):
            return values[name]
        case FloorDiv(a, b):
            return evaluate_over(a, values) // evaluate_over(b, values)
        case Mod(a, b):
            return evaluate_over(a, values) % evaluate_over(b, values)
        case Min(a, b):
            return np.minimum(evaluate_over(a, values), evaluate_over(b, values))
        case Max(a, b):
            return np.maximum(evaluate_over(a, values), evaluate_over(b, values))
