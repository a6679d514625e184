"""Common divisors and multiples of integers, by Euclid's algorithm."""

from __future__ import annotations

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.registry import NotDecomposedError, decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError

_NOTE = "extern for i64"


def _most_steps(dtype: DType) -> int:
    """The largest number of divisions for two numbers of a type.

    Source: G. Lame (1844): neighbours in Fibonacci's sequence need the most divisions.
    """
    steps, low, high = 1, 1, 2
    while high < 1 << (8 * dtype.itemsize_bytes):
        steps, low, high = steps + 1, high, low + high
    return steps


def _common_divisor(builder: PrimsBuilder, a: Tensor, b: Tensor) -> Tensor:
    a, b = builder.prim("abs", a), builder.prim("abs", b)
    for _ in range(_most_steps(a.dtype)):
        is_done = builder.apply("eq", b, 0)
        remainder = builder.prim("fmod", a, builder.where(is_done, 1, b))
        a, b = builder.where(is_done, a, b), builder.where(is_done, b, remainder)
    return a


def _integers(builder: PrimsBuilder, self: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
    dtype = builder.promoted(self, other)
    if not dtype.is_integer or dtype is DType.BOOL:
        raise InvalidGraphError(f"divisors of type {dtype!r}; expected integers")
    if dtype is DType.I64:
        # Unrolled, that is 91 divisions of 64 bits per element: AMD's compiler needs half a minute.
        # The framework's loop stops after the few steps that most pairs need.
        raise NotDecomposedError("a common divisor of i64: too many divisions to unroll")
    shape = builder.extents.broadcast([self.shape, other.shape])
    a, b = (builder.expand(builder.convert(x, dtype), shape) for x in (self, other))
    return a, b


@decomposes("aten.gcd.default", note=_NOTE)
def gcd(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The greatest common divisor; of 0 and x it is the magnitude of x."""
    return _common_divisor(builder, *_integers(builder, self, other))


@decomposes("aten.lcm.default", note=_NOTE)
def lcm(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The least common multiple; 0 if either operand is 0."""
    a, b = _integers(builder, self, other)
    divisor = _common_divisor(builder, a, b)
    is_zero = builder.apply("eq", divisor, 0)
    share = builder.prim("trunc_div", a, builder.where(is_zero, 1, divisor))
    # C++ multiplies narrow integers as ints, and takes the magnitude before it drops high bits.
    share, b = (builder.convert(x, DType.I32) for x in (share, b))
    multiple = builder.prim("abs", builder.prim("mul", share, b))
    return builder.convert(multiple, a.dtype)
