"""Forward and backward graphs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from tests.gpu.case import Case, Tensors, case, floats, places


def training_cases() -> Iterator[Case]:
    """Blocks of networks with the gradients of their inputs and weights."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        yield case(
            f"a block's gradients in {str(dtype).removeprefix('torch.')}",
            _block,
            partial(_block_operands, dtype),
            has_gradients=True,
        )
    yield case(
        "gradients through batch norm and pooling",
        _convolved,
        lambda: (floats(4, 8, 12, 12), floats(8, seed=1), floats(8, seed=2)),
        has_gradients=True,
    )
    yield case(
        "a classifier's gradients",
        _classified,
        lambda: (floats(50, 16), floats(50, 16, seed=1), places(8, 9, below=50)),
        has_gradients=True,
    )
    yield case(
        "gradients of gated units and RMSNorm",
        lambda x, y, w: F.rms_norm(F.silu(x) * y, (96,), w),
        lambda: (floats(33, 96), floats(33, 96, seed=1), floats(96, seed=2)),
        has_gradients=True,
    )
    yield case(
        "gradients of attention written out",
        lambda q, k, v: ((q @ k.transpose(1, 2)) / 4).softmax(-1) @ v,
        lambda: tuple(floats(2, 33, 16, seed=n) for n in range(3)),
        has_gradients=True,
    )
    yield from _attention_cases()
    yield from _product_cases()
    yield from _group_cases()
    yield case(
        "gradients of scans, sorts and gathers",
        lambda x, at: x.cumsum(1) + x.sort(dim=1, stable=True).values + x.gather(1, at),
        lambda: (floats(20, 40), places(20, 40, below=40)),
        has_gradients=True,
    )
    yield case(
        "gradients of windows",
        lambda x: F.max_pool2d(F.interpolate(F.pad(x, (1, 1, 1, 1), "reflect"), scale_factor=2), 3),
        lambda: (floats(2, 3, 14, 14),),
        has_gradients=True,
    )


def _attention_cases() -> Iterator[Case]:
    """Attention as one operator, by each of the kernels that a GPU has for it."""
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        for name, (function, shapes) in _ATTENTION.items():
            yield case(
                f"gradients of attention, {name}, in {str(dtype).removeprefix('torch.')}",
                function,
                partial(_all_floats, shapes, dtype),
                has_gradients=True,
            )


def _product_cases() -> Iterator[Case]:
    """Products whose rows begin at odd addresses, which plans pad."""
    for dtype in (torch.float16, torch.bfloat16):
        yield case(
            f"logits over an odd vocabulary, in {str(dtype).removeprefix('torch.')}",
            lambda x, w: F.log_softmax(F.linear(x, w), -1)[:, ::100],
            partial(_all_floats, ((96, 512), (10_001, 512)), dtype),
            has_gradients=True,
        )
        yield case(
            f"a batch of odd rows, in {str(dtype).removeprefix('torch.')}",
            lambda x, y: torch.bmm(x.exp(), y) @ y.mT,
            partial(_all_floats, ((3, 256, 1001), (3, 1001, 128)), dtype),
            has_gradients=True,
        )


def _group_cases() -> Iterator[Case]:
    """Heads of keys and values that a model repeats for groups of query heads."""
    for length in (1, 40):
        yield case(
            f"heads repeated for {length} queries, with a mask",
            _repeated,
            partial(
                _all_floats, ((2, 8, length, 64), (2, 2, 40, 64), (2, 2, 40, 64)), torch.bfloat16
            ),
        )


def _repeated(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    key, value = (x[:, :, None, :, :].expand(2, 2, 4, 40, 64).reshape(2, 8, 40, 64) for x in (k, v))
    seen = torch.arange(40, device=q.device) < 33
    mixed = F.scaled_dot_product_attention(q, key, value, attn_mask=seen[None, None, None, :])
    return mixed.transpose(1, 2).reshape(2, q.shape[2], -1)


def _all_floats(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Tensors:
    return tuple(floats(*s, dtype=dtype, seed=n, scale=0.3) for n, s in enumerate(shapes))


def _attended(
    x: torch.Tensor, w: torch.Tensor, *bias: torch.Tensor, heads: int = 4, **options: Any
) -> torch.Tensor:
    """Self-attention of projected rows; `w` makes queries, keys and values in one product."""
    parts = F.linear(x, w).unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(*parts.unbind(0), *bias, **options)
    return mixed.transpose(1, 2).reshape(*x.shape[:2], -1).tanh()


def _in_groups(x: torch.Tensor, w: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """Four heads of queries for two of keys and values."""
    query = F.linear(x, w).unflatten(-1, (4, 16)).transpose(1, 2)
    key, value = F.linear(x, u).unflatten(-1, (2, 2, 16)).permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).reshape(*x.shape[:2], -1).tanh()


def _padded(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The last rows of all are not seen."""
    seen = torch.arange(x.shape[1], device=x.device) < x.shape[1] - 5
    return _attended(x, w, attn_mask=seen[None, None, None, :])


_ATTENTION = {
    "plain": (_attended, ((2, 33, 64), (192, 64))),
    "causal": (lambda x, w: _attended(x, w, is_causal=True), ((2, 40, 64), (192, 64))),
    "scaled": (lambda x, w: _attended(x, w, scale=0.3), ((1, 64, 64), (192, 64))),
    "masked": (_padded, ((2, 33, 64), (192, 64))),
    "biased": (_attended, ((2, 33, 64), (192, 64), (1, 4, 33, 33))),
    "odd widths": (_attended, ((2, 33, 52), (156, 52))),
    "heads in groups": (_in_groups, ((2, 40, 64), (64, 64), (64, 64))),
}


def _block_operands(dtype: torch.dtype) -> Tensors:
    weights = floats(128, 64, dtype=dtype, seed=1, scale=0.1)
    gain, bias = (floats(128, dtype=dtype, seed=seed) for seed in (2, 3))
    return floats(16, 64, dtype=dtype), weights, gain, bias


def _block(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.layer_norm(F.linear(x, w), (128,), g, b))


def _convolved(x: torch.Tensor, g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    normed = F.batch_norm(x, None, None, g, b, training=True)
    return F.avg_pool2d(F.relu(normed), 2) + F.max_pool2d(normed, 2)


def _classified(w: torch.Tensor, h: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    logits = F.linear(F.embedding(tokens, w), h).flatten(0, 1)
    return F.cross_entropy(logits, tokens.flatten())
