"""Neighbours and parts of floating-point numbers, computed by exact arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass

from frontend_svc.operators.core.prims_builder import PrimsBuilder
from frontend_svc.operators.core.real_formulas import Real
from frontend_svc.operators.core.registry import decomposes
from frontend_svc.operators.core.values import Tensor
from kernelfarm.dtypes import DType
from kernelfarm.errors import InvalidGraphError


@dataclass(frozen=True, slots=True)
class _Format:
    """A binary format: bits of the significand (the hidden one included), range of exponents."""

    bits: int
    least: int
    most: int

    @property
    def smallest(self) -> float:
        """The smallest positive number."""
        return math.ldexp(1.0, self.least - self.bits + 1)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return math.ldexp(2.0 - math.ldexp(1.0, 1 - self.bits), self.most)


_FORMATS = {
    DType.F64: _Format(53, -1022, 1023),
    DType.F32: _Format(24, -126, 127),
    DType.F16: _Format(11, -14, 15),
    DType.BF16: _Format(8, -126, 127),
}


def _format_of(dtype: DType) -> _Format:
    found = _FORMATS.get(dtype)
    if found is None:
        raise InvalidGraphError(f"parts of numbers of type {dtype!r}; expected a float")
    return found


@decomposes("aten.frexp.Tensor")
def frexp(builder: PrimsBuilder, self: Tensor) -> tuple[Tensor, Tensor]:
    """The fraction, in [0.5, 1) with the number's sign, and the exponent of two as i32.

    Zeros, infinities and NaN are their own fractions, with exponent 0. The exponent is computed bit
    by bit; every product is exact.
    """
    form = _format_of(self.dtype)
    x = Real(builder, builder.widened(self))
    is_ordinary = x.of("isfinite") & x.is_(0.0).of("logical_not")
    fraction = is_ordinary.where(x.of("abs"), 1.0)
    exponent = fraction.full(1.0)
    top = (form.most + 1) // 2
    for step in _powers_of_two(top):
        is_large = fraction >= math.ldexp(1.0, step)
        fraction = is_large.where(fraction * math.ldexp(1.0, -step), fraction)
        exponent = is_large.where(exponent + float(step), exponent)
    # The smallest numbers are farther below 1 than the largest are above.
    for step in (top, top, *_powers_of_two(top)):
        is_small = fraction < math.ldexp(1.0, 1 - step)
        fraction = is_small.where(fraction * math.ldexp(1.0, step), fraction)
        exponent = is_small.where(exponent - float(step), exponent)
    fraction = is_ordinary.where((fraction * 0.5).with_("copysign", x), x)
    exponent = is_ordinary.where(exponent, 0.0)
    return builder.convert(fraction.tensor, self.dtype), builder.convert(exponent.tensor, DType.I32)


def _powers_of_two(most: int) -> tuple[int, ...]:
    """most, most / 2, ..., 1."""
    return tuple(1 << bit for bit in reversed(range(most.bit_length())))


@decomposes("aten.nextafter.default")
def nextafter(builder: PrimsBuilder, self: Tensor, other: Tensor) -> Tensor:
    """The neighbour of x in the direction of y; y itself where they are equal."""
    dtype = builder.promoted(self, other)
    form = _format_of(dtype)
    x, y = (Real(builder, builder.widened(builder.convert(t, dtype))) for t in (self, other))
    shape = builder.extents.broadcast([self.shape, other.shape])
    x, y = (Real(builder, builder.expand(r.tensor, shape)) for r in (x, y))
    size, is_up = x.of("abs"), y > x
    is_away = is_up.with_("logical_xor", x < 0.0)
    moved = _neighbour(size, form, is_away).with_("copysign", x)
    first = is_up.where(x.full(form.smallest), -form.smallest)
    moved = x.is_(0.0).where(first, moved)
    result = x.is_(y).where(y, moved)
    result = x.of("isnan").where(x, y.of("isnan").where(y, result))
    return builder.convert(result.tensor, dtype)


def _neighbour(size: Real, form: _Format, is_away: Real) -> Real:
    """The number above a positive number, or the number below it, in the format.

    Source: S. M. Rump, P. Zimmermann, S. Boldo, G. Melquiond, Computing predecessor and successor
    in rounding to nearest, BIT 49 (2009), for the factor; scaling keeps the step representable.
    """
    unit = math.ldexp(1.0, -form.bits)
    is_tiny = size < math.ldexp(1.0, form.least + 1)
    is_small = size < math.ldexp(1.0, form.least + 2 * form.bits)
    scaled = is_small.where(size * math.ldexp(1.0, 2 * form.bits), size)
    step = scaled * (unit * (1 + 2 * unit))
    scaled = scaled + is_away.where(step, -step)
    moved = is_small.where(scaled * math.ldexp(1.0, -2 * form.bits), scaled)
    least = is_away.where(size.full(form.smallest), -form.smallest)
    moved = is_tiny.where(size + least, moved)
    # Infinity has one neighbour only.
    return size.of("isinf").where(form.largest, moved)
