"""Sums, products, extrema and combinations of them, with PyTorch's promotion."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_OF_INTEGERS = {"fmax": "maximum", "fmin": "minimum"}
"""Integers have no NaN, so that these prims are the same."""

_OF_BOOLS = {
    "maximum": "logical_or",
    "fmax": "logical_or",
    "minimum": "logical_and",
    "fmin": "logical_and",
}


def computed(builder: PrimsBuilder, operand: Operand, dtype: DType) -> Operand:
    """An operand of arithmetic in `dtype`; numbers keep their full precision, as in PyTorch."""
    if isinstance(operand, Tensor):
        return builder.widened(builder.convert(operand, dtype))
    return operand


def rounded(builder: PrimsBuilder, operand: Operand, dtype: DType) -> Tensor:
    """An operand that is first rounded to `dtype`, then converted to the computing type."""
    return builder.widened(builder.cast(operand, dtype))


def binary(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    """An arithmetic prim in the promoted type; at least one operand must be a tensor."""
    dtype = builder.promoted(left, right)
    result = builder.apply(prim, computed(builder, left, dtype), computed(builder, right, dtype))
    return builder.convert(result, dtype)


@decomposes("aten.add.Tensor", "aten.add.Scalar")
def add(builder: PrimsBuilder, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self + alpha * other; for bools the union."""
    if builder.promoted(self, other) is DType.BOOL:
        if alpha == 0:
            other = (
                builder.full(False, DType.BOOL, other.shape) if isinstance(other, Tensor) else False
            )
        return _bool_binary(builder, "logical_or", self, other)
    return _scaled(builder, "add", self, other, alpha)


@decomposes("aten._add_relu.Tensor", "aten._add_relu.Scalar")
def add_relu(builder: PrimsBuilder, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """max(self + alpha * other, 0)."""
    return builder.apply("maximum", add(builder, self, other, alpha), 0)


@decomposes("aten.sub.Tensor", "aten.sub.Scalar")
def sub(builder: PrimsBuilder, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self - alpha * other."""
    _refuse_bool(builder, self, other)
    return _scaled(builder, "sub", self, other, alpha)


@decomposes("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(builder: PrimsBuilder, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """other - alpha * self."""
    _refuse_bool(builder, self, other)
    return _scaled(builder, "sub", other, self, alpha)


@decomposes("aten.mul.Tensor", "aten.mul.Scalar")
def mul(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The product; for bools the intersection."""
    if builder.promoted(self, other) is DType.BOOL:
        return _bool_binary(builder, "logical_and", self, other)
    return binary(builder, "mul", self, other)


def extremum(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    """The larger or smaller operand (`maximum`, `minimum`, `fmax`, `fmin`) after promotion."""
    dtype = builder.promoted(left, right)
    if dtype is DType.BOOL:
        return _bool_binary(builder, _OF_BOOLS[prim], left, right)
    prim = prim if dtype.is_float else _OF_INTEGERS.get(prim, prim)
    result = builder.apply(prim, rounded(builder, left, dtype), rounded(builder, right, dtype))
    return builder.convert(result, dtype)


@decomposes("aten.maximum.default")
def maximum(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The larger operand; NaN if either is NaN."""
    return extremum(builder, "maximum", self, other)


@decomposes("aten.minimum.default")
def minimum(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The smaller operand; NaN if either is NaN."""
    return extremum(builder, "minimum", self, other)


@decomposes("aten.fmax.default")
def fmax(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The larger operand; a number if the other is NaN."""
    return extremum(builder, "fmax", self, other)


@decomposes("aten.fmin.default")
def fmin(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The smaller operand; a number if the other is NaN."""
    return extremum(builder, "fmin", self, other)


@decomposes("aten.atan2.default")
def atan2(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The angle of the point (other, self)."""
    return _float_binary(builder, "atan2", self, other)


@decomposes("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(builder: PrimsBuilder, self: Tensor, other: Operand) -> Tensor:
    """The magnitude of self with the sign of other."""
    return _float_binary(builder, "copysign", self, other)


@decomposes("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(builder: PrimsBuilder, self: Operand, other: Operand) -> Tensor:
    """x * log(y); 0 where x is 0, unless y is NaN."""
    dtype = float_dtype(builder.promoted(self, other))
    x, y = rounded(builder, self, dtype), rounded(builder, other, dtype)
    product = builder.apply("mul", x, builder.prim("log", y))
    product = builder.where(builder.apply("eq", x, 0.0), 0.0, product)
    return builder.convert(builder.where(builder.prim("isnan", y), y, product), dtype)


@decomposes("aten.logaddexp.default")
def logaddexp(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) without overflow; for equal infinities the infinity."""
    dtype = builder.promoted(self, other)
    a, b = rounded(builder, self, dtype), rounded(builder, other, dtype)
    distance = builder.prim("neg", builder.prim("abs", builder.apply("sub", a, b)))
    sum_ = builder.apply(
        "add", builder.apply("maximum", a, b), builder.prim("log1p", builder.prim("exp", distance))
    )
    same = builder.apply("logical_and", builder.prim("isinf", a), builder.apply("eq", a, b))
    return builder.convert(builder.where(same, a, sum_), dtype)


@decomposes("aten.heaviside.default")
def heaviside(builder: PrimsBuilder, self: Tensor, values: Tensor) -> Tensor:
    """0 for negative elements, 1 for positive ones, `values` for 0."""
    dtype = builder.promoted(self, values)
    x = rounded(builder, self, dtype)
    step = builder.convert(builder.apply("gt", x, 0), x.dtype)
    return builder.convert(
        builder.where(builder.apply("eq", x, 0), rounded(builder, values, dtype), step), dtype
    )


@decomposes("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(builder: PrimsBuilder, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """self + weight * (end - self), computed from the nearer end."""
    dtype = builder.promoted(self, end)
    a, b, w = (
        computed(builder, x, dtype) for x in (self, end, builder.cast(weight, dtype.compute_dtype))
    )
    span = builder.apply("sub", b, a)
    from_start = builder.apply("add", a, builder.apply("mul", w, span))
    from_end = builder.apply("sub", b, builder.apply("mul", span, builder.apply("sub", 1.0, w)))
    is_near = builder.apply("lt", builder.apply("abs", w), 0.5)
    return builder.convert(builder.where(is_near, from_start, from_end), dtype)


@decomposes("aten.addcmul.default")
def addcmul(
    builder: PrimsBuilder, self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
) -> Tensor:
    """self + value * tensor1 * tensor2."""
    dtype = builder.promoted(self, tensor1, tensor2)
    x, a, b = (computed(builder, t, dtype) for t in (self, tensor1, tensor2))
    scaled = a if value == 1 else builder.apply("mul", a, value)
    return builder.convert(builder.apply("add", x, builder.apply("mul", scaled, b)), dtype)


@decomposes("aten.addcdiv.default")
def addcdiv(
    builder: PrimsBuilder, self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
) -> Tensor:
    """self + value * tensor1 / tensor2."""
    dtype = builder.promoted(self, tensor1, tensor2)
    if not dtype.is_float:
        raise InvalidGraphError(f"operands of type {dtype!r}; expected floats")
    x, a, b = (computed(builder, t, dtype) for t in (self, tensor1, tensor2))
    scaled = a if value == 1 else builder.apply("mul", a, value)
    return builder.convert(builder.apply("add", x, builder.apply("div", scaled, b)), dtype)


@decomposes("prims.fma.default")
def fma(builder: PrimsBuilder, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c."""
    return binary(builder, "add", binary(builder, "mul", a, b), c)


def _scaled(
    builder: PrimsBuilder, prim: str, left: Operand, right: Operand, alpha: Number
) -> Tensor:
    dtype = builder.promoted(left, right)
    if isinstance(alpha, float) and not dtype.is_float:
        raise InvalidGraphError(
            f"alpha {alpha} for operands of type {dtype!r}; expected an integer"
        )
    second = computed(builder, right, dtype)
    if isinstance(alpha, bool) or alpha != 1:
        second = _times(builder, second, alpha, dtype)
    return builder.convert(builder.apply(prim, computed(builder, left, dtype), second), dtype)


def _times(builder: PrimsBuilder, operand: Operand, alpha: Number, dtype: DType) -> Operand:
    if isinstance(operand, Tensor):
        return builder.apply("mul", operand, alpha)
    if isinstance(operand, float) or isinstance(alpha, float):
        return builder.apply("mul", builder.cast(operand, dtype.compute_dtype), alpha)
    return operand * alpha


def _float_binary(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    dtype = float_dtype(builder.promoted(left, right))
    result = builder.apply(prim, rounded(builder, left, dtype), rounded(builder, right, dtype))
    return builder.convert(result, dtype)


def _bool_binary(builder: PrimsBuilder, prim: str, left: Operand, right: Operand) -> Tensor:
    return builder.apply(prim, builder.cast(left, DType.BOOL), builder.cast(right, DType.BOOL))


def _refuse_bool(builder: PrimsBuilder, left: Operand, right: Operand) -> None:
    if builder.promoted(left, right) is DType.BOOL:
        raise InvalidGraphError("a difference of bools; expected numbers, or bitwise_xor")
