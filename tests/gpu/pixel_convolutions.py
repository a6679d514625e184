"""Convolutions with a window of one pixel, which kernels compute with what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tests.gpu.case import Case, Tensors, case, floats

FORMS = (
    # images, channels, results, (down, across); if channels are last in memory
    (3, 64, 128, (20, 20), True),
    (2, 24, 40, (33, 17), True),
    (1, 16, 16, (14, 14), True),
    (5, 200, 72, (9, 11), True),
    (3, 64, 128, (20, 20), False),
)


def pixel_cases() -> Iterator[Case]:
    """Both half types, layouts, odd addresses, with a bias or a residual behind the product."""
    for number, (images, channels, results, sides, is_last) in enumerate(FORMS):
        for dtype in (torch.float16, torch.bfloat16):
            yield case(
                f"convolution of one pixel {dtype} {images} {channels} {results} {sides} {is_last}",
                _layer,
                partial(_operands, (images, channels, results, *sides), dtype, is_last),
                has_products=True,
                offset=number % 2,
            )


def _layer(image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    found = functional.silu(functional.conv2d(image, weight, bias))
    return functional.relu(functional.conv2d(image, weight) * 0.5 + residual) + found


def _operands(sizes: tuple[int, ...], dtype: torch.dtype, is_last: bool) -> Tensors:
    images, channels, results, *sides = sizes
    layout = torch.channels_last if is_last else torch.contiguous_format
    return (
        floats(images, channels, *sides, dtype=dtype).contiguous(memory_format=layout),
        floats(results, channels, 1, 1, dtype=dtype, seed=1, scale=0.1),
        floats(results, dtype=dtype, seed=2),
        floats(images, results, *sides, dtype=dtype, seed=3).contiguous(memory_format=layout),
    )
