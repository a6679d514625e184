"""Orders the inputs of a Dynamo graph by their first use, so that keys are equal everywhere.

Dynamo lists inputs in the order in which Python's interpreter reads them, which depends on its
version: Python 3.12 reads the weights of a ViT in a different order than 3.11, so one model had two
keys. The order of the nodes is the same under both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import torch
from torch import fx

from kernelfarm.client.pytorch.private.tracing import copy_source


class InputOrder:
    """A Dynamo graph with reordered inputs (`module`); converts calls in Dynamo's order.

    `positions` are the inputs' positions in Dynamo's order; None if the order does not change.
    If the order changes, `module` is a copy, because Dynamo reads the inputs of its own graph later
    to call the compiled function.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        before = module.graph.find_nodes(op="placeholder")
        ordered = _with_their_sizes(_by_first_use(module.graph, before))
        number = {node: index for index, node in enumerate(before)}
        self.positions = None if ordered == before else tuple(number[node] for node in ordered)
        self.module = module if self.positions is None else _copy(module, ordered)

    def of(self, arguments: Sequence[Any]) -> Sequence[Any]:
        """Arguments in Dynamo's order, reordered for `module`."""
        return arguments if self.positions is None else [arguments[i] for i in self.positions]

    def called_as_before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A function that takes arguments in Dynamo's order, from one that takes `module`'s."""
        return called_in_order(function, self.positions)


def called_in_order(
    function: Callable[..., Any], positions: tuple[int, ...] | None
) -> Callable[..., Any]:
    """A function that calls another with the arguments at these positions; None: with all."""
    if positions is None:
        return function
    in_order = itemgetter(*positions)  # at least two: one input has only one order
    return lambda *arguments: function(*in_order(arguments))


def _by_first_use(graph: fx.Graph, inputs: list[fx.Node]) -> list[fx.Node]:
    """The inputs in the order of their first use, then those that no node uses."""
    used = (
        operand
        for node in graph.nodes
        for operand in node.all_input_nodes
        if operand.op == "placeholder"
    )
    return list(dict.fromkeys([*used, *inputs]))


def _with_their_sizes(inputs: list[fx.Node]) -> list[fx.Node]:
    """Puts each size input before the first tensor that has this size, as Dynamo does.

    AOT Autograd needs a size's input before the tensors that use it.
    """
    sizes = {str(_example(node)): node for node in inputs if _is_size(node)}
    ordered: dict[fx.Node, None] = {}
    for node in inputs:
        if _is_size(node):
            continue
        for symbol in _symbols(_example(node)):
            if symbol in sizes:
                ordered[sizes[symbol]] = None
        ordered[node] = None
    return list(dict.fromkeys([*ordered, *inputs]))


def _copy(module: fx.GraphModule, ordered: list[fx.Node]) -> fx.GraphModule:
    """A copy of the graph with its inputs in this order, and with Dynamo's attributes of it."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in ordered:
        copies[node] = graph.node_copy(node)
        copies[node].meta.pop("grapharg", None)  # it refers to the example, which Dynamo releases
        copy_source(node, copies[node])
    rest = [node for node in module.graph.nodes if node.op != "placeholder"]
    for node in rest:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    copied = fx.GraphModule(module, graph)
    for name, value in vars(module).items():
        copied.__dict__.setdefault(name, value)
    copied.meta = module.meta
    return copied


def _example(node: fx.Node) -> Any:
    return node.meta.get("example_value")


def _is_size(node: fx.Node) -> bool:
    return isinstance(_example(node), torch.SymInt)


def _symbols(example: Any) -> list[str]:
    if not isinstance(example, torch.Tensor):
        return []
    return [str(extent) for extent in (*example.shape, *example.stride())]
