"""Into how many slices the sums of a product with few rows are split.

A tile of results must not be narrow: each program reads all rows of x, and with narrow tiles the
caches deliver x more often than memory delivers the weight. If tiles are fewer than
multiprocessors, several programs compute one tile, each the sum of a slice, and a second kernel
adds the slices in order. With up to `_FEW` rows x is small, and narrow tiles do as well without a
second kernel.
"""

from __future__ import annotations

from kernelfarm.targets import MemoryFacts

_FEW = 16
_TILE_COLUMNS = 32
"""Columns of a tile for more rows than `_FEW`, if tiles are few."""
_MIN_SLICE = 1024
"""The fewest terms of a slice: on an H100, 4 slices of 256 terms are slower than one sum of 1,024,
4 slices of 1,024 terms 1.3 times as fast as cuBLAS."""
_MAX_SLICES = 8
_STEP = 128
"""The terms of a slice are a multiple of those that a program reads at a time."""


def product_slices(rows: int, n: int, k: int, memory: MemoryFacts) -> int:
    """The number of slices of a product (rows, k) by (k, n), 1 for sums that stay whole."""
    if rows <= _FEW or memory.saturating_programs is None:
        return 1
    tiles = -(-n // _TILE_COLUMNS)
    fitting = (
        slices
        for slices in range(_MAX_SLICES, 1, -1)
        if slices * tiles <= memory.saturating_programs
        and k % (slices * _STEP) == 0
        and k // slices >= _MIN_SLICE
    )
    return next(fitting, 1)
