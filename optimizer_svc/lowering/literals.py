"""Exact conversion of numbers between element types."""

from __future__ import annotations

import math
import struct

from kernelfarm.dtypes import DType

_WIDE = frozenset({DType.F64, DType.F32, DType.I64, DType.I32, DType.BOOL})
_INTEGER_BITS = {DType.I64: 64, DType.I32: 32}


def converted(number: float | int, source: DType, target: DType) -> float | int | None:
    """The number as `convert` gives it; None if the kernel must convert it."""
    if source not in _WIDE or target not in _WIDE:
        return None
    if target is DType.BOOL:
        return int(number != 0)
    if target in _INTEGER_BITS:
        return _to_integer(number, _INTEGER_BITS[target])
    return as_f32(float(number)) if target is DType.F32 else float(number)


def as_f32(number: float) -> float:
    """The nearest f32."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", number))[0])
    except OverflowError:
        return math.copysign(math.inf, number)


def _to_integer(number: float | int, bits: int) -> int | None:
    if isinstance(number, float) and not math.isfinite(number):
        return None
    whole = int(number)
    limit = 1 << (bits - 1)
    return whole if -limit <= whole < limit else None
