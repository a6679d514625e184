"""Quotients and remainders in their rounding modes."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import computed, rounded
from kernelfarm.errors import InvalidGraphError


@decomposes("aten.div.Tensor", "aten.div.Scalar", "aten.true_divide.Tensor")
def div(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """The quotient as a float, also of integers."""
    dtype = float_dtype(op.promoted(self, other))
    result = op.apply("div", computed(op, self, dtype), computed(op, other, dtype))
    return op.convert(result, dtype)


@decomposes("aten.div.Tensor_mode", "aten.div.Scalar_mode")
def div_mode(
    op: Lowering, self: Tensor, other: Operand, *, rounding_mode: str | None = None
) -> Tensor:
    """The quotient, rounded to zero (`trunc`), to minus infinity (`floor`) or not at all."""
    if rounding_mode is None:
        return div(op, self, other)
    if rounding_mode == "floor":
        return floor_divide(op, self, other)
    if rounding_mode == "trunc":
        return _truncated(op, self, other)
    raise InvalidGraphError(f"rounding mode '{rounding_mode[:40]}'; expected 'floor' or 'trunc'")


@decomposes("aten.floor_divide.default", "aten.floor_divide.Scalar")
def floor_divide(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """The quotient rounded to minus infinity."""
    dtype = op.promoted(self, other)
    a, b = rounded(op, self, dtype), rounded(op, other, dtype)
    if not dtype.is_float:
        return op.apply("floor_div", a, b)
    return op.convert(_floored(op, a, b), dtype)


@decomposes("aten.remainder.Tensor", "aten.remainder.Scalar")
def remainder(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """What floor division leaves: it has the divisor's sign."""
    return _remainder(op, self, other)


@decomposes("aten.remainder.Scalar_Tensor")
def remainder_of_number(op: Lowering, self: Operand, other: Tensor) -> Tensor:
    """What floor division of a number leaves."""
    return _remainder(op, self, other)


@decomposes("aten.fmod.Tensor", "aten.fmod.Scalar")
def fmod(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """What truncated division leaves: it has the dividend's sign."""
    dtype = op.promoted(self, other)
    return op.convert(op.apply("fmod", rounded(op, self, dtype), rounded(op, other, dtype)), dtype)


def _remainder(op: Lowering, left: Operand, right: Operand) -> Tensor:
    dtype = op.promoted(left, right)
    a, b = rounded(op, left, dtype), rounded(op, right, dtype)
    if not dtype.is_float:
        return op.apply("mod_floor", a, b)
    rest = op.apply("fmod", a, b)
    shifted = op.apply("add", rest, b)
    return op.convert(op.where(_is_on_the_wrong_side(op, rest, b), shifted, rest), dtype)


def _floored(op: Lowering, a: Tensor, b: Tensor) -> Tensor:
    """Floor division of floats, exact where `floor(a / b)` would be off by the quotient's rounding.

    Source: `div_floor_floating` in c10/util/generic_math.h of PyTorch.
    """
    rest = op.apply("fmod", a, b)
    quotient = op.apply("div", op.apply("sub", a, rest), b)
    lower = op.apply("sub", quotient, 1.0)
    quotient = op.where(_is_on_the_wrong_side(op, rest, b), lower, quotient)
    floored = op.prim("floor", quotient)
    is_high = op.apply("gt", op.apply("sub", quotient, floored), 0.5)
    floored = op.where(is_high, op.apply("add", floored, 1.0), floored)
    plain = op.apply("div", a, b)
    signed_zero = op.apply("copysign", 0.0, plain)
    floored = op.where(op.apply("eq", quotient, 0.0), signed_zero, floored)
    return op.where(op.apply("eq", b, 0.0), plain, floored)


def _is_on_the_wrong_side(op: Lowering, rest: Tensor, divisor: Tensor) -> Tensor:
    differs = op.apply("ne", op.apply("lt", divisor, 0.0), op.apply("lt", rest, 0.0))
    return op.apply("logical_and", op.apply("ne", rest, 0.0), differs)


def _truncated(op: Lowering, left: Tensor, right: Operand) -> Tensor:
    dtype = op.promoted(left, right)
    a, b = rounded(op, left, dtype), rounded(op, right, dtype)
    if not dtype.is_float:
        return op.apply("trunc_div", a, b)
    # PyTorch rounds the quotient to the narrow type before it cuts the fraction off.
    quotient = op.widened(op.convert(op.apply("div", a, b), dtype))
    return op.convert(op.prim("trunc", quotient), dtype)
