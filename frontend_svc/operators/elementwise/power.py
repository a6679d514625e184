"""Powers; small exponents by multiplication, as PyTorch computes them."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import Lowering
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Number, Tensor
from frontend_svc.operators.elementwise.arithmetic import computed
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError
from kernelfarm.ir.algebra.expr import Expr

_LARGEST_UNROLLED = 64


@decomposes("aten.pow.Tensor_Scalar")
def pow_tensor_scalar(op: Lowering, self: Tensor, exponent: Number) -> Tensor:
    """self ** exponent."""
    dtype = op.promoted(self, exponent)
    x = op.widened(op.convert(self, dtype))
    if isinstance(exponent, Expr):
        raise NotDecomposedError("the exponent is a symbolic size")
    if not dtype.is_float:
        return _integer_power(op, x, int(exponent))
    return op.convert(_float_power(op, x, float(exponent)), dtype)


@decomposes("aten.pow.Scalar")
def pow_scalar(op: Lowering, self: Number, exponent: Tensor) -> Tensor:
    """self ** exponent for a number."""
    dtype = op.promoted(self, exponent)
    if not isinstance(self, Expr) and self == 1:
        return op.full(1, dtype, exponent.shape)
    if not dtype.is_float:
        base = op.full(self, dtype, exponent.shape)
        return integer_power(op, base, op.convert(exponent, dtype))
    e = op.widened(op.convert(exponent, dtype))
    result = op.prim("exp2", e) if self == 2 else op.apply("pow", self, e)
    return op.convert(result, dtype)


@decomposes("aten.pow.Tensor_Tensor")
def pow_tensor_tensor(op: Lowering, self: Tensor, exponent: Tensor) -> Tensor:
    """self ** exponent, element by element."""
    dtype = op.promoted(self, exponent)
    if not dtype.is_float:
        return integer_power(op, op.convert(self, dtype), op.convert(exponent, dtype))
    result = op.apply("pow", computed(op, self, dtype), computed(op, exponent, dtype))
    return op.convert(result, dtype)


def integer_power(op: Lowering, base: Tensor, exponent: Tensor) -> Tensor:
    """Integers to the power of integers of one type, which wraps around; by squaring.

    As PyTorch has it, to negative powers 1 stays 1, -1 alternates and every other number is 0.
    """
    if base.dtype is DType.BOOL:
        raise NotDecomposedError("a power of bools")
    shape = op.extents.broadcast([base.shape, exponent.shape])
    x, e = op.expand(base, shape), op.expand(exponent, shape)
    is_signed = base.dtype is not DType.U8
    result = op.full(1, base.dtype, shape)
    power = x
    bits = 8 * base.dtype.itemsize_bytes - is_signed
    for bit in range(bits):
        is_set = op.apply("ne", op.apply("bit_and", e, 1 << bit), 0)
        result = op.where(is_set, op.prim("mul", result, power), result)
        if bit + 1 < bits:
            power = op.prim("mul", power, power)
    if not is_signed:
        return result
    is_odd = op.apply("ne", op.apply("bit_and", e, 1), 0)
    of_minus_one = op.where(is_odd, x, 1)
    of_others = op.where(op.apply("eq", x, 1), x, 0)
    below = op.where(op.apply("eq", x, -1), of_minus_one, of_others)
    return op.where(op.apply("lt", e, 0), below, result)


def _float_power(op: Lowering, x: Tensor, exponent: float) -> Tensor:
    """Source: `pow_tensor_scalar_optimized_kernel` of PyTorch, whose special cases these are."""
    special = {0.5: "sqrt", -0.5: "rsqrt", -1.0: "reciprocal"}.get(exponent)
    if special is not None:
        return op.prim(special, x)
    if exponent == 0.0:
        return op.full(1.0, x.dtype, x.shape)
    if exponent in (1.0, 2.0, 3.0):
        return _repeated(op, x, int(exponent))
    if exponent == -2.0:
        return op.prim("reciprocal", op.prim("mul", x, x))
    return op.apply("pow", x, exponent)


def _integer_power(op: Lowering, x: Tensor, exponent: int) -> Tensor:
    if exponent < 0:
        raise InvalidGraphError(f"integers to the power {exponent}; expected it to be >= 0")
    if exponent == 0:
        return op.full(1, x.dtype, x.shape)
    if exponent > _LARGEST_UNROLLED:
        raise NotDecomposedError(f"an integer power above {_LARGEST_UNROLLED}")
    return _repeated(op, x, exponent)


def _repeated(op: Lowering, x: Tensor, exponent: int) -> Tensor:
    """The power for exponents >= 1: x * x * x for 3, else by squaring."""
    if exponent <= 3:
        result = x
        for _ in range(exponent - 1):
            result = op.prim("mul", result, x)
        return result
    half = _repeated(op, x, exponent // 2)
    square = op.prim("mul", half, half)
    return op.prim("mul", square, x) if exponent % 2 else square
