"""Random numbers of every element type from the bits of one draw.

An operator draws a seed of its own; element number n of its result (row-major, in the tensor as
the program sees it) takes 64 bits from Philox at counter n. So neither tiling nor fusion nor the
target changes a number. What is computed from the bits with exact operations is equal everywhere;
logarithms and cosines round as the target's do.
"""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, product_of

Shape = tuple[Expr, ...]

_MANTISSA_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Random bits of a uniform number: as many as make every multiple of 2**-bits below 1 a number."""
_WORD_BITS = 32
_EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23}


class Draw:
    """The random bits of one operator's result, for each element 64 (i64)."""

    def __init__(self, builder: PrimsBuilder, shape: Shape) -> None:
        self._builder = builder
        self.shape = shape
        self._seed = builder.expand(builder.seed(), shape)
        self._position = builder.reshape(builder.iota(product_of(shape)), shape)

    def bits(self) -> Tensor:
        """64 random bits."""
        return self._builder.prim("philox", self._seed, self._position)

    def more_bits(self) -> Tensor:
        """64 more: at the counters that no position reaches."""
        position = self._builder.prim("bitwise_not", self._position)
        return self._builder.prim("philox", self._seed, position)

    def is_below(self, p: float) -> Tensor:
        """True with probability p, exact to 2**-64; p from 0 to 1."""
        threshold = math.floor(p * 2.0**64) - (1 << 63)
        if threshold >= 1 << 63:
            return self._builder.full(True, DType.BOOL, self.shape)
        return self._builder.apply("lt", self.bits(), threshold)

    def uniform(self, dtype: DType) -> Tensor:
        """Multiples of 2**-bits from 0 up to, not including, 1; f32 for narrower floats.

        A number is one of the type's own, so that rounding to it never gives 1.
        """
        return _fraction(self._builder, self.bits(), _MANTISSA_BITS[dtype], dtype.compute_dtype)

    def positive_uniform(self, dtype: DType) -> Tensor:
        """Numbers above 0 and up to 1 for logarithms, f32 or f64: the small ones are fine."""
        wide = dtype.compute_dtype
        if wide is DType.F64:
            return _shifted_fraction(self._builder, self.bits(), 53, wide)
        return _shifted_fraction(self._builder, _low_word(self._builder, self.bits()), 31, wide)

    def normal(self, dtype: DType) -> Tensor:
        """The standard normal distribution by Box and Muller, f32 or f64.

        Source: G. Box, M. Muller, "A note on the generation of random normal deviates", 1958.
        """
        op, wide = self._builder, dtype.compute_dtype
        if wide is DType.F64:
            turn = _fraction(op, self.more_bits(), 53, wide)
        else:
            turn = _fraction(op, _high_word(op, self.bits()), 24, wide)
        radius = op.prim("sqrt", op.apply("mul", self._log(wide), -2.0))
        return op.prim("mul", radius, op.prim("cos", op.apply("mul", turn, math.tau)))

    def exponential(self, dtype: DType) -> Tensor:
        """The exponential distribution of rate 1, f32 or f64; never 0, as PyTorch's is not."""
        wide = dtype.compute_dtype
        log = self._builder.apply("minimum", self._log(wide), -_EPSILON[wide] / 2)
        return self._builder.prim("neg", log)

    def cauchy(self, dtype: DType) -> Tensor:
        """The standard Cauchy distribution, f32 or f64.

        The size is a cotangent and the sign a bit of its own: near 0 a tangent's operand is exact,
        near pi/2 it is not, and there lie the tails.
        """
        op = self._builder
        angle = op.apply("mul", self.positive_uniform(dtype), math.pi / 2)
        size = op.prim("div", op.prim("cos", angle), op.prim("sin", angle))
        is_negative = op.apply("lt", self.more_bits(), 0)
        return op.where(is_negative, op.prim("neg", size), size)

    def _log(self, dtype: DType) -> Tensor:
        return self._builder.prim("log", self.positive_uniform(dtype))

    def below(self, span: int) -> Tensor:
        """Integers from 0 up to, not including, span (i64), 1 <= span < 2**63."""
        op = self._builder
        if span >= 1 << 31:
            return op.apply("mod_floor", self.bits(), span)
        # The high part of the product of 64 bits and the span: no division, and no number is
        # favoured by more than 2**-33.
        # Source: D. Lemire, "Fast random integer generation in an interval", 2019.
        bits = self.bits()
        low = op.apply("bit_and", bits, (1 << _WORD_BITS) - 1)
        high = _shifted(op, bits, 64, _WORD_BITS)
        carried = op.apply("shr_arith", op.apply("mul", low, span), _WORD_BITS)
        whole = op.apply("add", op.apply("mul", high, span), carried)
        return op.apply("shr_arith", whole, _WORD_BITS)


def _low_word(builder: PrimsBuilder, bits: Tensor) -> Tensor:
    return builder.convert(bits, DType.I32)


def _high_word(builder: PrimsBuilder, bits: Tensor) -> Tensor:
    return builder.convert(builder.apply("shr_arith", bits, _WORD_BITS), DType.I32)


def _fraction(builder: PrimsBuilder, bits: Tensor, count: int, dtype: DType) -> Tensor:
    """The highest `count` bits as a binary fraction; exact."""
    if bits.dtype is DType.I64 and count < _WORD_BITS:
        bits = _low_word(builder, bits)
    width = 8 * bits.dtype.itemsize_bytes
    return builder.apply(
        "mul", builder.convert(_shifted(builder, bits, width, count), dtype), 2.0**-count
    )


def _shifted_fraction(builder: PrimsBuilder, bits: Tensor, count: int, dtype: DType) -> Tensor:
    """The highest bits as a binary fraction, plus half of its last place: above 0, at most 1."""
    return builder.apply("add", _fraction(builder, bits, count, dtype), 2.0 ** -(count + 1))


def _shifted(builder: PrimsBuilder, bits: Tensor, width: int, count: int) -> Tensor:
    """The highest `count` bits as an integer of 0 or more."""
    return builder.apply(
        "bit_and", builder.apply("shr_arith", bits, width - count), (1 << count) - 1
    )
