"""Sums, products, extrema and what combines them, with PyTorch's promotion."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.promotion import float_dtype
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Number, Operand, Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_OF_INTEGERS = {"fmax": "maximum", "fmin": "minimum"}
"""Among integers there is no NaN to lose to."""


def computed(op: Lowering, operand: Operand, dtype: DType) -> Operand:
    """An operand of an arithmetic in `dtype`: numbers keep their full precision, as in PyTorch."""
    if isinstance(operand, Tensor):
        return op.widened(op.convert(operand, dtype))
    return operand


def rounded(op: Lowering, operand: Operand, dtype: DType) -> Tensor:
    """An operand of an operator that first rounds numbers to `dtype`, in the computing type."""
    return op.widened(op.cast(operand, dtype))


def binary(op: Lowering, prim: str, left: Operand, right: Operand) -> Tensor:
    """An arithmetic prim in the promoted type; at least one operand is a tensor."""
    dtype = op.promoted(left, right)
    result = op.apply(prim, computed(op, left, dtype), computed(op, right, dtype))
    return op.convert(result, dtype)


@decomposes("aten.add.Tensor", "aten.add.Scalar")
def add(op: Lowering, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self + alpha * other; of bools the union."""
    if op.promoted(self, other) is DType.BOOL:
        if alpha == 0:
            other = op.full(False, DType.BOOL, other.shape) if isinstance(other, Tensor) else False
        return _bool_binary(op, "logical_or", self, other)
    return _scaled(op, "add", self, other, alpha)


@decomposes("aten._add_relu.Tensor", "aten._add_relu.Scalar")
def add_relu(op: Lowering, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self + alpha * other, no less than 0."""
    return op.apply("maximum", add(op, self, other, alpha), 0)


@decomposes("aten.sub.Tensor", "aten.sub.Scalar")
def sub(op: Lowering, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """self - alpha * other."""
    _refuse_bool(op, self, other)
    return _scaled(op, "sub", self, other, alpha)


@decomposes("aten.rsub.Tensor", "aten.rsub.Scalar")
def rsub(op: Lowering, self: Tensor, other: Operand, alpha: Number = 1) -> Tensor:
    """other - alpha * self."""
    _refuse_bool(op, self, other)
    return _scaled(op, "sub", other, self, alpha)


@decomposes("aten.mul.Tensor", "aten.mul.Scalar")
def mul(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """The product; of bools the intersection."""
    if op.promoted(self, other) is DType.BOOL:
        return _bool_binary(op, "logical_and", self, other)
    return binary(op, "mul", self, other)


def extremum(op: Lowering, prim: str, left: Operand, right: Operand) -> Tensor:
    """The larger or smaller (`maximum`, `minimum`, `fmax`, `fmin`) after promotion."""
    dtype = op.promoted(left, right)
    if dtype is DType.BOOL:
        return _bool_binary(op, "logical_or" if "max" in prim else "logical_and", left, right)
    prim = prim if dtype.is_float else _OF_INTEGERS.get(prim, prim)
    result = op.apply(prim, rounded(op, left, dtype), rounded(op, right, dtype))
    return op.convert(result, dtype)


@decomposes("aten.maximum.default")
def maximum(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """The larger; NaN if one is NaN."""
    return extremum(op, "maximum", self, other)


@decomposes("aten.minimum.default")
def minimum(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """The smaller; NaN if one is NaN."""
    return extremum(op, "minimum", self, other)


@decomposes("aten.fmax.default")
def fmax(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """The larger; a number wins over NaN."""
    return extremum(op, "fmax", self, other)


@decomposes("aten.fmin.default")
def fmin(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """The smaller; a number wins over NaN."""
    return extremum(op, "fmin", self, other)


@decomposes("aten.atan2.default")
def atan2(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """The angle of (other, self)."""
    return _float_binary(op, "atan2", self, other)


@decomposes("aten.copysign.Tensor", "aten.copysign.Scalar")
def copysign(op: Lowering, self: Tensor, other: Operand) -> Tensor:
    """The magnitude of self with the sign of other."""
    return _float_binary(op, "copysign", self, other)


@decomposes("aten.xlogy.Tensor", "aten.xlogy.Scalar_Other", "aten.xlogy.Scalar_Self")
def xlogy(op: Lowering, self: Operand, other: Operand) -> Tensor:
    """x * log(y): 0 where x is 0, unless y is NaN."""
    dtype = float_dtype(op.promoted(self, other))
    x, y = rounded(op, self, dtype), rounded(op, other, dtype)
    product = op.apply("mul", x, op.prim("log", y))
    product = op.where(op.apply("eq", x, 0.0), 0.0, product)
    return op.convert(op.where(op.prim("isnan", y), y, product), dtype)


@decomposes("aten.logaddexp.default")
def logaddexp(op: Lowering, self: Tensor, other: Tensor) -> Tensor:
    """log(exp(a) + exp(b)) without overflow; equal infinities stay."""
    dtype = op.promoted(self, other)
    a, b = rounded(op, self, dtype), rounded(op, other, dtype)
    distance = op.prim("neg", op.prim("abs", op.apply("sub", a, b)))
    sum_ = op.apply("add", op.apply("maximum", a, b), op.prim("log1p", op.prim("exp", distance)))
    same = op.apply("logical_and", op.prim("isinf", a), op.apply("eq", a, b))
    return op.convert(op.where(same, a, sum_), dtype)


@decomposes("aten.heaviside.default")
def heaviside(op: Lowering, self: Tensor, values: Tensor) -> Tensor:
    """0 below zero, 1 above, `values` at zero."""
    dtype = op.promoted(self, values)
    x = rounded(op, self, dtype)
    step = op.convert(op.apply("gt", x, 0), x.dtype)
    return op.convert(op.where(op.apply("eq", x, 0), rounded(op, values, dtype), step), dtype)


@decomposes("aten.lerp.Scalar", "aten.lerp.Tensor")
def lerp(op: Lowering, self: Tensor, end: Tensor, weight: Operand) -> Tensor:
    """self + weight * (end - self), from the nearer end."""
    dtype = op.promoted(self, end)
    a, b, w = (computed(op, x, dtype) for x in (self, end, op.cast(weight, dtype.compute_dtype)))
    span = op.apply("sub", b, a)
    from_start = op.apply("add", a, op.apply("mul", w, span))
    from_end = op.apply("sub", b, op.apply("mul", span, op.apply("sub", 1.0, w)))
    is_near = op.apply("lt", op.apply("abs", w), 0.5)
    return op.convert(op.where(is_near, from_start, from_end), dtype)


@decomposes("aten.addcmul.default")
def addcmul(
    op: Lowering, self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
) -> Tensor:
    """self + value * tensor1 * tensor2."""
    dtype = op.promoted(self, tensor1, tensor2)
    x, a, b = (computed(op, t, dtype) for t in (self, tensor1, tensor2))
    scaled = a if value == 1 else op.apply("mul", a, value)
    return op.convert(op.apply("add", x, op.apply("mul", scaled, b)), dtype)


@decomposes("aten.addcdiv.default")
def addcdiv(
    op: Lowering, self: Tensor, tensor1: Tensor, tensor2: Tensor, *, value: Number = 1
) -> Tensor:
    """self + value * tensor1 / tensor2."""
    dtype = op.promoted(self, tensor1, tensor2)
    if not dtype.is_float:
        raise InvalidGraphError(f"operands of type {dtype!r}; expected floats")
    x, a, b = (computed(op, t, dtype) for t in (self, tensor1, tensor2))
    scaled = a if value == 1 else op.apply("mul", a, value)
    return op.convert(op.apply("add", x, op.apply("div", scaled, b)), dtype)


@decomposes("prims.fma.default")
def fma(op: Lowering, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
    """a * b + c."""
    return binary(op, "add", binary(op, "mul", a, b), c)


def _scaled(op: Lowering, prim: str, left: Operand, right: Operand, alpha: Number) -> Tensor:
    dtype = op.promoted(left, right)
    if isinstance(alpha, float) and not dtype.is_float:
        raise InvalidGraphError(
            f"alpha {alpha} for operands of type {dtype!r}; expected an integer"
        )
    second = computed(op, right, dtype)
    if isinstance(alpha, bool) or alpha != 1:
        second = _times(op, second, alpha, dtype)
    return op.convert(op.apply(prim, computed(op, left, dtype), second), dtype)


def _times(op: Lowering, operand: Operand, alpha: Number, dtype: DType) -> Operand:
    if isinstance(operand, Tensor):
        return op.apply("mul", operand, alpha)
    if isinstance(operand, float) or isinstance(alpha, float):
        return op.apply("mul", op.cast(operand, dtype.compute_dtype), alpha)
    return operand * alpha


def _float_binary(op: Lowering, prim: str, left: Operand, right: Operand) -> Tensor:
    dtype = float_dtype(op.promoted(left, right))
    result = op.apply(prim, rounded(op, left, dtype), rounded(op, right, dtype))
    return op.convert(result, dtype)


def _bool_binary(op: Lowering, prim: str, left: Operand, right: Operand) -> Tensor:
    return op.apply(prim, op.cast(left, DType.BOOL), op.cast(right, DType.BOOL))


def _refuse_bool(op: Lowering, left: Operand, right: Operand) -> None:
    if op.promoted(left, right) is DType.BOOL:
        raise InvalidGraphError("a difference of bools; expected numbers, or bitwise_xor")
