"""How much memory the scores of attention take if kernels are launched for blocks of them."""

from __future__ import annotations

MOST_BLOCKS = 256
"""Each block is a launch of each kernel, which a plan lists."""


def least_block_elems(heads: int, queries: int, keys: int, *, of_whole_heads: bool = False) -> int:
    """The scores of the smallest block: whole heads, or queries of one head, as many in each.

    `heads` are those of all sequences. Blocks of gradients are `of_whole_heads`, whose sums are
    over queries and over keys.
    """
    counts = [heads // own for own in range(1, heads + 1) if heads % own == 0]
    if not of_whole_heads:
        counts += [heads * parts for parts in range(1, queries + 1) if queries % parts == 0]
    count = max(count for count in (1, *counts) if count <= MOST_BLOCKS)
    return heads * queries * keys // count
