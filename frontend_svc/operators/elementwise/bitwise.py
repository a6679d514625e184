"""Logic on truth values and on bits."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


def bitwise(builder: PrimsBuilder, self: Operand, other: Operand, *, prim: str) -> Tensor:
    """An operation on the bits of two operands, in their promoted type."""
    dtype = builder.promoted(self, other)
    if dtype.is_float:
        raise InvalidGraphError(f"bits of type {dtype!r}; expected integers or bools")
    return builder.apply(prim, builder.cast(self, dtype), builder.cast(other, dtype))


def logical(builder: PrimsBuilder, self: Tensor, other: Tensor, *, prim: str) -> Tensor:
    """An operation on truth values; an element other than 0 is true."""
    return builder.apply(
        prim, builder.convert(self, DType.BOOL), builder.convert(other, DType.BOOL)
    )


_OVERLOADS = {
    "bit_and": (("bitwise_and", "Tensor Scalar Scalar_Tensor"), ("__and__", "Tensor Scalar")),
    "bit_or": (("bitwise_or", "Tensor Scalar Scalar_Tensor"), ("__or__", "Tensor Scalar")),
    "bit_xor": (("bitwise_xor", "Tensor Scalar Scalar_Tensor"), ("__xor__", "Tensor Scalar")),
    "shl": (
        ("bitwise_left_shift", "Tensor Tensor_Scalar Scalar_Tensor"),
        ("__lshift__", "Tensor Scalar"),
    ),
    "shr_arith": (
        ("bitwise_right_shift", "Tensor Tensor_Scalar Scalar_Tensor"),
        ("__rshift__", "Tensor Scalar"),
    ),
}
"""Prim -> (operator, its overloads)."""

for _prim, _operators in _OVERLOADS.items():
    for _name, _overloads in _operators:
        _names = (f"aten.{_name}.{overload}" for overload in _overloads.split())
        decomposes(*_names, fixed={"prim": _prim})(bitwise)
for _prim in ("logical_and", "logical_or", "logical_xor"):
    decomposes(f"aten.{_prim}.default", fixed={"prim": _prim})(logical)


@decomposes("aten.logical_not.default")
def logical_not(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True where zero."""
    return builder.prim("logical_not", builder.convert(self, DType.BOOL))


@decomposes("aten.bitwise_not.default")
def bitwise_not(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """All bits inverted; for bools the negation."""
    if self.dtype.is_float:
        raise InvalidGraphError(f"bits of type {self.dtype!r}; expected integers or bools")
    return builder.prim("logical_not" if self.dtype is DType.BOOL else "bitwise_not", self)
