"""Airy's function Ai, by Chebyshev series in the computing type."""

from __future__ import annotations

import math

from frontend_svc.operators.coefficients import oscillating as tables
from frontend_svc.operators.core.real_formulas import Real, decomposes_real_x
from frontend_svc.operators.special.series import chebyshev_series

_BELOW, _ABOVE = -4.5, 2.1
"""Between them series in x are used, beyond them asymptotic series."""


@decomposes_real_x("special_airy_ai")
def special_airy_ai(x: Real) -> Real:
    """Ai(x); NaN where x is infinite, as in PyTorch."""
    size = x.of("abs")
    root = size.of("sqrt")
    angle = size * root * (2 / 3)
    scale = 1.0 / root.of("sqrt") * (1 / math.sqrt(math.pi))
    decay = (-angle).of("exp") * 0.5
    above = chebyshev_series(4.0 / angle - 1.0, tables.AIRY_ABOVE) * decay * scale
    result = (x < 0.0).where(_oscillation(angle) * scale, above)
    rising = chebyshev_series(x * (2 / -_BELOW) + 1.0, tables.AIRY_NEAR_BELOW)
    falling = chebyshev_series(x * (2 / _ABOVE) - 1.0, tables.AIRY_NEAR_ABOVE)
    near = (x < 0.0).where(rising, falling)
    result = ((x > _BELOW) & (x < _ABOVE)).where(near, result)
    return size.of("isinf").where(math.nan, result)


def _oscillation(angle: Real) -> Real:
    """F * sin(angle + pi / 4) - G * cos(angle + pi / 4)."""
    inverse = 6.0 / angle
    u = inverse * inverse * 2.0 - 1.0
    f = chebyshev_series(u, tables.AIRY_BELOW_SINE)
    g = chebyshev_series(u, tables.AIRY_BELOW_COSINE) / angle
    sine, cosine = angle.of("sin"), angle.of("cos")
    return (f * (sine + cosine) - g * (cosine - sine)) * math.sqrt(0.5)
