"""Kernels of FlagGems. Import this module where FlagGems can be imported: it asks for a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import triton
from flag_gems.fused.flash_mla import flash_mla_attn_kernel
from flag_gems.fused.fused_add_rms_norm import fused_add_rms_norm_kernel
from flag_gems.ops.rms_norm import rms_norm_kernel
from flag_gems.ops.softmax import softmax_kernel_inner

from tests.support.public_kernels.kernel import (
    EPSILON,
    ROWS,
    WIDTH,
    PublicKernel,
    Tensors,
    inverse_rms,
    numbers,
    rms_normalized,
)

_HEADS, _DEPTH, _VALUE_DEPTH = 128, 576, 512
_PAGE, _PAGES = 64, 64
_LENGTHS = (1, 64, 700, 1024)
"""Of the sequences; each has a table of 16 pages."""


def flag_gems_kernels() -> Iterator[PublicKernel]:
    """Four kernels."""
    x, w, residual = numbers(ROWS, WIDTH), numbers(WIDTH), numbers(ROWS, WIDTH, seed=1)
    norm_of, added_of, shares_of = (
        _jit(kernel)
        for kernel in (rms_norm_kernel, fused_add_rms_norm_kernel, softmax_kernel_inner)
    )

    def norm(x: torch.Tensor, w: torch.Tensor) -> Tensors:
        y, inverse = torch.empty_like(x), x.new_empty(ROWS, dtype=torch.float32)
        norm_of[(ROWS,)](y, inverse, x, w, WIDTH, 1, WIDTH, 1, WIDTH, EPSILON, BLOCK_SIZE=WIDTH)
        return y * 2, inverse

    yield PublicKernel(
        "FlagGems RMSNorm", norm, (x, w), lambda x, w: (rms_normalized(x, w) * 2, inverse_rms(x))
    )

    def added(x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor) -> Tensors:
        x, residual = x * 1, residual * 1  # the kernel writes them
        added_of[(ROWS,)](x, residual, w, WIDTH, 1, WIDTH, 1, WIDTH, EPSILON, BLOCK_SIZE=WIDTH)
        return x, residual

    yield PublicKernel(
        "FlagGems sum and RMSNorm",
        added,
        (x, residual, w),
        lambda x, residual, w: (rms_normalized(x + residual, w), x + residual),
    )

    def shares(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        shares_of[(ROWS, 1, 1)](y, x, ROWS, WIDTH, TILE_N=WIDTH, ONE_TILE_PER_CTA=True)
        return y + 1

    yield PublicKernel("FlagGems softmax", shares, (x,), lambda x: (x.softmax(-1) + 1,))
    yield PublicKernel("FlagGems decoding with pages (MLA)", _decode, _paged(), _exact_decoding)


def _decode(
    q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor
) -> torch.Tensor:
    out = q.new_empty(len(_LENGTHS), _HEADS, _VALUE_DEPTH)
    _decoding[(2, len(_LENGTHS))](
        q, cache, pages, lengths, out, _DEPTH**-0.5, _HEADS, _HEADS * _DEPTH, _DEPTH, _DEPTH, 16,
        _HEADS * _VALUE_DEPTH, _VALUE_DEPTH, 1, BLOCK_H=64, BLOCK_N=32, EVEN_H=True,
        PAGE_SIZE=_PAGE, HEAD_DIM_V=_VALUE_DEPTH, HEAD_DIM=_DEPTH, num_warps=8, num_stages=1,
    )  # fmt: skip
    return out * 2


def _paged() -> Tensors:
    """Queries, the cache of all pages, the pages of each sequence, and its length."""
    sequences = len(_LENGTHS)
    order = torch.randperm(_PAGES, generator=torch.Generator().manual_seed(5))
    pages = order.view(sequences, _PAGES // sequences).int()
    queries = numbers(sequences, _HEADS, _DEPTH)
    return queries, numbers(_PAGES * _PAGE, _DEPTH), pages, torch.tensor(_LENGTHS).int()


def _exact_decoding(
    q: torch.Tensor, cache: torch.Tensor, pages: torch.Tensor, lengths: torch.Tensor
) -> Tensors:
    found = []
    for number, length in enumerate(lengths.tolist()):
        keys = cache.view(_PAGES, _PAGE, _DEPTH)[pages[number].long()].flatten(0, 1)[: int(length)]
        weights = (q[number] @ keys.T * _DEPTH**-0.5).softmax(-1)
        found.append(weights @ keys[:, :_VALUE_DEPTH])
    return (torch.stack(found) * 2,)


def _jit(kernel: Any) -> Any:
    """The function of `triton.jit` below a package's own wrappers."""
    while not isinstance(kernel, triton.runtime.jit.JITFunction):
        kernel = kernel.fn
    return kernel


_decoding = _jit(flash_mla_attn_kernel)
