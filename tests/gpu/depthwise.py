"""Depthwise convolutions of channels-last images and their gradients, by template kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional

from tests.gpu.case import Case, Tensors, case, floats

TYPES = (torch.bfloat16, torch.float16, torch.float32)
FORMS = (
    # channels, (down, across) of images, window, strides, padding
    (96, (56, 56), (7, 7), (1, 1), (3, 3)),
    (144, (28, 28), (5, 5), (2, 2), (2, 2)),
    (20, (9, 31), (3, 5), (1, 3), (0, 1)),
    (130, (6, 20), (5, 3), (3, 1), (4, 0)),
    (64, (1, 1), (3, 3), (1, 1), (1, 1)),
)


def depthwise_cases() -> Iterator[Case]:
    """Windows, strides and paddings in each type, odd addresses, and varying sizes."""
    for number, form in enumerate(FORMS):
        for dtype in TYPES:
            channels, pixels, window, *moves = form
            image = (3, channels, *pixels)
            yield case(
                f"depthwise convolution {dtype} {image} {window} {moves}",
                _layer(*moves),
                partial(_operands, image, window, dtype),
                has_gradients=True,
                has_products=True,
                offset=number % 2,
            )
    shapes = ((1, 48, 14, 20), (5, 48, 30, 9), (2, 48, 33, 64))
    yield case(
        "depthwise convolution of varying sizes",
        _layer((1, 1), (1, 1)),
        *(partial(_operands, shape, (3, 3), torch.bfloat16) for shape in shapes),
        dynamic=True,
        has_gradients=True,
        has_products=True,
    )


def _layer(stride: tuple[int, int], padding: tuple[int, int]) -> Callable[..., Tensor]:
    def convolve(image: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return functional.conv2d(image, weight, bias, stride, padding, groups=weight.shape[0])

    return convolve


def _operands(image: tuple[int, ...], window: tuple[int, int], dtype: torch.dtype) -> Tensors:
    channels = image[1]
    return (
        floats(*image, dtype=dtype).contiguous(memory_format=torch.channels_last),
        floats(channels, 1, *window, dtype=dtype, seed=1),
        floats(channels, dtype=dtype, seed=2),
    )
