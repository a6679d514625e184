"""Sizes that Triton's blocks may have."""

from __future__ import annotations


def next_power_of_2(value: int) -> int:
    """The smallest power of two that is at least `value` and 1."""
    return 1 << max(0, value - 1).bit_length()
