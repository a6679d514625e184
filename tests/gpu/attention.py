"""Attention by template kernels: of one query for each head, as in decoding, and of several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.nn import functional

from tests.gpu.case import Case, case, floats

HALVES = (torch.float16, torch.bfloat16)


def attention_cases() -> Iterator[Case]:
    """Grouped heads, masks, odd widths and numbers of keys, layouts of caches, varying keys."""
    for dtype in HALVES:
        for heads, groups, keys, width in (
            (12, 12, 512, 64),
            (32, 8, 4096, 128),
            (32, 1, 300, 128),
            (6, 2, 257, 80),
            (40, 2, 1000, 48),
        ):
            shapes = (2, heads, 1, width), (2, groups, keys, width)
            yield case(
                f"attention of one query {dtype} {heads} heads, {groups} of keys, {keys}, {width}",
                _attend,
                partial(_operands, *shapes, dtype=dtype),
            )
    for masks in ((1, 1), (2, 1), (1, 8), (2, 8)):
        yield case(
            f"attention of one query with masks {masks}",
            _attend,
            partial(_operands, (2, 8, 1, 64), (2, 4, 700, 64), masks=masks),
        )
    for queries, masks in ((2, ()), (5, (1, 1, 5)), (8, (2, 1, 1)), (4, (2, 8, 4))):
        for dtype in HALVES:
            yield case(
                f"attention of few queries, {queries}, with masks {masks}, {dtype}",
                _attend,
                partial(_operands, (2, 8, queries, 80), (2, 4, 1111, 80), dtype=dtype, masks=masks),
            )
    yield case(
        "attention of one query whose heads lie side by side",
        lambda *x: _attend(*(each.transpose(1, 2) for each in x)),
        partial(_operands, (3, 1, 8, 64), (3, 900, 2, 64)),
    )
    sizes = ((2, 200), (3, 777), (5, 4096), (2, 33))
    yield case(
        "attention of one query and a varying number of keys and sequences",
        _attend_in_heads,
        *(partial(_operands, (b, 1, 1024), (b, n, 256)) for b, n in sizes),
        dynamic=True,
    )


def _attend_masked_in_heads(*operands: torch.Tensor) -> torch.Tensor:
    """Shapes: (batch, tokens, heads * 64) each, then a mask (batch, 1, queries, keys)."""
    *projected, mask = operands
    return _attend_in_heads(*projected, attn_mask=mask)


def _operands_with_mask(batch: int, queries: int, keys: int) -> tuple[torch.Tensor, ...]:
    mask = floats(batch, 1, queries, keys, seed=3) > -0.5
    return (*_operands((batch, queries, 1024), (batch, keys, 256)), mask)


def _attend_in_heads(*projected: torch.Tensor, **options: Any) -> torch.Tensor:
    """Shapes: (batch, tokens, heads * 64) each."""
    heads = (
        x.unflatten(-1, (count, 64)).transpose(1, 2)
        for x, count in zip(projected, (16, 4, 4), strict=True)
    )
    query, key, value = heads
    found = functional.scaled_dot_product_attention(query, key, value, enable_gqa=True, **options)
    return found.transpose(1, 2).flatten(2)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    **options: Any,
) -> torch.Tensor:
    """A row of the mask may hide all keys."""
    found = functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, enable_gqa=query.shape[1] != key.shape[1], **options
    )
    return found.transpose(1, 2).flatten(2) * 2


def _operands(
    query: tuple[int, ...],
    key: tuple[int, ...],
    dtype: torch.dtype = torch.bfloat16,
    masks: tuple[int, ...] = (),
) -> tuple[torch.Tensor, ...]:
    """Tensors of these shapes; a mask has `masks` before the axes of the query and the keys."""
    found = [floats(*shape, dtype=dtype, seed=n) for n, shape in enumerate((query, key, key))]
    if masks:
        last = (*masks, 1)[:3]
        mask = floats(*last, key[2], seed=3) > -0.5
        mask[0, 0, 0] = False
        found.append(mask)
    return tuple(found)


def flash_cases() -> Iterator[Case]:
    """Several queries: grouped heads, causal, masks, layouts, odd lengths, operands of one buffer.

    Among them are forms that tensor maps do not take.
    """
    for dtype in HALVES:
        for heads, groups, queries, keys, width in (
            (4, 4, 64, 64, 64),
            (4, 2, 197, 197, 64),
            (6, 6, 1000, 333, 64),
            (4, 1, 130, 1100, 128),
            (16, 4, 512, 512, 128),
        ):
            shapes = (3, heads, queries, width), (3, groups, keys, width)
            for is_causal in (False, True):
                yield case(
                    f"attention of {queries} queries {dtype} {heads} heads, {groups} of keys,"
                    f" {keys}, {width}, causal {is_causal}",
                    partial(_attend, is_causal=is_causal),
                    partial(_operands, *shapes, dtype=dtype),
                )
    for width in (32, 40, 72, 80, 96):
        for is_causal in (False, True):
            yield case(
                f"attention of several queries of {width}, causal {is_causal}",
                partial(_attend, is_causal=is_causal),
                partial(_operands, (2, 4, 200, width), (2, 2, 300, width)),
            )
        yield case(
            f"attention of several queries of {width} with masks of keys",
            _attend,
            partial(_operands, (2, 8, 70, width), (2, 4, 257, width), masks=(2, 1, 1)),
        )
    for masks in ((1, 1, 1), (2, 1, 300), (2, 8, 1), (1, 8, 300)):
        for width in (64, 128):
            yield case(
                f"attention of several queries of {width} with masks {masks}",
                _attend,
                partial(_operands, (2, 8, 300, width), (2, 4, 257, width), masks=masks),
            )
    yield case(
        "attention of several queries whose heads lie side by side",
        lambda *x: _attend(*(each.transpose(1, 2) for each in x)),
        partial(_operands, (3, 200, 8, 64), (3, 300, 2, 64)),
    )
    for is_causal in (False, True):
        yield case(
            f"attention of several queries of one buffer, causal {is_causal}",
            partial(_attend_packed, is_causal=is_causal),
            lambda: (floats(2, 160, 3 * 8 * 64, dtype=torch.bfloat16),),
        )
    sizes = ((2, 200), (3, 777), (1, 2048), (5, 65))
    for is_causal in (False, True):
        yield case(
            f"attention of a varying number of several queries, causal {is_causal}",
            partial(_attend_in_heads, is_causal=is_causal),
            *(partial(_operands, (b, n, 1024), (b, n, 256)) for b, n in sizes),
            dynamic=True,
        )
    yield case(
        "attention of a varying number of several queries with masks",
        _attend_masked_in_heads,
        *(partial(_operands_with_mask, b, n, n + 9) for b, n in sizes),
        dynamic=True,
    )
    yield case(
        "attention of several queries with a scale below zero",
        partial(_attend, scale=-0.3),
        partial(_operands, (2, 4, 160, 64), (2, 4, 160, 64)),
    )
    yield case(
        "attention of several queries with long tiles for many programs",
        partial(_attend, is_causal=True),
        partial(_operands, (4, 32, 1100, 128), (4, 8, 1100, 128)),
    )


def flash_gradient_cases() -> Iterator[Case]:
    """The gradients of the same programs."""
    for made in flash_cases():
        yield replace(made, name=f"gradients of {made.name}", has_gradients=True)


def mask_gradient_cases() -> Iterator[Case]:
    """Gradients of masks of numbers: Swin's and T5's biases, and each way in which masks repeat."""
    for dtype in HALVES:
        for windows, images, heads in ((1, 64, 3), (4, 8, 6), (16, 2, 3)):
            yield case(
                f"gradients of a bias of windows {dtype}, {windows} of {images} images, {heads}",
                _attend_windows,
                partial(_window_operands, windows, images, heads, dtype=dtype),
                has_gradients=True,
            )
        yield case(
            f"gradients of a bias of distances {dtype}",
            _attend_distances,
            partial(_distance_operands, 4, 8, 300, dtype=dtype),
            has_gradients=True,
        )
    for mask in ((1, 8, 70), (2, 8, 70), (2, 1, 70), (1, 1, 70), (2, 8, 1), (1, 8, 1), (2, 1, 1)):
        for width in (40, 64, 128):
            yield case(
                f"gradients of a mask {mask} of numbers, {width}",
                _attend,
                partial(_operands_with_bias, mask, (2, 8, 70, width), (2, 8, 257, width)),
                has_gradients=True,
            )
    sizes = ((2, 200), (3, 77), (24, 65))
    yield case(
        "gradients of a mask of numbers of varying sizes",
        _attend_biased_in_heads,
        *(partial(_operands_with_bias, (1, 16, n), (b, n, 1024), (b, n, 256)) for b, n in sizes),
        dynamic=True,
        has_gradients=True,
    )


def _attend_windows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    places: torch.Tensor,
    is_seen: torch.Tensor,
) -> torch.Tensor:
    """Swin: shifted windows (windows, n, n) have a mask, all images a table of numbers of heads."""
    length = query.shape[2]
    mask = table[places].view(length, length, -1).permute(2, 0, 1).contiguous().unsqueeze(0)
    if is_seen.shape[0] > 1:
        hidden = torch.where(is_seen, 0.0, -100.0).to(mask.dtype)[None, :, None]
        hidden = hidden.expand(query.shape[0] // is_seen.shape[0], -1, -1, -1, -1)
        mask = mask + hidden.reshape(-1, 1, length, length)
    return _attend(query, key, value, mask)


def _window_operands(
    windows: int, images: int, heads: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    """Windows of 49 pixels with heads of 32; a pixel has a place in the table for each other."""
    shape = (windows * images, heads, 49, 32)
    table = floats(169, heads, dtype=dtype, seed=4)
    at = torch.arange(7)
    down, across = (at[:, None, None, None] - at[:, None]), (at[:, None, None] - at)
    numbers = ((down + 6) * 13 + across + 6).reshape(-1)
    is_seen = floats(windows, 49, 49, seed=5) > -1
    return (*_operands(shape, shape, dtype=dtype), table, numbers, is_seen)


def _attend_distances(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    table: torch.Tensor,
    is_seen: torch.Tensor,
) -> torch.Tensor:
    """T5: a number for each head and each of 32 ranges of distances, hidden keys, no scale."""
    at = torch.arange(query.shape[2], device=query.device)
    apart = (at[None, :] - at[:, None]).clamp(-15, 16) + 15
    bias = functional.embedding(apart, table).permute(2, 0, 1).unsqueeze(0)
    mask = torch.where(is_seen, bias, torch.finfo(bias.dtype).min).contiguous()
    return _attend(query, key, value, mask, scale=1.0)


def _distance_operands(
    batch: int, heads: int, length: int, dtype: torch.dtype
) -> tuple[torch.Tensor, ...]:
    shape = (batch, heads, length, 64)
    query, key, value = _operands(shape, shape, dtype=dtype)
    is_seen = floats(batch, 1, 1, length, seed=5) > -1
    return query * 0.125, key, value, floats(32, heads, dtype=dtype, seed=4), is_seen


def _operands_with_bias(
    mask: tuple[int, ...], query: tuple[int, ...], key: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """A mask of numbers with `mask` before the axis of the keys; it may hide all keys of a query.

    Rows (batch, tokens, heads * width) have as many keys as tokens.
    """
    keys = key[-2]
    bias = floats(*mask, keys, dtype=torch.bfloat16, seed=3)
    bias = bias.masked_fill(bias < -1, -torch.inf)
    if mask[-1] > 1:
        bias[..., 0, :] = -torch.inf
    return (*_operands(query, key), bias)


def _attend_biased_in_heads(*operands: torch.Tensor) -> torch.Tensor:
    """Shapes: (batch, tokens, heads * 64) each, then a mask of numbers (1, heads, tokens, keys)."""
    *projected, mask = operands
    return _attend_in_heads(*projected, attn_mask=mask)


def _attend_packed(packed: torch.Tensor, is_causal: bool) -> torch.Tensor:
    """Shape: (batch, tokens, 3 * 8 * 64), scaled first, so that a kernel stores all three."""
    query, key, value = (packed * 1.5).unflatten(-1, (3, 8, 64)).permute(2, 0, 3, 1, 4)
    found = functional.scaled_dot_product_attention(query, key, value, is_causal=is_causal)
    return found.transpose(1, 2).flatten(2)
