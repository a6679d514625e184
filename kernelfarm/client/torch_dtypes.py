"""Element types as torch names them."""

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
}
_TO_TORCH = {ours: theirs for theirs, ours in _FROM_TORCH.items()}


def dtype_from_torch(dtype: torch.dtype) -> DType:
    """Our name of a torch dtype.

    Raises:
        UnsupportedDTypeError: complex, quantized and other types that no kernel computes in.
    """
    found = _FROM_TORCH.get(dtype)
    if found is None:
        known = ", ".join(sorted(d.value for d in DType))
        raise UnsupportedDTypeError(f"element type {dtype}: expected one of {known}")
    return found


def dtype_to_torch(dtype: DType) -> torch.dtype:
    """Torch's name of a dtype."""
    return _TO_TORCH[dtype]
