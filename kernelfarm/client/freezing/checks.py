"""Whether Dynamo's graph of a model may be frozen, and which of its inputs are frozen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.nn import functional

from kernelfarm.client.pytorch.private.tracing import is_parameter_or_buffer
from kernelfarm.errors import CallerError

_DEVICES = frozenset({"cpu", "cuda"})
_TRAINING: dict[Any, int] = {
    torch.batch_norm: 5,
    functional.batch_norm: 5,
    functional.dropout: 2,
    torch.dropout: 2,
}
"""Functions with another meaning in training, and the position of the argument that says so."""


def frozen_inputs(module: fx.GraphModule, inputs: Sequence[Any]) -> tuple[int, ...]:
    """The positions of the parameters and buffers among the inputs of Dynamo's graph.

    Raises:
        CallerError: the graph computes gradients, is one of training, or is on another device.
    """
    tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise CallerError(
            "freezing: a frozen model has no gradients; call it within torch.no_grad() or"
            " torch.inference_mode()"
        )
    for node in module.graph.nodes:
        position = _TRAINING.get(node.target)
        if position is not None and _is_training(node, position):
            raise CallerError("freezing: the model is in training mode; call model.eval() first")
    devices = {tensor.device.type for tensor in tensors} - _DEVICES
    if devices:
        known = " or ".join(sorted(_DEVICES))
        raise CallerError(f"freezing: tensors on {', '.join(sorted(devices))}; expected {known}")
    nodes = module.graph.find_nodes(op="placeholder")
    return tuple(
        position
        for position, (node, value) in enumerate(zip(nodes, inputs, strict=True))
        if isinstance(value, torch.Tensor) and is_parameter_or_buffer(node)
    )


def _is_training(node: fx.Node, position: int) -> bool:
    stated = node.args[position] if len(node.args) > position else node.kwargs.get("training")
    return stated is True
