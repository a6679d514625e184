"""Element types of tensors: one closed enumeration for all services and the client.

Kernels compute in most of them. The others are *opaque*: tensors of these types pass through a
program, from inputs and extern steps to extern steps and outputs, and only the client's framework
computes with them.
"""

from __future__ import annotations

import enum


class DType(enum.Enum):
    """An element type; its value is its name in texts, protos and logs."""

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
    C32 = "c32"
    C64 = "c64"
    C128 = "c128"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"

    @property
    def itemsize_bytes(self) -> int:
        """The bytes of one element in memory."""
        return _ITEMSIZE_BYTES[self]

    @property
    def is_float(self) -> bool:
        """True for floating-point types that kernels compute in, two kinds of float8 included."""
        return self in _FLOATS

    @property
    def is_integer(self) -> bool:
        """True for integers that kernels compute in; false for bool."""
        return self in _INTEGERS

    @property
    def is_opaque(self) -> bool:
        """True for types that only extern steps use as operands and results, and no kernel."""
        return self in _OPAQUE

    @property
    def is_complex(self) -> bool:
        """True for pairs of floats, real part first."""
        return self in _COMPLEX

    @property
    def compute_dtype(self) -> DType:
        """The type of arithmetic: f32 for narrower floats, else the type itself."""
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
    DType.C32: 4,
    DType.C64: 8,
    DType.C128: 16,
    DType.U16: 2,
    DType.U32: 4,
    DType.U64: 8,
    DType.F8E4M3FNUZ: 1,
    DType.F8E5M2FNUZ: 1,
    DType.F8E8M0FNU: 1,
}
_NARROW_FLOATS = frozenset({DType.F16, DType.BF16, DType.F8E4M3FN, DType.F8E5M2})
_FLOATS = _NARROW_FLOATS | {DType.F64, DType.F32}
_INTEGERS = frozenset({DType.I64, DType.I32, DType.I16, DType.I8, DType.U8})
_COMPLEX = frozenset({DType.C32, DType.C64, DType.C128})
_OPAQUE = frozenset(DType) - _FLOATS - _INTEGERS - {DType.BOOL}

KERNEL_DTYPES: tuple[DType, ...] = tuple(dtype for dtype in DType if not dtype.is_opaque)
"""The types that kernels compute in."""
