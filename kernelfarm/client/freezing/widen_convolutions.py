"""Computes convolutions in f32 where the library has no fast code for their type.

The optimizer does so, too, but converts weights in each call. Those of a frozen model are converted
once, in f32 twice as large, and are packed like those of a model of f32.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import fx

from kernelfarm.client.freezing.values import FrozenValues, value_of
from kernelfarm.client.pytorch.dtypes import dtype_from_torch

_CONVOLUTION = torch.ops.aten.convolution.default
_CAST = torch.ops.aten._to_copy.default
_OPERANDS = 3
"""The image, the weight and the bias, which may be None."""


def widen_convolutions(values: FrozenValues, types: Collection[str]) -> None:
    """Puts convolutions of these types (`DType` values), by frozen weights, between conversions."""
    for node in [*values.graph.nodes]:
        if node.target is _CONVOLUTION and _is_widened(values, node, types):
            _widen(values, node)


def in_f32(weight: torch.Tensor) -> torch.Tensor:
    """A weight or a bias as f32, of any shape."""
    return weight.float()


def _is_widened(values: FrozenValues, node: fx.Node, types: Collection[str]) -> bool:
    image, *weights = node.args[:_OPERANDS]
    frozen = [weight for weight in weights if weight is not None]
    dtypes = {dtype_from_torch(value_of(n).dtype) for n in (node, image, *frozen)}
    is_slow = len(dtypes) == 1 and dtypes.pop().value in types
    on_cpu = value_of(node).device.type == "cpu"  # `types` are facts of the processor
    return is_slow and on_cpu and all(weight in values for weight in frozen)


def _widen(values: FrozenValues, node: fx.Node) -> None:
    graph, before = values.graph, value_of(node)
    image, *weights = node.args[:_OPERANDS]
    with values.mode:
        values_in_f32 = [None if n is None else value_of(n).float() for n in (image, *weights)]
        after = before.float()
    with graph.inserting_before(node):
        converted = graph.call_function(_CAST, (image,), {"dtype": torch.float32})
        converted.meta["val"] = values_in_f32[0]
        frozen = [
            None if weight is None else values.call(in_f32, (weight,), value)
            for weight, value in zip(weights, values_in_f32[1:], strict=True)
        ]
    node.args = (converted, *frozen, *node.args[_OPERANDS:])
    node.meta["val"] = after
    with graph.inserting_after(node):
        rounded = graph.call_function(_CAST, (node,), {"dtype": before.dtype})
    rounded.meta["val"] = before
    for made in (converted, rounded):
        made.meta["stack_trace"] = node.meta.get("stack_trace")
    node.replace_all_uses_with(rounded, delete_user_cb=lambda user: user is not rounded)
