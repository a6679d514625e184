"""Captures the graphs of models that are frozen for a target, as the backend does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from kernelfarm.client.capture.captured import CapturedGraph
from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.inline_regions import inline_regions
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.preserve_attention import preserve_attention
from kernelfarm.client.capture.short_trace import short_trace
from kernelfarm.client.freezing.checks import frozen_inputs
from kernelfarm.client.freezing.frozen_graph import FrozenGraph, freeze_graph

Frozen = tuple[FrozenGraph, list[Any]]
"""A frozen graph, and the arguments of the graph that was traced for it."""


def frozen_for(target: str, found: list[Frozen]) -> Callable[..., Any]:
    """A backend for `torch.compile` that appends each frozen graph, and runs as in eager."""

    def compiler(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Any:
        inline_regions(gm)
        preserve_attention(gm)
        order = InputOrder(gm)
        inputs = order.of(example_inputs)
        parameters = frozen_inputs(order.module, inputs)
        frozen = freeze_graph(short_trace(order.module, inputs), parameters, target)
        assert frozen is not None
        found.append((frozen, list(inputs)))
        return gm.forward

    return compiler


def frozen_one(model: Callable[..., Any], target: str, *args: Any) -> Frozen:
    """The only graph of a model that is frozen for a target."""
    found: list[Frozen] = []
    torch._dynamo.reset()
    with torch.no_grad():
        torch.compile(model, backend=frozen_for(target, found))(*args)
    (only,) = found
    return only


def captured_frozen(frozen: FrozenGraph) -> CapturedGraph:
    """The graph that the farm compiles."""
    return capture(frozen.module)
