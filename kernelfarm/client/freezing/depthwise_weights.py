"""Gives depthwise convolutions frozen weights in the order in which kernels of a target read them.

Kernels read the weights of successive channels together: a weight is (height, width, channels) in
memory. The graph has a view of it, which is the weight of the convolution, so that the farm sees
the order in the view's strides, and copies nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from kernelfarm.client.freezing.frozen_convolutions import FrozenConvolution, frozen_convolution
from kernelfarm.client.freezing.values import FrozenValues, value_of
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.ir.depthwise import DepthwiseShape, refusal
from kernelfarm.targets import DepthwiseFacts

_aten = torch.ops.aten
_NO_DILATION = [1, 1]


def depthwise_by_kernels(
    values: FrozenValues, types: frozenset[torch.dtype], known: DepthwiseFacts
) -> dict[fx.Node, FrozenConvolution]:
    """The depthwise convolutions that the farm's kernels compute faster, from a plain weight."""
    found = {node: frozen_convolution(values, node, types) for node in values.graph.nodes}
    return {
        node: convolution
        for node, convolution in found.items()
        if convolution is not None and _is_faster(node, convolution, known)
    }


def order_window(values: FrozenValues, node: fx.Node, found: FrozenConvolution) -> None:
    """Gives a convolution a weight whose channels are adjacent in memory.

    A weight that something else uses, too, stays as it is, as two copies would be in memory.
    """
    if len(found.weight.users) > 1:
        return
    value = value_of(found.weight)
    channels, _, *sides = value.shape
    with values.graph.inserting_before(node):
        ordered = values.call(
            ordered_window,
            (found.weight,),
            values.empty((*sides, channels), value.dtype, value.device),
        )
        view = _view(values, _aten.permute.default, ordered, [2, 0, 1])
        view = _view(values, _aten.unsqueeze.default, view, 1)
    node.replace_input_with(found.weight, view)


def ordered_window(weight: torch.Tensor) -> torch.Tensor:
    """A depthwise weight with its channels last.

    Shapes: (channels, 1, height, width) -> (height, width, channels), row-major
    """
    return weight.squeeze(1).permute(1, 2, 0).contiguous()


def _is_faster(node: fx.Node, found: FrozenConvolution, known: DepthwiseFacts) -> bool:
    """True if kernels compute a convolution; of its sizes, only their number may vary."""
    image, weight, result = value_of(found.image), value_of(found.weight), value_of(node)
    channels, per_group, *sides = weight.shape
    is_depthwise = per_group == 1 and channels == found.groups == image.shape[1]
    if not is_depthwise or found.dilation != _NO_DILATION:
        return False
    if not all(isinstance(extent, int) for extent in image.shape[2:]):
        return False
    (down, across), (above, left) = sides, found.padding
    dtype = dtype_from_torch(weight.dtype).value
    is_fixed = isinstance(image.shape[0], int)
    elements = image.numel() + result.numel() if is_fixed else None
    shape = DepthwiseShape(
        dtype, channels, (down, across), (above, left), result.shape[3], elements
    )
    return refusal(shape, known) is None


def _view(values: FrozenValues, operator: Any, source: fx.Node, *args: Any) -> fx.Node:
    """A view of a frozen value, with its value without data."""
    made = values.graph.call_function(operator, (source, *args))
    with values.mode:
        made.meta["val"] = operator(value_of(source), *args)
    values.nodes.add(made)
    return made
