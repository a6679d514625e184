"""Users' kernels with hints in their comments."""

# Triton writes constants in capital letters.
# ruff: noqa: N803

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import triton
import triton.language as tl

from kernelfarm.ir.triton.user_kernel import UserKernel


@triton.jit
def summed_rows(x_ptr, out_ptr, n, BLOCK: tl.constexpr):  # @hint: waves_per_eu=4
    text: tl.constexpr = "# @hint: this is no comment"
    tl.static_assert(len(text) > 0)
    total = tl.zeros([BLOCK], tl.float32)
    for row in range(0, n):
        at = row * BLOCK + tl.arange(0, BLOCK)
        # @hint: async, multibuffer
        total += tl.load(
            x_ptr + at,
            mask=at < n * BLOCK,
            other=0.0,
        )
    # @hint: shared_memory, dot_pad_only_k
    tl.store(out_ptr + tl.arange(0, BLOCK), total)


def with_comments(kernel: UserKernel, hints: Mapping[str, str]) -> UserKernel:
    """The kernel with hints at its first statements that begin with the given texts."""
    lines = kernel.source.splitlines()
    for start, hint in hints.items():
        number = next(n for n, line in enumerate(lines) if line.lstrip().startswith(start))
        lines[number] += f"  # @hint: {hint}"
    return replace(kernel, source="\n".join((*lines, "")))
