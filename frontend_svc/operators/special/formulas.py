"""Elementwise functions of mathematics that are formulas over the basic ones."""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Operand, Tensor
from frontend_svc.operators.elementwise.arithmetic import rounded
from kernelfarm.dtypes import DType

_INF, _NAN = math.inf, math.nan


def _float_operand(op: Lowering, x: Tensor) -> tuple[Tensor, DType]:
    """The operand in its computing type, and the type in which a function of it answers."""
    dtype = float_dtype(x.dtype)
    return op.convert(x, dtype.compute_dtype), dtype


def _float_operands(op: Lowering, *operands: Operand) -> tuple[list[Tensor], DType]:
    dtype = float_dtype(op.promoted(*operands))
    found = [rounded(op, operand, dtype) for operand in operands]
    shape = op.extents.broadcast([x.shape for x in found])
    return [op.expand(x, shape) for x in found], dtype


def _register_scale(name: str, factor: float) -> None:
    def scale(op: Lowering, self: Tensor) -> Tensor:
        x, dtype = _float_operand(op, self)
        return op.convert(op.apply("mul", x, factor), dtype)

    decomposes(f"aten.{name}.default")(scale)


_register_scale("deg2rad", math.pi / 180)
_register_scale("rad2deg", 180 / math.pi)


@decomposes("aten.sinc.default")
def sinc(op: Lowering, self: Tensor) -> Tensor:
    """sin(pi x) / (pi x), 1 at 0."""
    x, dtype = _float_operand(op, self)
    angle = op.apply("mul", x, math.pi)
    ratio = op.prim("div", op.prim("sin", angle), angle)
    return op.convert(op.where(op.apply("eq", x, 0.0), 1.0, ratio), dtype)


@decomposes("aten.angle.default")
def angle(op: Lowering, self: Tensor) -> Tensor:
    """pi for negative numbers, 0 for others."""
    x, dtype = _float_operand(op, self)
    turned = op.where(op.apply("lt", x, 0.0), op.full(math.pi, x.dtype, x.shape), 0.0)
    return op.convert(op.where(op.prim("isnan", x), x, turned), dtype)


@decomposes("aten.hypot.default")
def hypot(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """sqrt(x * x + y * y) without overflow on the way; infinite if either is."""
    (x, y), dtype = _float_operands(op, self, other)
    x, y = op.prim("abs", x), op.prim("abs", y)
    large, small = op.prim("maximum", x, y), op.prim("minimum", x, y)
    ratio = op.prim("div", small, large)
    root = op.prim("sqrt", op.apply("add", op.prim("mul", ratio, ratio), 1.0))
    length = op.where(op.apply("eq", large, 0.0), 0.0, op.prim("mul", large, root))
    is_infinite = op.prim("logical_or", op.prim("isinf", x), op.prim("isinf", y))
    return op.convert(op.where(is_infinite, _INF, length), dtype)


@decomposes("aten.logaddexp2.default")
def logaddexp2(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """log2(2**x + 2**y) without overflow."""
    (x, y), dtype = _float_operands(op, self, other)
    distance = op.prim("abs", op.prim("sub", x, y))
    power = op.prim("exp2", op.prim("neg", distance))
    added = op.apply("mul", op.prim("log1p", power), 1 / math.log(2))
    total = op.prim("add", op.prim("maximum", x, y), added)
    # Equal infinities have no distance.
    is_same = op.prim("logical_and", op.prim("isinf", x), op.prim("eq", x, y))
    return op.convert(op.where(is_same, x, total), dtype)


@decomposes("aten.ldexp.Tensor")
def ldexp(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """x * 2**y."""
    power, _ = _float_operand(op, other)
    dtype = float_dtype(op.promoted(self, other))
    factor = op.prim("exp2", power)
    return op.convert(op.apply("mul", rounded(op, self, dtype), factor), dtype)


@decomposes("aten.special_entr.default")
def special_entr(op: Lowering, self: Tensor) -> Tensor:
    """-x * log(x), 0 at 0, minus infinity below."""
    x, dtype = _float_operand(op, self)
    inside = op.prim("neg", op.prim("mul", x, op.prim("log", x)))
    known = op.where(op.apply("eq", x, 0.0), 0.0, inside)
    return op.convert(op.where(op.apply("lt", x, 0.0), -_INF, known), dtype)


@decomposes(
    "aten.special_xlog1py.default",
    "aten.special_xlog1py.other_scalar",
    "aten.special_xlog1py.self_scalar",
)
def special_xlog1py(op: Lowering, self: Operand, other: Operand) -> Tensor:
    """x * log(1 + y), 0 where x is 0 unless y is NaN."""
    (x, y), dtype = _float_operands(op, self, other)
    product = op.prim("mul", x, op.prim("log1p", y))
    known = op.where(op.apply("eq", x, 0.0), 0.0, product)
    return op.convert(op.where(op.prim("isnan", y), _NAN, known), dtype)
