"""A user's kernel with hints in its comments."""

# Triton writes constants in capital letters.
# ruff: noqa: N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def summed_rows(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # @hint: waves_per_eu=4
    text: tl.constexpr = "# @hint: this is no comment"
    tl.static_assert(len(text) > 0)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(0, n):
        at = row * BLOCK + tl.arange(0, BLOCK)
        # @hint: async
        total += tl.load(
            x_ptr + at,
            mask=at < n * BLOCK,
            other=0.0,
        )
    # @hint: shared_memory, dot_pad_only_k
    tl.store(out_ptr + tl.arange(0, BLOCK), total)
