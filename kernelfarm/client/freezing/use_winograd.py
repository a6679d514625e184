"""Replaces convolutions by those of Winograd's algorithm, where kernels compute these faster.

Weights are transformed once, in f64, and are in panels as tiles read them; they take 16/9 of the
memory. The farm computes such a convolution by kernels, with what follows it.
"""

from __future__ import annotations

import torch
from torch import fx

from kernelfarm.client.custom_operators.winograd import WINOGRAD, transformed_weight
from kernelfarm.client.freezing.frozen_convolutions import FrozenConvolution, frozen_convolution
from kernelfarm.client.freezing.order_weights import order_of_tiles
from kernelfarm.client.freezing.values import FrozenValues, value_of
from kernelfarm.client.pytorch.dtypes import dtype_from_torch
from kernelfarm.dtypes import DType
from kernelfarm.ir.panel_order import PanelOrder
from kernelfarm.ir.winograd import NUMBERS, Convolution, refusal
from kernelfarm.targets import TargetFacts

_TYPES = frozenset({torch.float32})


def use_winograd(values: FrozenValues, target: TargetFacts) -> dict[fx.Node, torch.Tensor]:
    """Replaces the convolutions of a graph that kernels compute faster so.

    A target without facts about them has none. Returns the new nodes, with the values without data
    of what they replace.
    """
    replaced: dict[fx.Node, torch.Tensor] = {}
    if target.winograd is None:
        return replaced
    for node in [*values.graph.nodes]:
        found = frozen_convolution(values, node, _TYPES)
        if found is None or refusal(_stated(found), target.winograd) is not None:
            continue
        order = order_of_tiles(value_of(found.weight).shape[0], DType.F32, target)
        if order is not None:
            replaced[_replace(values, node, found, order)] = value_of(node)
            values.graph.erase_node(node)
    return replaced


def _stated(found: FrozenConvolution) -> Convolution:
    image, weight = value_of(found.image), value_of(found.weight)
    return Convolution(
        tuple(extent if isinstance(extent, int) else None for extent in image.shape),
        tuple(weight.shape),
        (*found.stride, *found.padding, *found.dilation, found.groups),
        dtype_from_torch(weight.dtype).value,
    )


def _replace(
    values: FrozenValues, node: fx.Node, found: FrozenConvolution, order: PanelOrder
) -> fx.Node:
    channels, inner, *_ = value_of(found.weight).shape
    panels, lanes, width, _ = order.shape(channels, inner)
    with values.graph.inserting_before(node):
        weight = values.call(
            transformed_weight,
            (found.weight, width),
            values.empty((NUMBERS, panels, lanes, width), value_of(found.weight).dtype),
        )
        arguments = (found.image, weight, found.bias, channels, found.padding[0])
        made = values.graph.call_function(WINOGRAD, arguments)
    with values.mode:
        made.meta["val"] = WINOGRAD(*map(value_of, arguments))
    made.meta["stack_trace"] = node.meta.get("stack_trace")
    node.replace_all_uses_with(made)
    return made
