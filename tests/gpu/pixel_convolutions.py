"""Convolutions as products of matrices, which kernels compute with what follows them."""

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


WINDOWS = (
    # images, channels, results, (down, across); window, strides, padding; if channels are last
    (3, 64, 128, (20, 20), (3, 3), (1, 1), (1, 1), True),
    (2, 128, 64, (33, 17), (3, 3), (2, 2), (1, 1), True),
    (32, 64, 64, (7, 7), (3, 3), (1, 1), (1, 1), True),
    (5, 64, 192, (9, 11), (3, 1), (2, 1), (1, 0), True),
    (1, 192, 64, (40, 24), (1, 3), (1, 1), (0, 1), True),
    (4, 128, 256, (15, 15), (1, 1), (2, 2), (0, 0), True),
    (2, 64, 64, (12, 12), (5, 5), (1, 1), (0, 0), True),
    (2, 64, 64, (20, 20), (3, 3), (1, 1), (1, 1), False),
    (2, 3, 64, (64, 60), (7, 7), (2, 2), (3, 3), True),
    (2, 3, 32, (33, 31), (3, 3), (2, 2), (1, 1), False),
    (2, 4, 64, (16, 16), (3, 3), (1, 1), (1, 1), True),
    (1, 1, 16, (28, 28), (5, 5), (1, 1), (2, 2), True),
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


def window_cases() -> Iterator[Case]:
    """Windows with and without strides and padding, few channels, odd sizes and addresses."""
    for number, (images, channels, results, sides, *moves, is_last) in enumerate(WINDOWS):
        window, strides, padding = moves
        made = [
            (side + 2 * around - inner) // step + 1
            for side, inner, step, around in zip(sides, window, strides, padding, strict=True)
        ]
        sizes = (images, channels, results, *sides)
        for dtype in (torch.float16, torch.bfloat16):
            yield case(
                f"convolution by a window {dtype} {sizes} {moves} {is_last}",
                partial(_windowed, strides, padding),
                partial(_operands, sizes, dtype, is_last, window, tuple(made)),
                has_products=True,
                offset=number % 2,
            )


def _windowed(
    strides: tuple[int, int],
    padding: tuple[int, int],
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
) -> Tensor:
    found = functional.conv2d(image, weight, bias, stride=strides, padding=padding)
    return functional.relu(found + residual)


def _layer(image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    found = functional.silu(functional.conv2d(image, weight, bias))
    return functional.relu(functional.conv2d(image, weight) * 0.5 + residual) + found


def _operands(
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    is_last: bool,
    window: tuple[int, ...] = (1, 1),
    made: tuple[int, ...] = (),
) -> Tensors:
    images, channels, results, *sides = sizes
    residual = floats(images, results, *(made or sides), dtype=dtype, seed=3)
    layout = torch.channels_last if is_last else torch.contiguous_format
    return (
        floats(images, channels, *sides, dtype=dtype).contiguous(memory_format=layout),
        floats(results, channels, *window, dtype=dtype, seed=1, scale=0.1),
        floats(results, dtype=dtype, seed=2),
        residual.contiguous(memory_format=layout),
    )
