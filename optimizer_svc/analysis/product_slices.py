"""Into how many slices the sums of a product with few rows are split.

A tile of results should be wide: each program reads all rows of x, and with narrow tiles the caches
deliver x more often than memory delivers the weight. Few wide tiles leave multiprocessors idle, so
several programs compute one tile, each the sum of a slice, and a second kernel adds the slices in
order. With up to `_FEW` rows x is small, and narrow tiles do as well without a second kernel.
"""

from __future__ import annotations

from kernelfarm.targets import MemoryFacts

_FEW = 16
WIDE_TILE = 64
"""Columns of a tile for more rows than `_FEW`."""
_MIN_SLICE = 512
"""The fewest terms of a slice: the loop over it must be long enough to hide its start."""
_MAX_SLICES = 8
_STEP = 128
"""The terms of a slice are a multiple of those that a program reads at a time."""


def product_slices(rows: int, n: int, k: int, memory: MemoryFacts) -> int:
    """The number of slices of a product (rows, k) by (k, n), 1 for sums that stay whole."""
    if rows <= _FEW or memory.saturating_programs is None:
        return 1
    tiles = -(-n // WIDE_TILE)
    fitting = (
        slices
        for slices in range(_MAX_SLICES, 1, -1)
        if slices * tiles <= memory.saturating_programs
        and k % (slices * _STEP) == 0
        and k // slices >= _MIN_SLICE
    )
    return next(fitting, 1)
