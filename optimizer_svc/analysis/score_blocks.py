"""How much memory the scores of attention take if kernels are launched for blocks of them."""

from __future__ import annotations

import math

MOST_BLOCKS = 256
"""Each block is a launch of each kernel, which a plan lists."""


def least_block_elems(heads: int, rows: int, columns: int) -> int:
    """The scores of the smallest block: whole heads, or rows of one head, as many in each.

    `heads` are those of all sequences.
    """
    counts = divisors(heads) + [heads * parts for parts in divisors(rows)]
    count = max(count for count in counts if count <= MOST_BLOCKS)
    return heads * rows * columns // count


def divisors(number: int) -> list[int]:
    """The positive divisors of a positive number."""
    small = [own for own in range(1, math.isqrt(number) + 1) if number % own == 0]
    return small + [number // own for own in small if own * own != number]
