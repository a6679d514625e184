"""Conversion between torch's element types and `DType`."""

from __future__ import annotations

import torch

from kernelfarm.dtypes import DType
from kernelfarm.errors import UnsupportedDTypeError

_FROM_TORCH = {
    torch.float64: DType.F64,
    torch.float32: DType.F32,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float8_e4m3fn: DType.F8E4M3FN,
    torch.float8_e5m2: DType.F8E5M2,
    torch.int64: DType.I64,
    torch.int32: DType.I32,
    torch.int16: DType.I16,
    torch.int8: DType.I8,
    torch.uint8: DType.U8,
    torch.bool: DType.BOOL,
    torch.complex32: DType.C32,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
    torch.float8_e4m3fnuz: DType.F8E4M3FNUZ,
    torch.float8_e5m2fnuz: DType.F8E5M2FNUZ,
    torch.float8_e8m0fnu: DType.F8E8M0FNU,
}
_TO_TORCH = {ours: theirs for theirs, ours in _FROM_TORCH.items()}


def dtype_from_torch(dtype: torch.dtype) -> DType:
    """The element type of a torch dtype.

    Raises:
        UnsupportedDTypeError: a quantized or other type that cannot be encoded.
    """
    found = _FROM_TORCH.get(dtype)
    if found is None:
        known = ", ".join(sorted(d.value for d in DType))
        raise UnsupportedDTypeError(f"element type {dtype}: expected one of {known}")
    return found


def dtype_to_torch(dtype: DType) -> torch.dtype:
    """The torch dtype of an element type."""
    return _TO_TORCH[dtype]
