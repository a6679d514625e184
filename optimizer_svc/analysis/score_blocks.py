"""How much memory the scores of attention take if kernels are launched for blocks of them."""

from __future__ import annotations

import math

MOST_BLOCKS = 256
"""Each block is a launch of each kernel, which a plan lists."""


def least_block_elems(heads: int, queries: int, keys: int, *, of_whole_heads: bool = False) -> int:
    """The scores of the smallest block: whole heads, or queries of one head, as many in each.

    `heads` are those of all sequences. Blocks of gradients are `of_whole_heads`, whose sums are
    over queries and over keys.
    """
    counts = divisors(heads)
    if not of_whole_heads:
        counts += [heads * parts for parts in divisors(queries)]
    count = max(count for count in counts if count <= MOST_BLOCKS)
    return heads * queries * keys // count


def divisors(number: int) -> list[int]:
    """The positive divisors of a positive number."""
    small = [own for own in range(1, math.isqrt(number) + 1) if number % own == 0]
    return small + [number // own for own in small if own * own != number]
