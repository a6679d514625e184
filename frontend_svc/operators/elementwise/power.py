"""Powers; small exponents by multiplication, as in PyTorch."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.elementwise.arithmetic import computed
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_LARGEST_UNROLLED = 64


@decomposes("aten.pow.Tensor_Scalar")
def pow_tensor_scalar(builder: PrimsBuilder, self: Tensor, exponent: Number) -> Tensor:
    """self ** exponent."""
    dtype = builder.promoted(self, exponent)
    x = builder.widened(builder.convert(self, dtype))
    if isinstance(exponent, Expr):
        raise NotDecomposedError("the exponent is a symbolic size")
    if not dtype.is_float:
        return _integer_power(builder, x, int(exponent))
    return builder.convert(_float_power(builder, x, float(exponent)), dtype)


@decomposes("aten.pow.Scalar")
def pow_scalar(builder: PrimsBuilder, self: Number, exponent: Tensor) -> Tensor:
    """self ** exponent for a number."""
    dtype = builder.promoted(self, exponent)
    if not isinstance(self, Expr) and self == 1:
        return builder.full(1, dtype, exponent.shape)
    if not dtype.is_float:
        base = builder.full(self, dtype, exponent.shape)
        return integer_power(builder, base, builder.convert(exponent, dtype))
    e = builder.widened(builder.convert(exponent, dtype))
    result = builder.prim("exp2", e) if self == 2 else builder.apply("pow", self, e)
    return builder.convert(result, dtype)


@decomposes("aten.pow.Tensor_Tensor")
def pow_tensor_tensor(builder: PrimsBuilder, self: Tensor, exponent: Tensor) -> Tensor:
    """self ** exponent, element by element."""
    dtype = builder.promoted(self, exponent)
    if not dtype.is_float:
        return integer_power(
            builder, builder.convert(self, dtype), builder.convert(exponent, dtype)
        )
    result = builder.apply(
        "pow", computed(builder, self, dtype), computed(builder, exponent, dtype)
    )
    return builder.convert(result, dtype)


def integer_power(builder: PrimsBuilder, base: Tensor, exponent: Tensor) -> Tensor:
    """Integers to the power of integers of the same type, by squaring; overflow wraps around.

    For a negative power, as in PyTorch, 1 gives 1, -1 gives 1 or -1, and any other number gives 0.
    """
    if base.dtype is DType.BOOL:
        raise NotDecomposedError("a power of bools")
    shape = builder.extents.broadcast([base.shape, exponent.shape])
    x, e = builder.expand(base, shape), builder.expand(exponent, shape)
    is_signed = base.dtype is not DType.U8
    result = builder.full(1, base.dtype, shape)
    power = x
    bits = 8 * base.dtype.itemsize_bytes - is_signed
    for bit in range(bits):
        is_set = builder.apply("ne", builder.apply("bit_and", e, 1 << bit), 0)
        result = builder.where(is_set, builder.prim("mul", result, power), result)
        if bit + 1 < bits:
            power = builder.prim("mul", power, power)
    if not is_signed:
        return result
    is_odd = builder.apply("ne", builder.apply("bit_and", e, 1), 0)
    of_minus_one = builder.where(is_odd, x, 1)
    of_others = builder.where(builder.apply("eq", x, 1), x, 0)
    below = builder.where(builder.apply("eq", x, -1), of_minus_one, of_others)
    return builder.where(builder.apply("lt", e, 0), below, result)


def _float_power(builder: PrimsBuilder, x: Tensor, exponent: float) -> Tensor:
    """A power with PyTorch's special cases.

    Source: `pow_tensor_scalar_optimized_kernel` of PyTorch.
    """
    special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent)
    if special is not None:
        return builder.prim(special, x)
    if exponent == 0.0:
        return builder.full(1.0, x.dtype, x.shape)
    if exponent in (1.0, 2.0, 3.0):
        return _repeated(builder, x, int(exponent))
    if exponent == -2.0:
        return builder.prim("reciprocal", builder.prim("mul", x, x))
    return builder.apply("pow", x, exponent)


def _integer_power(builder: PrimsBuilder, x: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        raise InvalidGraphError(f"integers to the power {exponent}; expected it to be >= 0")
    if exponent == 0:
        return builder.full(1, x.dtype, x.shape)
    if exponent > _LARGEST_UNROLLED:
        raise NotDecomposedError(f"an integer power above {_LARGEST_UNROLLED}")
    return _repeated(builder, x, exponent)


def _repeated(builder: PrimsBuilder, x: Tensor, exponent: int) -> Tensor:
    """The power for exponents >= 1: x * x * x for 3, else by squaring."""
    if exponent <= 3:
        result = x
        for _ in range(exponent - 1):
            result = builder.prim("mul", result, x)
        return result
    half = _repeated(builder, x, exponent // 2)
    square = builder.prim("mul", half, half)
    return builder.prim("mul", square, x) if exponent % 2 else square
