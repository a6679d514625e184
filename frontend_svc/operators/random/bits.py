"""Random numbers of every element type, from 64 random bits per element.

Each operator draws a seed of its own. Element n of its result (row-major, in the logical shape of
the tensor) gets 64 bits from Philox at counter n. So tiling, fusion and target do not change a
number. Numbers that exact operations compute from the bits are equal on every target; logarithms
and cosines round as on the target.
"""

from __future__ import annotations

import math

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.ir.algebra.expr import Expr, product_of

Shape = tuple[Expr, ...]

_MANTISSA_BITS = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
"""Random bits of a uniform number: every multiple of 2**-bits below 1 is exact in the type."""
_WORD_BITS = 32
_EPSILON = {DType.F64: 2.0**-52, DType.F32: 2.0**-23}


class Draw:
    """The random bits of one operator's result: 64 for each element (i64)."""

    def __init__(self, builder: PrimsBuilder, shape: Shape) -> None:
        self._builder = builder
        self.shape = shape
        self._seed = builder.expand(builder.seed(), shape)
        self._position = builder.reshape(builder.iota(product_of(shape)), shape)

    def bits(self) -> Tensor:
        """64 random bits."""
        return self._builder.prim("philox", self._seed, self._position)

    def more_bits(self) -> Tensor:
        """64 more random bits, at counters that no position uses."""
        position = self._builder.prim("bitwise_not", self._position)
        return self._builder.prim("philox", self._seed, position)

    def is_below(self, p: float) -> Tensor:
        """True with probability p in [0, 1], exact to 2**-64."""
        threshold = math.floor(p * 2.0**64) - (1 << 63)
        if threshold >= 1 << 63:
            return self._builder.full(True, DType.BOOL, self.shape)
        return self._builder.apply("lt", self.bits(), threshold)

    def uniform(self, dtype: DType) -> Tensor:
        """Multiples of 2**-bits in [0, 1); f32 for narrower floats.

        Every number is exact in the type, so that rounding never gives 1.
        """
        return _fraction(self._builder, self.bits(), _MANTISSA_BITS[dtype], dtype.compute_dtype)

    def positive_uniform(self, dtype: DType) -> Tensor:
        """Numbers in (0, 1] for logarithms, f32 or f64, with fine steps near 0."""
        wide = dtype.compute_dtype
        if wide is DType.F64:
            return _shifted_fraction(self._builder, self.bits(), 53, wide)
        return _shifted_fraction(self._builder, _low_word(self._builder, self.bits()), 31, wide)

    def normal(self, dtype: DType) -> Tensor:
        """The standard normal distribution by Box and Muller, f32 or f64.

        Source: G. Box, M. Muller, "A note on the generation of random normal deviates", 1958.
        """
        builder, wide = self._builder, dtype.compute_dtype
        if wide is DType.F64:
            angle = _fraction(builder, self.more_bits(), 53, wide)
        else:
            angle = _fraction(builder, _high_word(builder, self.bits()), 24, wide)
        radius = builder.prim("sqrt", builder.apply("mul", self._log(wide), -2.0))
        cosine = builder.prim("cos", builder.apply("mul", angle, math.tau))
        return builder.prim("mul", radius, cosine)

    def exponential(self, dtype: DType) -> Tensor:
        """The exponential distribution of rate 1, f32 or f64; never 0, as in PyTorch."""
        wide = dtype.compute_dtype
        log = self._builder.apply("minimum", self._log(wide), -_EPSILON[wide] / 2)
        return self._builder.prim("neg", log)

    def cauchy(self, dtype: DType) -> Tensor:
        """The standard Cauchy distribution, f32 or f64.

        The magnitude is a cotangent, and the sign is a bit of its own. The tails are where the
        operand is near 0, and there it is exact; for a tangent they would be near pi/2, where it is
        not.
        """
        builder = self._builder
        angle = builder.apply("mul", self.positive_uniform(dtype), math.pi / 2)
        size = builder.prim("div", builder.prim("cos", angle), builder.prim("sin", angle))
        is_negative = builder.apply("lt", self.more_bits(), 0)
        return builder.where(is_negative, builder.prim("neg", size), size)

    def _log(self, dtype: DType) -> Tensor:
        return self._builder.prim("log", self.positive_uniform(dtype))

    def below(self, span: int) -> Tensor:
        """Integers in [0, span) (i64), for 1 <= span < 2**63."""
        builder = self._builder
        if span >= 1 << 31:
            return builder.apply("mod_floor", self.bits(), span)
        # The high part of the product of 64 bits and the span: it needs no division, and the bias
        # of a number is at most 2**-33.
        # Source: D. Lemire, "Fast random integer generation in an interval", 2019.
        bits = self.bits()
        low = builder.apply("bit_and", bits, (1 << _WORD_BITS) - 1)
        high = _shifted(builder, bits, 64, _WORD_BITS)
        carried = builder.apply("shr_arith", builder.apply("mul", low, span), _WORD_BITS)
        whole = builder.apply("add", builder.apply("mul", high, span), carried)
        return builder.apply("shr_arith", whole, _WORD_BITS)


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
    """The highest bits as a binary fraction, plus half of its last digit: in (0, 1]."""
    return builder.apply("add", _fraction(builder, bits, count, dtype), 2.0 ** -(count + 1))


def _shifted(builder: PrimsBuilder, bits: Tensor, width: int, count: int) -> Tensor:
    """The highest `count` bits as an integer of 0 or more."""
    return builder.apply(
        "bit_and", builder.apply("shr_arith", bits, width - count), (1 << count) - 1
    )
