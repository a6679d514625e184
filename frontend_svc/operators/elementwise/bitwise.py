"""Logic on truth values and on bits."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


def _bits(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    dtype = builder.promoted(left, right)
    if dtype.is_float:
        raise InvalidGraphError(f"bits of type {dtype!r}; expected integers or bools")
    return builder.apply(prim, builder.cast(left, dtype), builder.cast(right, dtype))


def _register_bits(name: str, prim: str, *overloads: str) -> None:
    def function(builder: PrimsBuilder, self: Operand, other: Operand) -> Tensor:
        return _bits(builder, prim, self, other)

    decomposes(*(f"aten.{name}.{overload}" for overload in overloads))(function)


def _register_logical(prim: str) -> None:
    def function(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
        return builder.apply(
            prim, builder.convert(self, DType.BOOL), builder.convert(other, DType.BOOL)
        )

    decomposes(f"aten.{prim}.default")(function)


for _short, _prim in (("and", "bit_and"), ("or", "bit_or"), ("xor", "bit_xor")):
    _register_bits(f"bitwise_{_short}", _prim, "Tensor", "Scalar", "Scalar_Tensor")
    _register_bits(f"__{_short}__", _prim, "Tensor", "Scalar")
    _register_logical(f"logical_{_short}")
_register_bits("bitwise_left_shift", "shl", "Tensor", "Tensor_Scalar", "Scalar_Tensor")
_register_bits("bitwise_right_shift", "shr_arith", "Tensor", "Tensor_Scalar", "Scalar_Tensor")
_register_bits("__lshift__", "shl", "Tensor", "Scalar")
_register_bits("__rshift__", "shr_arith", "Tensor", "Scalar")


@decomposes("aten.logical_not.default")
def logical_not(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """True where zero."""
    return builder.prim("logical_not", builder.convert(self, DType.BOOL))


@decomposes("aten.bitwise_not.default")
def bitwise_not(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """All bits turned over; of bools the opposite."""
    if self.dtype.is_float:
        raise InvalidGraphError(f"bits of type {self.dtype!r}; expected integers or bools")
    return builder.prim("logical_not" if self.dtype is DType.BOOL else "bitwise_not", self)
