"""Lets a backward graph compute results of normalizations again, from operand and statistics.

A normalization is one operator of a training graph, so the minimum cut can only save its result.
The gradient of the norm reads its operand, means and inverse deviations in any case, and pointwise
work makes the result from these. Kernels of the backward graph fuse it with the gradient of the
activation that reads the result.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.pytorch.private import OpOverload

_ATEN = torch.ops.aten
_WIDE = (torch.float32, torch.float64)


def recompute_norms(joint: fx.GraphModule) -> None:
    """Lets pointwise gradients of a joint graph read results that are computed again, in place.

    A result that other operators of the backward graph read must be in memory there; it is saved.
    """
    backward = _backward_nodes(joint.graph)
    for target, computed in _COMPUTED.items():
        for norm in joint.graph.find_nodes(op="call_function", target=target):
            parts = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
            if not parts.keys() >= {0, 1, 2}:
                continue
            result, mean, rstd = (parts[number] for number in range(3))
            readers = [user for user in result.users if user in backward]
            if not readers or not all(map(_is_pointwise, readers)):
                continue
            if _value(mean).dtype not in _WIDE:  # too coarse: the result would be another one
                continue
            with joint.graph.inserting_before(max(parts.values()).next):
                made = computed(_Writer(joint.graph), norm, mean, rstd)
            for reader in readers:
                reader.replace_input_with(result, made)


def _backward_nodes(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that depend on a gradient that is passed to the backward graph."""
    found: set[fx.Node] = set()
    for node in graph.nodes:
        is_tangent = node.op == "placeholder" and "tangents" in str(node.target)
        if is_tangent or any(source in found for source in node.all_input_nodes):
            found.add(node)
    return found


def _is_pointwise(node: fx.Node) -> bool:
    return isinstance(node.target, OpOverload) and torch.Tag.pointwise in node.target.tags


class _Writer:
    """Adds operators to a graph, with the values that a trace notes for them."""

    def __init__(self, graph: fx.Graph) -> None:
        self._graph = graph

    def add(self, op: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """A node that calls an operator."""
        node = self._graph.call_function(op, args, kwargs)
        node.meta["val"] = op(*fx.node.map_arg(args, _value), **kwargs)
        return node

    def view(self, x: fx.Node, shape: Sequence[Any]) -> fx.Node:
        """The view of a value with this shape."""
        return self.add(_ATEN.view.default, x, list(shape))

    def shape(self, x: fx.Node) -> list[Any]:
        """The extents of a value; those that vary are nodes."""
        return [
            extent if isinstance(extent, int) else self.add(_ATEN.sym_size.int, x, axis)
            for axis, extent in enumerate(_value(x).shape)
        ]

    def normalized(self, x: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
        """(x - mean) * rstd in the type of the statistics."""
        if _value(x).dtype != _value(mean).dtype:
            x = self.add(_ATEN._to_copy.default, x, dtype=_value(mean).dtype)
        return self.add(_ATEN.mul.Tensor, self.add(_ATEN.sub.Tensor, x, mean), rstd)

    def scaled(self, x: fx.Node, norm: fx.Node) -> fx.Node:
        """The normalized operand with weight and bias of each channel, in the type of the norm."""
        ones = [1] * (_value(x).dim() - 2)
        for op, channels in zip((_ATEN.mul.Tensor, _ATEN.add.Tensor), norm.args[1:3], strict=True):
            if isinstance(channels, fx.Node):
                x = self.add(op, x, self.view(channels, [-1, *ones]))
        dtype = _value(norm)[0].dtype
        return x if _value(x).dtype == dtype else self.add(_ATEN._to_copy.default, x, dtype=dtype)


def _of_group_norm(write: _Writer, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x, groups = norm.all_input_nodes[0], norm.args[6]
    batch, channels, *pixels = write.shape(x)
    ones = [1] * (1 + len(pixels))
    mean, rstd = (write.view(part, [batch, groups, *ones]) for part in (mean, rstd))
    grouped = write.view(x, [batch, groups, -1, *pixels])
    result = write.normalized(grouped, mean, rstd)
    return write.scaled(write.view(result, [batch, channels, *pixels]), norm)


def _of_batch_norm(write: _Writer, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x = norm.all_input_nodes[0]
    ones = [1] * (_value(x).dim() - 2)
    mean, rstd = (write.view(part, [-1, *ones]) for part in (mean, rstd))
    return write.scaled(write.normalized(x, mean, rstd), norm)


def _value(node: fx.Node) -> Any:
    return node.meta["val"]


_COMPUTED = {
    _ATEN.native_group_norm.default: _of_group_norm,
    _ATEN._native_batch_norm_legit_functional.default: _of_batch_norm,
}
"""How the result of an operator is computed from its operand, means and inverse deviations."""
