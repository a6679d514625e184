"""The convolutions of a graph whose weights are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import fx

from kernelfarm.client.freezing.values import FrozenValues, value_of

_aten = torch.ops.aten
_IMAGE_RANK = 4


class FrozenConvolution(NamedTuple):
    """The arguments of a convolution of images by a frozen weight, which is not transposed."""

    image: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    stride: Sequence[int]
    padding: Sequence[int]
    dilation: Sequence[int]
    groups: int


def frozen_convolution(
    values: FrozenValues, node: fx.Node, types: frozenset[torch.dtype] | None
) -> FrozenConvolution | None:
    """The convolution that a node computes; None if it is none.

    With `types`, its operands are on a processor, and their elements have one of these types.
    """
    if node.target is not _aten.convolution.default:
        return None
    args: Any = node.args
    image, weight, bias, stride, padding, dilation, transposed, _, groups = args
    if transposed or weight not in values or not (bias is None or values.is_static(bias)):
        return None
    found = FrozenConvolution(
        image, weight, bias, _pair(stride), _pair(padding), _pair(dilation), groups
    )
    operands = [value_of(n) for n in (image, weight, bias) if n is not None]
    is_known = types is None or have_one_type(operands, types)
    return found if value_of(image).dim() == _IMAGE_RANK and is_known else None


def have_one_type(operands: Sequence[torch.Tensor], types: frozenset[torch.dtype]) -> bool:
    """True for tensors on a processor whose elements have one type, one of `types`."""
    found = {operand.dtype for operand in operands}
    on_cpu = all(operand.device.type == "cpu" for operand in operands)
    return on_cpu and len(found) == 1 and found <= types


def _pair(numbers: Sequence[int]) -> list[int]:
    """A number for each axis: one number stands for both."""
    return [*numbers, *numbers] if len(numbers) == 1 else [*numbers]
