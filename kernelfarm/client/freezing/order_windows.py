"""Gives convolutions on a GPU frozen weights whose channels are adjacent in memory.

So do the farm's kernels and the framework's library read them there; otherwise each call turns
them. The farm sees the order in the weight's strides. The result of a convolution by such a weight
is channels last, too, as PyTorch decides. Only kernels read depthwise weights in their order.
"""

from __future__ import annotations

import torch
from torch import fx

from kernelfarm.client.freezing.depthwise_weights import order_window
from kernelfarm.client.freezing.frozen_convolutions import FrozenConvolution, frozen_convolution
from kernelfarm.client.freezing.values import FrozenValues, value_of
from kernelfarm.targets import TargetFacts

_CONVOLUTION = torch.ops.aten.convolution.default
_WEIGHT, _TRANSPOSED, _GROUPS = 1, 6, 8
_RANK = 4


def order_windows(values: FrozenValues, target: TargetFacts | None) -> dict[fx.Node, torch.Tensor]:
    """Orders the weights of convolutions that kernels may compute as products or as depthwise ones.

    The result has what was traced for the nodes whose values have another layout now.
    """
    if target is not None and target.depthwise_template is not None:
        for node in [*values.graph.nodes]:
            found = _depthwise(values, node)
            if found is not None:
                order_window(values, node, found)
    ordered: dict[fx.Node, fx.Node] = {}
    replaced: dict[fx.Node, torch.Tensor] = {}
    for node in [*values.graph.nodes]:
        weight = _weight(values, node, target)
        if weight is None:
            continue
        if weight not in ordered:
            with values.graph.inserting_before(node):
                made = value_of(weight)
                with values.mode:
                    made = made.contiguous(memory_format=torch.channels_last)
                ordered[weight] = values.call(with_last_channels, (weight,), made)
        node.replace_input_with(weight, ordered[weight])
        replaced[node] = value_of(node)
        with values.mode:
            args = fx.map_arg(node.args, value_of)
            node.meta["val"] = _CONVOLUTION(*args)
    return replaced


def _depthwise(values: FrozenValues, node: fx.Node) -> FrozenConvolution | None:
    """The depthwise convolution of a node by a frozen weight; None if it is none."""
    found = frozen_convolution(values, node, None)
    if found is None or value_of(found.weight).shape[1] != 1:
        return None
    channels = value_of(found.image).shape[1]
    is_single = value_of(found.weight).shape[0] == channels
    return found if is_single and found.groups == channels > 1 else None


def with_last_channels(weight: torch.Tensor) -> torch.Tensor:
    """A weight with its channels last.

    Shapes: (results, channels, height, width), in memory (results, height, width, channels)
    """
    return weight.contiguous(memory_format=torch.channels_last)


def _weight(values: FrozenValues, node: fx.Node, target: TargetFacts | None) -> fx.Node | None:
    """The frozen weight of a convolution, if its channels are not last; else None."""
    if node.target is not _CONVOLUTION:
        return None
    weight = node.args[_WEIGHT]
    if not isinstance(weight, fx.Node) or weight not in values:
        return None
    value = value_of(weight)
    if node.args[_TRANSPOSED] or not _has_groups_of_kernels(value, node.args[_GROUPS], target):
        return None
    is_last = value.dim() == _RANK and value.is_contiguous(memory_format=torch.channels_last)
    return None if value.dim() != _RANK or is_last else weight


def _has_groups_of_kernels(
    weight: torch.Tensor, groups: object, target: TargetFacts | None
) -> bool:
    """True if kernels compute groups of such a weight. The library may want others as they are."""
    if not isinstance(groups, int) or groups == 1:
        return groups == 1
    known = None if target is None else target.convolutions
    if known is None or not known.group_channels or weight.dim() != _RANK:
        return False
    members = weight.shape[0] // groups, weight.shape[1]
    are_even = not any(count % known.group_channels for count in members)
    return are_even and min(members) >= known.least_group_channels
