"""Elementwise functions of mathematics that are formulas over basic functions."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import rounded
from kernelfarm.dtypes import DType

_INF, _NAN = math.inf, math.nan


def _float_operand(builder: PrimsBuilder, x: Tensor) -> tuple[Tensor, DType]:
    """The operand in its computing type, and the result type of a function of it."""
    dtype = float_dtype(x.dtype)
    return builder.convert(x, dtype.compute_dtype), dtype


def _float_operands(builder: PrimsBuilder, *operands: Operand) -> tuple[list[Tensor], DType]:
    dtype = float_dtype(builder.promoted(*operands))
    found = [rounded(builder, operand, dtype) for operand in operands]
    shape = builder.extents.broadcast([x.shape for x in found])
    return [builder.expand(x, shape) for x in found], dtype


@decomposes("aten.deg2rad.default", fixed={"factor": math.pi / 180})
@decomposes("aten.rad2deg.default", fixed={"factor": 180 / math.pi})
def scaled_angle(builder: PrimsBuilder, self: Tensor, *, factor: float) -> Tensor:
    """An angle in another unit."""
    x, dtype = _float_operand(builder, self)
    return builder.convert(builder.apply("mul", x, factor), dtype)


@decomposes("aten.sinc.default")
def sinc(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """sin(pi x) / (pi x); 1 at 0."""
    x, dtype = _float_operand(builder, self)
    angle = builder.apply("mul", x, math.pi)
    ratio = builder.prim("div", builder.prim("sin", angle), angle)
    return builder.convert(builder.where(builder.apply("eq", x, 0.0), 1.0, ratio), dtype)


@decomposes("aten.angle.default")
def angle(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """pi for negative numbers, 0 for other numbers."""
    x, dtype = _float_operand(builder, self)
    turned = builder.where(
        builder.apply("lt", x, 0.0), builder.full(math.pi, x.dtype, x.shape), 0.0
    )
    return builder.convert(builder.where(builder.prim("isnan", x), x, turned), dtype)


@decomposes("aten.hypot.default")
def hypot(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """sqrt(x * x + y * y) without overflow in between; infinite if either operand is."""
    (x, y), dtype = _float_operands(builder, self, other)
    x, y = builder.prim("abs", x), builder.prim("abs", y)
    large, small = builder.prim("maximum", x, y), builder.prim("minimum", x, y)
    ratio = builder.prim("div", small, large)
    root = builder.prim("sqrt", builder.apply("add", builder.prim("mul", ratio, ratio), 1.0))
    length = builder.where(builder.apply("eq", large, 0.0), 0.0, builder.prim("mul", large, root))
    is_infinite = builder.prim("logical_or", builder.prim("isinf", x), builder.prim("isinf", y))
    return builder.convert(builder.where(is_infinite, _INF, length), dtype)


@decomposes("aten.logaddexp2.default")
def logaddexp2(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """log2(2**x + 2**y) without overflow."""
    (x, y), dtype = _float_operands(builder, self, other)
    distance = builder.prim("abs", builder.prim("sub", x, y))
    power = builder.prim("exp2", builder.prim("neg", distance))
    added = builder.apply("mul", builder.prim("log1p", power), 1 / math.log(2))
    total = builder.prim("add", builder.prim("maximum", x, y), added)
    # The distance of equal infinities is NaN.
    is_same = builder.prim("logical_and", builder.prim("isinf", x), builder.prim("eq", x, y))
    return builder.convert(builder.where(is_same, x, total), dtype)


@decomposes("aten.ldexp.Tensor")
def ldexp(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """x * 2**y."""
    power, _ = _float_operand(builder, other)
    dtype = float_dtype(builder.promoted(self, other))
    factor = builder.prim("exp2", power)
    return builder.convert(builder.apply("mul", rounded(builder, self, dtype), factor), dtype)


@decomposes("aten.special_entr.default")
def special_entr(builder: PrimsBuilder, self: Tensor) -> Tensor:
    """-x * log(x); 0 at 0, minus infinity for negative x."""
    x, dtype = _float_operand(builder, self)
    inside = builder.prim("neg", builder.prim("mul", x, builder.prim("log", x)))
    known = builder.where(builder.apply("eq", x, 0.0), 0.0, inside)
    return builder.convert(builder.where(builder.apply("lt", x, 0.0), -_INF, known), dtype)


@decomposes(
    "aten.special_xlog1py.default",
    "aten.special_xlog1py.other_scalar",
    "aten.special_xlog1py.self_scalar",
)
def special_xlog1py(builder: PrimsBuilder, self: Operand, other: Operand) -> Tensor:
    """x * log(1 + y); 0 where x is 0, unless y is NaN."""
    (x, y), dtype = _float_operands(builder, self, other)
    product = builder.prim("mul", x, builder.prim("log1p", y))
    known = builder.where(builder.apply("eq", x, 0.0), 0.0, product)
    return builder.convert(builder.where(builder.prim("isnan", y), _NAN, known), dtype)
