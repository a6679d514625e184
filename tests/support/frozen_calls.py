"""Frozen models without a farm: their graphs run operator by operator, on real tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx, nn

from kernelfarm.client.capture.graph import capture
from kernelfarm.client.capture.input_order import InputOrder
from kernelfarm.client.capture.short_trace import RecordedModule, short_trace
from kernelfarm.client.freezing.checks import frozen_inputs
from kernelfarm.client.freezing.constants import FrozenConstants
from kernelfarm.client.freezing.frozen_graph import FrozenGraph, freeze_graph
from kernelfarm.client.pytorch.private.operators import packed_operators
from kernelfarm.client.traces.calling_convention import recorded_convention
from kernelfarm.client.traces.calls import callable_for
from kernelfarm.ir.graph_ir import Graph
from kernelfarm.ir.product_choice import ProductChoice


class FrozenCalls:
    """A model whose calls run its frozen graph; without gradients.

    `frozen` and `captured` are the graphs of the calls so far.
    """

    def __init__(
        self,
        model: Callable[..., Any],
        target: str = "",
        products: ProductChoice = ProductChoice.AUTO,
        *,
        dynamic: bool | None = False,
    ) -> None:
        self.frozen: list[FrozenGraph | None] = []
        self.captured: list[Graph] = []
        self._graphs: list[fx.Graph] = []
        self._target, self._products = target, products
        self._compiled = torch.compile(model, backend=self._backend, dynamic=dynamic)

    def __call__(self, *args: Any) -> Any:
        with torch.no_grad():
            return self._compiled(*args)

    @property
    def targets(self) -> list[str]:
        """The operators of the last graph that calls run, in order."""
        nodes = self._graphs[-1].nodes
        return [str(node.target) for node in nodes if node.op == "call_function"]

    def _backend(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        order = InputOrder(gm)
        inputs = order.of(example_inputs)
        parameters = frozen_inputs(order.module, inputs)
        recorded = short_trace(order.module, inputs)
        convention = recorded_convention(recorded.graph)
        found = freeze_graph(recorded, parameters, self._target, self._products)
        self.frozen.append(found)
        self._graphs.append((recorded if found is None else found.module).graph)
        if found is None:
            return order.called_as_before(callable_for(convention, _runner(recorded)))
        self.captured.append(capture(found.module).graph)
        run = FrozenConstants(found).passed_to(_runner(found.module))
        return order.called_as_before(callable_for(convention, run))


def _runner(module: RecordedModule) -> Callable[[list[Any]], Any]:
    root = nn.Module()
    for name, value in vars(module).items():
        if isinstance(value, torch.Tensor):
            root.register_buffer(name, value)
    return lambda args: fx.GraphModule(root, module.graph)(*args)


def is_packable(dtype: torch.dtype) -> bool:
    """True if the library has packed weights of a type on this processor."""
    operators = packed_operators()
    return operators is not None and dtype in operators.types
