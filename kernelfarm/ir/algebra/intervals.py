"""Arithmetic on inclusive intervals of integers; sound, not always tight."""

from __future__ import annotations

Interval = tuple[int | None, int | None]
"""Inclusive numeric bounds; None is unbounded."""


def multiply(a: Interval, b: Interval) -> Interval:
    """The interval of the products of numbers in two intervals."""
    if None in a or None in b:
        if _at_least_zero(a) and _at_least_zero(b):
            low = (a[0] or 0) * (b[0] or 0)
            high = a[1] * b[1] if a[1] is not None and b[1] is not None else None
            return low, high
        if a[0] is not None and a[0] == a[1]:
            return _scale(b, a[0])
        if b[0] is not None and b[0] == b[1]:
            return _scale(a, b[0])
        if a[1] is not None and a[1] <= 0 and _at_least_zero(b):
            bottom = a[0] * b[1] if a[0] is not None and b[1] is not None else None
            return bottom, a[1] * (b[0] or 0)
        return None, None
    products = [x * y for x in a for y in b if x is not None and y is not None]
    return min(products), max(products)


def _scale(interval: Interval, factor: int) -> Interval:
    if factor == 0:
        return 0, 0
    low = None if interval[0] is None else interval[0] * factor
    high = None if interval[1] is None else interval[1] * factor
    return (low, high) if factor > 0 else (high, low)


def divide(a: Interval, b: Interval) -> Interval:
    """The interval of the quotients, rounded down."""
    if b[0] is None or b[0] <= 0:
        return None, None
    ends = [b[0]] if b[1] is None else [b[0], b[1]]
    low = None if a[0] is None else min(a[0] // end for end in ends)
    high = None if a[1] is None else max(a[1] // end for end in ends)
    if b[1] is None:
        # With an unbounded divisor the quotient approaches 0 (or -1 for a negative numerator).
        low = None if low is None else min(low, 0 if a[0] is not None and a[0] >= 0 else -1)
        high = None if high is None else max(high, 0 if a[1] is not None and a[1] >= 0 else -1)
    return low, high


def remainder(a: Interval, b: Interval) -> Interval:
    """The interval of the remainders."""
    if b[0] is None or b[0] <= 0:
        return None, None
    high = None if b[1] is None else b[1] - 1
    if _at_least_zero(a) and a[1] is not None:
        high = a[1] if high is None else min(high, a[1])
    return 0, high


def _at_least_zero(interval: Interval) -> bool:
    return interval[0] is not None and interval[0] >= 0


def both(pick: object, a: int | None, b: int | None) -> int | None:
    """The smaller or larger of two bounds, None if one is missing."""
    if a is None or b is None:
        return None
    return min(a, b) if pick is min else max(a, b)


def either(pick: object, a: int | None, b: int | None) -> int | None:
    """The smaller or larger of the existing bounds."""
    if a is None:
        return b
    return a if b is None else both(pick, a, b)
