"""kernelfarm's operator for a convolution by Winograd's algorithm F(2 x 2, 3 x 3).

Frozen graphs contain it where kernels compute it faster than the framework's direct convolution.
The farm writes it as transforms and one batched product (`optimizer_svc/passes/compute_winograd`);
what is here runs where it does not, by the framework's operators.

A tile of 2 x 2 pixels of the result needs 4 x 4 pixels of the image. Both are transformed to 16
numbers for each channel, which are multiplied by those of the weight: 16 multiplications instead of
36.

Shapes:
    image: (n, c, h, w); weight: (16, panels, c, width), transformed, whose columns are `channels`
    k, in panels as tiles read them (`kernelfarm/ir/panel_order.py`); bias: (k)
    result: (n, k, h - 2 + 2 * padding, w - 2 + 2 * padding), channels last

Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", 2016.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (torch's own name for it)

from kernelfarm.client.pytorch.fake_kernels import register_fake

_SCHEMA = "(Tensor image, Tensor weight, Tensor? bias, int channels, int padding) -> Tensor"

_OF_IMAGE = ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1))
_OF_WEIGHT = ((1, 0, 0), (0.5, 0.5, 0.5), (0.5, -0.5, 0.5), (0, 0, 1))
_OF_RESULT = ((1, 1, 1, 0), (0, 1, -1, -1))


def transformed_weight(weight: Tensor, width: int) -> Tensor:
    """The numbers by which transformed tiles are multiplied, in panels with 0 past their end.

    They are computed in f64 and rounded once. Shapes: (k, c, 3, 3) -> (16, panels, c, width)
    """
    rows = torch.tensor(_OF_WEIGHT, dtype=torch.float64)
    channels, inner = weight.shape[:2]
    found = torch.einsum("ia,kcab,jb->ijck", rows, weight.double(), rows)
    panels = -(-channels // width)
    whole = weight.new_zeros(16, inner, panels * width)
    whole[:, :, :channels] = found.reshape(16, inner, channels)
    return whole.view(16, inner, panels, width).transpose(1, 2).contiguous()


def _convolve(
    image: Tensor, weight: Tensor, bias: Tensor | None, channels: int, padding: int
) -> Tensor:
    planned = _empty(image, weight, bias, channels, padding)
    images, _, height, width = planned.shape
    down, right = (height + 1) // 2, (width + 1) // 2
    below, behind = (
        2 * tiles + 2 - extent - padding
        for tiles, extent in zip((down, right), image.shape[2:], strict=True)
    )
    padded = F.pad(image, (padding, behind, padding, below))
    tiles = padded.unfold(2, 4, 2).unfold(3, 4, 2)  # (n, c, down, right, 4, 4)
    rows = torch.tensor(_OF_IMAGE, dtype=image.dtype)
    found = torch.einsum("ia,ncyxab,jb->ijnyxc", rows, tiles, rows)
    matrices = weight.transpose(1, 2).flatten(2)[:, :, :channels]
    found = torch.bmm(found.reshape(16, images * down * right, -1), matrices)
    found = found.reshape(4, 4, images, down, right, channels)
    rows = torch.tensor(_OF_RESULT, dtype=image.dtype)
    found = torch.einsum("ai,ijnyxk,bj->nkyaxb", rows, found, rows)
    found = found.reshape(images, channels, 2 * down, 2 * right)[:, :, :height, :width]
    if bias is not None:
        found = found + bias[:, None, None]
    return planned.copy_(found)


def _empty(
    image: Tensor, _weight: Tensor, _bias: Tensor | None, channels: int, padding: int
) -> Tensor:
    images, _, height, width = image.shape
    shape = (images, channels, height - 2 + 2 * padding, width - 2 + 2 * padding)
    return image.new_empty(shape).to(memory_format=torch.channels_last)


torch.library.define("kernelfarm::winograd_convolution", _SCHEMA)
torch.library.impl("kernelfarm::winograd_convolution", "CompositeExplicitAutograd", _convolve)
register_fake("winograd_convolution", _empty)

WINOGRAD: Any = torch.ops.kernelfarm.winograd_convolution.default
"""The operator; `padding` pixels of zeros, 0 or 1, are on each side of the image."""
