"""Lets a backward graph compute results of normalizations again, from operand and statistics.

A normalization is one operator of a training graph, so the minimum cut can only save its result.
The gradient of the norm reads its operand, means and inverse deviations in any case, and pointwise
work makes the result from these. Kernels of the backward graph fuse it with the gradient of the
activation that reads the result.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.joint_graph import (
    GraphWriter,
    backward_nodes,
    is_pointwise,
    value_of,
)

_ATEN = torch.ops.aten
_WIDE = (torch.float32, torch.float64)


def recompute_norms(joint: fx.GraphModule) -> None:
    """Lets pointwise gradients of a joint graph read results that are computed again, in place.

    A result that other operators of the backward graph read must be in memory there; it is saved.
    """
    backward = backward_nodes(joint.graph)
    for target, computed in _COMPUTED.items():
        for norm in joint.graph.find_nodes(op="call_function", target=target):
            parts = {user.args[1]: user for user in norm.users if user.target is operator.getitem}
            if not parts.keys() >= {0, 1, 2}:
                continue
            result, mean, rstd = (parts[number] for number in range(3))
            readers = [user for user in result.users if user in backward]
            if not readers or not all(map(is_pointwise, readers)):
                continue
            if value_of(mean).dtype not in _WIDE:  # too coarse: the result would be another one
                continue
            with joint.graph.inserting_before(max(parts.values()).next):
                made = computed(_NormWriter(joint.graph), norm, mean, rstd)
            for reader in readers:
                reader.replace_input_with(result, made)


class _NormWriter(GraphWriter):
    """Adds the operators that make a norm's result from its statistics."""

    def view(self, x: fx.Node, shape: Sequence[Any]) -> fx.Node:
        """The view of a value with this shape."""
        return self.add(_ATEN.view.default, x, list(shape))

    def normalized(self, x: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
        """(x - mean) * rstd in the type of the statistics."""
        x = self.converted(x, value_of(mean).dtype)
        return self.add(_ATEN.mul.Tensor, self.add(_ATEN.sub.Tensor, x, mean), rstd)

    def scaled(self, x: fx.Node, norm: fx.Node) -> fx.Node:
        """The normalized operand with weight and bias of each channel, in the type of the norm."""
        ones = [1] * (value_of(x).dim() - 2)
        for op, channels in zip((_ATEN.mul.Tensor, _ATEN.add.Tensor), norm.args[1:3], strict=True):
            if isinstance(channels, fx.Node):
                x = self.add(op, x, self.view(channels, [-1, *ones]))
        return self.converted(x, value_of(norm)[0].dtype)


def _of_group_norm(write: _NormWriter, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x, groups = norm.all_input_nodes[0], norm.args[6]
    batch, channels, *pixels = write.shape(x)
    ones = [1] * (1 + len(pixels))
    mean, rstd = (write.view(part, [batch, groups, *ones]) for part in (mean, rstd))
    grouped = write.view(x, [batch, groups, -1, *pixels])
    result = write.normalized(grouped, mean, rstd)
    return write.scaled(write.view(result, [batch, channels, *pixels]), norm)


def _of_batch_norm(write: _NormWriter, norm: fx.Node, mean: fx.Node, rstd: fx.Node) -> fx.Node:
    x = norm.all_input_nodes[0]
    ones = [1] * (value_of(x).dim() - 2)
    mean, rstd = (write.view(part, [-1, *ones]) for part in (mean, rstd))
    return write.scaled(write.normalized(x, mean, rstd), norm)


_COMPUTED = {
    _ATEN.native_group_norm.default: _of_group_norm,
    _ATEN._native_batch_norm_legit_functional.default: _of_batch_norm,
}
"""How the result of an operator is computed from its operand, means and inverse deviations."""
