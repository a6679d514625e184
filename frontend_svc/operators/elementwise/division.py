"""Quotients and remainders in their rounding modes."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import computed, rounded
from kernelfarm.errors import InvalidGraphError


@decomposes("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The quotient as a float, for integers too."""
    dtype = float_dtype(builder.promoted(self, other))
    result = builder.apply("div", computed(builder, self, dtype), computed(builder, other, dtype))
    return builder.convert(result, dtype)


@decomposes("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(
    builder: PrimsBuilder, self: Tensor, other: Operand, *, rounding_mode: str | None = None
) -> Tensor:
    """The quotient, rounded to zero (`trunc`), to minus infinity (`floor`) or not at all."""
    if rounding_mode is None:
        return div(builder, self, other)
    if rounding_mode == "floor":
        return floor_divide(builder, self, other)
    if rounding_mode == "trunc":
        return _truncated(builder, self, other)
    raise InvalidGraphError(f"rounding mode '{rounding_mode[:40]}'; expected 'floor' or 'trunc'")


@decomposes("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The quotient rounded to minus infinity."""
    dtype = builder.promoted(self, other)
    a, b = rounded(builder, self, dtype), rounded(builder, other, dtype)
    if not dtype.is_float:
        return builder.apply("floor_div", a, b)
    return builder.convert(_floored(builder, a, b), dtype)


@decomposes("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The remainder of floor division; it has the divisor's sign."""
    return _remainder(builder, self, other)


@decomposes("aten.remainder.Scalar_Tensor")
def remainder_of_number(builder: PrimsBuilder, self: Operand, other: Tensor) -> Tensor:
    """The remainder of floor division of a number by a tensor."""
    return _remainder(builder, self, other)


@decomposes("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The remainder of truncated division; it has the dividend's sign."""
    dtype = builder.promoted(self, other)
    return builder.convert(
        builder.apply("fmod", rounded(builder, self, dtype), rounded(builder, other, dtype)), dtype
    )


def _remainder(builder: PrimsBuilder, left: Operand, right: Operand) -> Tensor:
    dtype = builder.promoted(left, right)
    a, b = rounded(builder, left, dtype), rounded(builder, right, dtype)
    if not dtype.is_float:
        return builder.apply("mod_floor", a, b)
    rest = builder.apply("fmod", a, b)
    shifted = builder.apply("add", rest, b)
    return builder.convert(builder.where(_has_wrong_sign(builder, rest, b), shifted, rest), dtype)


def _floored(builder: PrimsBuilder, a: Tensor, b: Tensor) -> Tensor:
    """Floor division of floats; exact where `floor(a / b)` suffers from the quotient's rounding.

    Source: `div_floor_floating` in c10/util/generic_math.h of PyTorch.
    """
    rest = builder.apply("fmod", a, b)
    quotient = builder.apply("div", builder.apply("sub", a, rest), b)
    lower = builder.apply("sub", quotient, 1.0)
    quotient = builder.where(_has_wrong_sign(builder, rest, b), lower, quotient)
    floored = builder.prim("floor", quotient)
    is_high = builder.apply("gt", builder.apply("sub", quotient, floored), 0.5)
    floored = builder.where(is_high, builder.apply("add", floored, 1.0), floored)
    plain = builder.apply("div", a, b)
    signed_zero = builder.apply("copysign", 0.0, plain)
    floored = builder.where(builder.apply("eq", quotient, 0.0), signed_zero, floored)
    return builder.where(builder.apply("eq", b, 0.0), plain, floored)


def _has_wrong_sign(builder: PrimsBuilder, rest: Tensor, divisor: Tensor) -> Tensor:
    differs = builder.apply("ne", builder.apply("lt", divisor, 0.0), builder.apply("lt", rest, 0.0))
    return builder.apply("logical_and", builder.apply("ne", rest, 0.0), differs)


def _truncated(builder: PrimsBuilder, left: Tensor, right: Operand) -> Tensor:
    dtype = builder.promoted(left, right)
    a, b = rounded(builder, left, dtype), rounded(builder, right, dtype)
    if not dtype.is_float:
        return builder.apply("trunc_div", a, b)
    # PyTorch rounds the quotient to the narrow type before it truncates.
    quotient = builder.widened(builder.convert(builder.apply("div", a, b), dtype))
    return builder.convert(builder.prim("trunc", quotient), dtype)
