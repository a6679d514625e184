"""Powers by a literal that generated code computes without the function `pow`."""

from __future__ import annotations

from typing import Final

_MAX_MULTIPLICATIONS: Final = 64


def is_multiplied(exponent: float) -> bool:
    """True if the power is written as a product, or as the inverse of one."""
    return float(exponent).is_integer() and abs(exponent) <= _MAX_MULTIPLICATIONS
