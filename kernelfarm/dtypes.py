"""Element types of tensors: one closed enumeration for every room."""

from __future__ import annotations

import enum


class DType(enum.Enum):
    """An element type; its value is the name that texts, protos and logs use."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8E4M3FN = "f8e4m3fn"
    F8E5M2 = "f8e5m2"
    I64 = "i64"
    I32 = "i32"
    I16 = "i16"
    I8 = "i8"
    U8 = "u8"
    BOOL = "bool"

    @property
    def itemsize_bytes(self) -> int:
        """Bytes that one element occupies in memory."""
        return _ITEMSIZE_BYTES[self]

    @property
    def is_float(self) -> bool:
        """True for every floating type, float8 included."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """True for integers; false for bool."""
        return not self.is_float and self is not DType.BOOL

    @property
    def compute_dtype(self) -> DType:
        """The type in which arithmetic is done: f32 for narrower floats, else the type itself."""
        return DType.F32 if self in _NARROW_FLOATS else self

    def __repr__(self) -> str:
        return self.value


_ITEMSIZE_BYTES = {
    DType.F64: 8,
    DType.F32: 4,
    DType.F16: 2,
    DType.BF16: 2,
    DType.F8E4M3FN: 1,
    DType.F8E5M2: 1,
    DType.I64: 8,
    DType.I32: 4,
    DType.I16: 2,
    DType.I8: 1,
    DType.U8: 1,
    DType.BOOL: 1,
}
_NARROW_FLOATS = frozenset({DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2})
_FLOATS = _NARROW_FLOATS | {DType.F64, DType.F32}
