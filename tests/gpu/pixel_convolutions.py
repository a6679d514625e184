"""Convolutions as products of matrices, which kernels compute with what follows them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain

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


DILATED = (
    # as above; then the pixels of the image from one of the window to the next. Each second one is
    # at odd addresses, so read by pointers.
    (2, 64, 64, (20, 20), (3, 3), (1, 1), (2, 2), (2, 2), True),
    (3, 128, 64, (33, 17), (3, 3), (1, 1), (4, 4), (4, 4), True),
    (2, 256, 128, (33, 33), (3, 3), (1, 1), (18, 18), (18, 18), True),
    (2, 64, 64, (31, 18), (3, 3), (2, 2), (2, 2), (2, 2), True),
    (2, 64, 64, (31, 18), (3, 3), (2, 2), (3, 2), (3, 3), True),
    (5, 96, 72, (9, 40), (1, 3), (1, 1), (0, 4), (1, 4), True),
    (2, 64, 128, (17, 30), (3, 3), (2, 2), (1, 1), (2, 2), True),
    (2, 64, 64, (20, 20), (3, 3), (1, 1), (2, 2), (2, 2), False),
    (1, 64, 192, (21, 23), (3, 3), (1, 1), (0, 0), (2, 3), True),
    (2, 64, 128, (18, 29), (3, 3), (2, 2), (1, 1), (2, 2), True),
    (2, 3, 32, (40, 40), (3, 3), (2, 1), (2, 1), (2, 1), True),
)


GROUPED = (
    # as above; then the number of groups
    (2, 128, 128, (20, 20), (3, 3), (1, 1), (1, 1), (1, 1), 2, True),
    (2, 64, 64, (13, 17), (3, 3), (1, 1), (1, 1), (1, 1), 2, True),
    (3, 256, 256, (33, 17), (3, 3), (2, 2), (1, 1), (1, 1), 8, True),
    (2, 128, 128, (20, 20), (3, 3), (1, 1), (1, 1), (1, 1), 2, False),
    (2, 448, 448, (15, 15), (3, 3), (2, 2), (1, 1), (1, 1), 4, True),
    (5, 80, 80, (9, 11), (3, 3), (1, 1), (1, 1), (1, 1), 5, True),
    (32, 192, 192, (7, 7), (3, 3), (1, 1), (1, 1), (1, 1), 4, True),
    (2, 64, 128, (17, 30), (3, 3), (2, 2), (1, 1), (2, 2), 2, True),
    (2, 96, 240, (31, 18), (3, 1), (2, 1), (1, 0), (1, 1), 3, True),
    (2, 64, 128, (21, 20), (3, 3), (1, 1), (0, 0), (1, 1), 2, True),
    (4, 128, 256, (15, 15), (1, 1), (2, 2), (0, 0), (1, 1), 2, True),
    (1, 128, 64, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), 2, True),
    (2, 64, 128, (18, 29), (3, 3), (2, 2), (1, 1), (2, 2), 2, True),
    (3, 128, 256, (15, 16), (1, 1), (2, 2), (0, 0), (1, 1), 4, True),
    (1, 64, 192, (21, 23), (3, 3), (1, 1), (0, 0), (2, 3), 2, True),
    (2, 96, 48, (12, 12), (5, 5), (1, 1), (2, 2), (1, 1), 3, True),
    (1, 256, 256, (14, 14), (3, 3), (1, 1), (1, 1), (1, 1), 2, True),
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
    """Windows with and without moves of each kind, few channels, odd sizes and addresses."""
    usual = ((*form[:-1], (1, 1), 1, form[-1]) for form in WINDOWS)
    dilated = ((*form[:-1], 1, form[-1]) for form in DILATED)
    numbered = (enumerate(forms) for forms in (usual, dilated, GROUPED))
    for number, form in chain.from_iterable(numbered):
        images, channels, results, sides, *moves, groups, is_last = form
        window, strides, padding, dilation = moves
        made = [
            (side + 2 * around - wide * (inner - 1) - 1) // step + 1
            for side, inner, step, around, wide in zip(sides, *moves, strict=True)
        ]
        sizes = (images, channels, results, *sides)
        for dtype in (torch.float16, torch.bfloat16):
            yield case(
                f"convolution by a window {dtype} {sizes} {moves} {groups} {is_last}",
                partial(_windowed, (strides, padding, dilation), groups),
                partial(_operands, sizes, dtype, is_last, (window, tuple(made), groups)),
                has_products=True,
                offset=number % 2,
            )


def _windowed(
    moves: tuple[tuple[int, int], ...],
    groups: int,
    image: Tensor,
    weight: Tensor,
    bias: Tensor,
    residual: Tensor,
) -> Tensor:
    found = functional.conv2d(image, weight, bias, *moves, groups)
    return functional.relu(found + residual)


def _layer(image: Tensor, weight: Tensor, bias: Tensor, residual: Tensor) -> Tensor:
    found = functional.silu(functional.conv2d(image, weight, bias))
    return functional.relu(functional.conv2d(image, weight) * 0.5 + residual) + found


def _operands(
    sizes: tuple[int, ...],
    dtype: torch.dtype,
    is_last: bool,
    windows: tuple[tuple[int, int], tuple[int, ...], int] = ((1, 1), (), 1),
) -> Tensors:
    """Image, weight, bias and residual; `windows`: sides of the window, of the result, groups."""
    images, channels, results, *sides = sizes
    window, made, groups = windows
    residual = floats(images, results, *(made or sides), dtype=dtype, seed=3)
    layout = torch.channels_last if is_last else torch.contiguous_format
    return (
        floats(images, channels, *sides, dtype=dtype).contiguous(memory_format=layout),
        floats(results, channels // groups, *window, dtype=dtype, seed=1, scale=0.1),
        floats(results, dtype=dtype, seed=2),
        residual.contiguous(memory_format=layout),
    )
