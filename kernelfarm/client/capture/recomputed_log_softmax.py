"""Lets a backward graph compute log-softmax again, from operand and two numbers of each row.

Log-softmax is one operator of a training graph, so the minimum cut can only save its result. For a
language model that is a tensor as large as its logits, which the loss reads at one class of each
row. As pointwise work on the row's maximum and the logarithm of its sum, the result is never
stored: the loss computes one element, and the gradient all of them.
"""

from __future__ import annotations

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
_GRADIENT = _ATEN._log_softmax_backward_data.default
_LOSS_GRADIENTS = (_ATEN.nll_loss_backward.default, _ATEN.nll_loss2d_backward.default)
"""They read shape and type of the result alone."""


def recompute_log_softmax(joint: fx.GraphModule) -> None:
    """Lets gradients of a joint graph read log-softmax that is computed again, in place.

    A result that other operators of the backward graph read must be in memory there; it is saved.
    """
    backward = backward_nodes(joint.graph)
    for node in joint.graph.find_nodes(op="call_function", target=_ATEN._log_softmax.default):
        readers = [user for user in node.users if user in backward]
        if not any(reader.target is _GRADIENT for reader in readers):
            continue
        if all(_takes_it_computed(reader, node) for reader in readers):
            _replace(joint.graph, node, readers)


def _replace(graph: fx.Graph, node: fx.Node, readers: list[fx.Node]) -> None:
    write = GraphWriter(graph)
    dtype = value_of(node).dtype
    with graph.inserting_before(node):
        made, made_again = _computed(write, node)
        like = _of_shape(write, node)
    for reader in readers:
        with graph.inserting_before(reader):
            if reader.target is _GRADIENT:
                reader.replace_all_uses_with(_gradient(write, reader, made_again))
                graph.erase_node(reader)
            elif reader.target in _LOSS_GRADIENTS:
                reader.replace_input_with(node, like)
            else:
                reader.replace_input_with(node, write.converted(made_again, dtype))
    node.replace_all_uses_with(made)
    graph.erase_node(node)


def _takes_it_computed(reader: fx.Node, result: fx.Node) -> bool:
    if reader.target in {_GRADIENT, *_LOSS_GRADIENTS}:
        grad, other, *_ = reader.args
        return other is result and grad is not result
    return is_pointwise(reader)


def _of_shape(write: GraphWriter, node: fx.Node) -> fx.Node:
    """Zeros, which take no memory in a program, because no kernel reads them."""
    like = value_of(node)
    shape = write.shape(node.all_input_nodes[0])
    return write.add(_ATEN.full.default, shape, 0.0, dtype=like.dtype, device=like.device)


def _computed(write: GraphWriter, node: fx.Node) -> tuple[fx.Node, fx.Node]:
    """The result for the forward graph, and, before it is rounded, for the backward graph.

    They are two different sums with the same value, because PyTorch would join equal ones. The
    minimum cut takes what the loss reads for a stored value, and would save it.
    """
    x, axis = _widened(write, node.all_input_nodes[0]), [node.args[1]]
    x = write.add(_ATEN.sub.Tensor, x, write.add(_ATEN.amax.default, x, axis, True))
    total = write.add(_ATEN.sum.dim_IntList, write.add(_ATEN.exp.default, x), axis, True)
    total = write.add(_ATEN.log.default, total)
    made = write.add(_ATEN.sub.Tensor, x, total)
    again = write.add(_ATEN.add.Tensor, x, write.add(_ATEN.neg.default, total))
    return write.converted(made, value_of(node).dtype), again


def _gradient(write: GraphWriter, node: fx.Node, result: fx.Node) -> fx.Node:
    """`_log_softmax_backward_data` as pointwise work and a sum.

    The minimum cut takes operands of the operator itself for stored values.
    """
    arguments: Any = node.args
    grad, _, axis, dtype = arguments
    grad = _widened(write, grad)
    total = write.add(_ATEN.sum.dim_IntList, grad, [axis], True)
    share = write.add(_ATEN.mul.Tensor, write.add(_ATEN.exp.default, result), total)
    return write.converted(write.add(_ATEN.sub.Tensor, grad, share), dtype)


def _widened(write: GraphWriter, x: fx.Node) -> fx.Node:
    """A value in the type in which PyTorch's kernels compute with it."""
    is_double = value_of(x).dtype == torch.float64
    return write.converted(x, torch.float64 if is_double else torch.float32)
